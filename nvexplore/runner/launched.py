"""A batch that the device computes: which rows it samples, and how its ids come back. Decides nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from nvexplore.engine.batch import Sampled, ScheduledBatch
from nvexplore.engine.sequence import Sequence

if TYPE_CHECKING:
    from nvexplore.backends.read_back import Ids


class LaunchedBatch:
    """``Launched`` of the model runner. ids: those sampled, on their way. sampled: or all that there is to tell.

    check: called once the ids are there; raises where they are worth nothing. A step that nobody waits for is kept as
           long as its engine, so nothing here may hold the model.
    """

    def __init__(
        self,
        batch: ScheduledBatch,
        ids: Ids | None,
        sampled: Sampled | None = None,
        check: Callable[[], None] | None = None,
    ) -> None:
        self.ids = ids
        self._batch = batch
        self._sampled = sampled
        self._check = check

    def wait(self) -> list[int] | Sampled:
        """A ``Sampled`` where there is more to tell than the ids."""
        if self.ids is None:
            assert self._sampled is not None
            return self._sampled
        ids = self.ids.wait()
        if self._check is not None:
            self._check()
        return ids if self.ids.device_ns is None else Sampled(ids, device_ns=self.ids.device_ns)

    @cached_property
    def seqs(self) -> list[Sequence]:
        """The sequences of the sampled rows, in the order of their ids."""
        batch = self._batch
        if batch.num_decodes == len(batch.seqs):
            return batch.seqs
        return [seq for seq, samples in zip(batch.seqs, batch.samples, strict=True) if samples]

    @cached_property
    def _rows(self) -> dict[int, int]:
        return {seq.seq_id: row for row, seq in enumerate(self.seqs)}

    def stand_in(self, seq: Sequence) -> int:
        """What an input has in place of the id that this batch is about to yield for ``seq``: -1 - its row."""
        return -1 - self._rows[seq.seq_id]


def decode_ids(batch: ScheduledBatch, previous: LaunchedBatch | None) -> npt.NDArray[np.int32]:
    """The one input id of each row of a decode batch, or what stands in for it."""
    if previous is None:
        return np.array([seq.token_ids[-1] for seq in batch.seqs], np.int32)
    if batch.seqs == previous.seqs:  # nearly every step
        return -1 - np.arange(len(batch.seqs), dtype=np.int32)
    return np.array(
        [next_id(seq, start, previous) for seq, start in zip(batch.seqs, batch.starts, strict=True)], np.int32
    )


def next_id(seq: Sequence, position: int, previous: LaunchedBatch | None) -> int:
    """The id at ``position``, or what stands in for it: the batch before yields it."""
    if position < len(seq.token_ids):
        return seq.token_ids[position]
    assert previous is not None  # the engine plans no token that nobody knows
    return previous.stand_in(seq)
