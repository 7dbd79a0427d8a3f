"""The toy runner as a device with a queue: what is launched is computed later, in order, from what was known then.

So a plan made ahead must be right by itself: tokens that it lacks come from the launch before, blocks that a launch
which was undone has written are written all the same, and nothing that the engine changes afterwards is seen.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from nvexplore.engine.batch import Launched, Sampled, ScheduledBatch
from tests.fakes import ToyRunner, is_broken, next_id


@dataclass
class Row:
    """A row as it was launched. ids: the tokens it runs; the last is None where the launch before yields it."""

    seq_id: int
    sample_index: int
    start: int
    ids: list[int | None]
    table: list[int]
    samples: bool


@dataclass
class ToyLaunch:
    """A batch in the device's queue."""

    device: ToyDevice
    rows: list[Row]
    previous: ToyLaunch | None
    sampled: dict[int, int] = field(default_factory=dict)  # by seq_id
    is_computed: bool = False

    def wait(self) -> list[int] | Sampled:
        self.device.doing = "wait"
        self.device.interrupt("begin")
        self.device.run_until(self)
        self.device.interrupt("end")
        ids = [self.sampled[row.seq_id] for row in self.rows if row.samples]
        return Sampled(ids, device_ns=1000) if len(self.rows) % 2 else ids


class ToyDevice(ToyRunner):
    """``launch`` queues; ``wait`` computes the queue as far as that launch. ``run`` is the toy runner's, after it.

    doing: which of them calls ``interrupt``.
    """

    doing = ""
    num_ahead = 0  # launches that followed one whose tokens were not known
    num_fed = 0  # rows of them that began with such a token

    def launch(self, batch: ScheduledBatch, previous: Launched | None) -> ToyLaunch:
        assert previous is None or isinstance(previous, ToyLaunch)
        self.doing = "launch"
        self.interrupt("begin")
        rows, size, fed = [], self.block_size, 0
        columns = zip(batch.seqs, batch.starts, batch.counts, batch.samples, strict=True)
        for seq, start, count, samples in columns:
            assert count > 0 and seq.num_computed_tokens == start
            ids: list[int | None] = list(seq.token_ids[start : start + count])
            if len(ids) < count:
                assert previous is not None and len(ids) == count - 1 == 0, "a token that nobody yields"
                assert any(row.seq_id == seq.seq_id and row.samples for row in previous.rows)
                ids.append(None)
                fed += 1
            table = list(seq.block_table[: -(-(start + count) // size)])
            assert len(table) * size >= start + count, "blocks that do not hold the row"
            rows.append(Row(seq.seq_id, seq.sample_index, start, ids, table, samples))
            self.interrupt("write")
        launch = ToyLaunch(self, rows, previous)
        self.queue.append(launch)
        self.num_ahead += previous is not None
        self.num_fed += fed
        self.interrupt("end")
        return launch

    def run(self, batch: ScheduledBatch) -> list[int] | Sampled:
        self.doing = "run"
        if self.queue:
            self.run_until(self.queue[-1])
        return super().run(batch)

    @property
    def queue(self) -> list[ToyLaunch]:
        if not hasattr(self, "_queue"):
            self._queue: list[ToyLaunch] = []
        return self._queue

    def run_until(self, last: ToyLaunch) -> None:
        """Compute what is queued, up to ``last``, in order; once it is computed, again nothing happens."""
        while not last.is_computed:
            self._compute(self.queue[0])
            self.queue.pop(0)

    def _compute(self, launch: ToyLaunch) -> None:
        size, written = self.block_size, set[int]()
        for row in launch.rows:
            for position, token_id in enumerate(row.ids, row.start):
                slot = row.table[position // size] * size + position % size
                assert slot not in written, f"slot {slot} written twice"
                written.add(slot)
                self.slots[slot] = self._fed(launch, row) if token_id is None else token_id
            self.interrupt("write")
        for row in launch.rows:
            end = row.start + len(row.ids)
            context = [self.slots[row.table[p // size] * size + p % size] for p in range(end)]
            if row.samples:
                ids = [-1 if token_id is None else token_id for token_id in context]
                broken = is_broken(ids, self.broken_every)
                launch.sampled[row.seq_id] = -1 if broken else next_id(ids, row.sample_index)
        launch.previous, launch.is_computed = None, True

    @staticmethod
    def _fed(launch: ToyLaunch, row: Row) -> int:
        assert launch.previous is not None and launch.previous.is_computed
        return max(0, launch.previous.sampled[row.seq_id])  # a row that failed is continued by anything
