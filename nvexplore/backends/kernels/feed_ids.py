"""Puts the ids that the step before has drawn into the input of this one: no host in between."""

import triton
import triton.language as tl
from torch import Tensor

_WIDTH = 1024


# Compiled once: a run should not wait for a compiler because a batch has another size.
@triton.jit(do_not_specialize=["COUNT"])
def _feed_ids(ids_ptr: tl.tensor, last_ptr: tl.tensor, COUNT: tl.tensor, WIDTH: tl.constexpr) -> None:
    at = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    ids = tl.load(ids_ptr + at, mask=at < COUNT, other=0)
    is_fed = ids < 0
    last = tl.load(last_ptr + (-1 - ids), mask=is_fed, other=0).to(tl.int32)
    # A row for which no token could be chosen has -1, and ends; what is computed for it is dropped.
    tl.store(ids_ptr + at, tl.maximum(last, 0), mask=is_fed)


def feed_ids(input_ids: Tensor, last_ids: Tensor) -> None:
    """Replace each id -1 - i of input_ids [T] int32 by last_ids[i], int64, in place."""
    count = input_ids.shape[0]
    _feed_ids[(triton.cdiv(count, _WIDTH),)](input_ids, last_ids, count, WIDTH=_WIDTH, num_warps=4)
