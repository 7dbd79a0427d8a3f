"""What rank 0 tells the other ranks to do, as bytes: a step as it lies on the host, or logits of one. Moves nothing."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
from torch import Tensor

from nvexplore.layers.controls import Controls
from nvexplore.runner.decode_rows import DecodeBatch
from nvexplore.runner.execution import Execution, Rows
from nvexplore.runner.forward_batch import ForwardBatch
from nvexplore.runner.packing import FIELDS, unpack

_NOTHING = torch.empty(0, dtype=torch.int32, device="cpu")
_NUMBERS = ("block_size", "num_prefill", "num_decode", "num_padding", "max_seqlen_q", "max_seqlen_k")


@dataclass(frozen=True, slots=True)
class Order:
    """A call of ``Execution``: ``run``, ``forward`` or ``logits``, with the arguments it takes.

    Of controls the others learn only that there are some: rank 0 alone draws. No sequence travels, so none can be out
    of date.
    """

    what: Literal["run", "forward", "logits"]
    laid: ForwardBatch | DecodeBatch | None = None
    size: int | None = None
    is_fed: bool = False
    rows: Rows = "all"

    def packed(self) -> tuple[bytes, Tensor]:
        """Return (all but the step's numbers, its numbers [n] int32)."""
        laid = self.laid
        kind: tuple[Any, ...] = ()
        if isinstance(laid, DecodeBatch):
            kind = laid.size, laid.num_rows, laid.controls is not None
        elif laid is not None:
            shapes = [tuple(getattr(laid, name).shape) for name in FIELDS]
            kind = shapes, [getattr(laid, name) for name in _NUMBERS], laid.controls is not None
        told = self.what, self.size, self.is_fed, self.rows, isinstance(laid, DecodeBatch), kind
        return pickle.dumps(told, pickle.HIGHEST_PROTOCOL), _NOTHING if laid is None else laid.packed

    @classmethod
    def unpacked(cls, told: bytes, numbers: Tensor, staging: Callable[[int], Tensor]) -> Order:
        """The order whose numbers lie in memory that may change; they are copied to what ``staging`` gives."""
        what, size, is_fed, rows, is_decode, kind = pickle.loads(told)
        if not kind:
            return cls(what, None, size, is_fed, rows)
        # A graph of prompts is laid out once more, and that in the staging memory.
        is_staged = what == "run" and (is_decode or size is None)
        packed = staging(numbers.shape[0]) if is_staged else torch.empty_like(numbers)
        packed.copy_(numbers)
        controls = _SOME if kind[2] else None
        laid: ForwardBatch | DecodeBatch
        if is_decode:
            laid = DecodeBatch(packed, kind[0], kind[1], controls)
        else:
            views: dict[str, Any] = unpack(packed, dict(zip(FIELDS, kind[0], strict=True)))
            laid = ForwardBatch(packed=packed, **views, **dict(zip(_NUMBERS, kind[1], strict=True)), controls=controls)
        return cls(what, laid, size, is_fed, rows)

    def follow(self, execution: Execution) -> None:
        """Make the call; what it returns, rank 0 has too."""
        if self.what == "logits":
            execution.logits(self.rows)
        elif self.what == "forward":
            assert isinstance(self.laid, ForwardBatch)
            execution.forward(self.laid)
        else:
            assert self.laid is not None
            execution.run(self.laid, self.size, is_fed=self.is_fed)


_SOME = Controls(**{field.name: torch.empty(0, device="cpu") for field in fields(Controls)})
