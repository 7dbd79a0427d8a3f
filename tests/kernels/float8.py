"""8-bit floats in Triton's interpreter, which gets some of them wrong: here they are converted as a GPU does it.

The interpreter of Triton 3.7 rounds up without a carry into every other exponent (1.97 becomes 1, not 2), rounds
halves up instead of to even, stores NaN as 384 and reads it as 480.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl  # noqa: TID253 - only the tests of kernels load this module
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle  # noqa: TID253

_DTYPES = {tl.float8e4nv: torch.float8_e4m3fn, tl.float16: torch.float16, tl.float32: torch.float32}


def use_exact_float8(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the interpreter convert float8_e4m3fn as torch does, but for what lies beyond 448: that becomes NaN.

    A GPU makes 448 of it; a kernel is not to rely on that.
    """
    otherwise = InterpreterBuilder.create_fp_to_fp

    def create_fp_to_fp(self: Any, source: Any, dtype: Any, rounding: Any) -> Any:
        before, after = source.dtype.scalar, dtype.scalar
        if tl.float8e4nv not in (before, after):
            return otherwise(self, source, dtype, rounding)
        values = torch.from_numpy(np.ascontiguousarray(source.data)).view(_DTYPES[before])
        if after == tl.float8e4nv:
            found = torch.where(values.abs() <= 448, values, torch.nan).to(torch.float8_e4m3fn).view(torch.uint8)
        else:
            found = values.to(_DTYPES[after])
        return TensorHandle(found.numpy(), after)

    monkeypatch.setattr(InterpreterBuilder, "create_fp_to_fp", create_fp_to_fp)
