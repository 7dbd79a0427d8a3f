"""The noise of the sampler by itself: kernels that give what bits become, and what a key becomes."""

import triton  # noqa: TID253 - only the tests of kernels load this module
import triton.language as tl  # noqa: TID253

from nvexplore.backends.kernels.gumbel import _exponential


@triton.jit
def exponential_of(bits_ptr, out_ptr, SIZE: tl.constexpr):  # noqa: ANN001, ANN201 - Triton's types, not Python's
    at = tl.arange(0, SIZE)
    tl.store(out_ptr + at, _exponential(tl.load(bits_ptr + at)))


@triton.jit
def noise_of(keys_ptr, out_ptr, SIZE: tl.constexpr):  # noqa: ANN001, ANN201
    """Four rows of SIZE numbers for each key."""
    row = tl.program_id(0)
    at = tl.arange(0, SIZE)
    a, b, c, d = tl.randint4x(tl.load(keys_ptr + row), at)
    tl.store(out_ptr + (4 * row) * SIZE + at, _exponential(a))
    tl.store(out_ptr + (4 * row + 1) * SIZE + at, _exponential(b))
    tl.store(out_ptr + (4 * row + 2) * SIZE + at, _exponential(c))
    tl.store(out_ptr + (4 * row + 3) * SIZE + at, _exponential(d))
