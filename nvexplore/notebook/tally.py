"""A run in sums, and in words. Reads records only."""

from __future__ import annotations

from dataclasses import dataclass, field

from nvexplore.engine.events import Snapshot, StepRecord
from nvexplore.notebook.describe import describe_step
from nvexplore.notebook.finished import forgotten
from nvexplore.notebook.requests import Request, RequestLog
from nvexplore.notebook.summary import Summary, counted, shortened

COLUMNS = ("request", "ended by", "prompt tokens", "cached", "generated", "text")


@dataclass(frozen=True, kw_only=True, repr=False)
class RunSummary(Summary):
    """Many steps; ``finished`` holds the requests that ended in them. found: why they ended early, if so."""

    tally: Tally
    seconds: float
    finished: tuple[Request, ...]
    found: str | None = None


@dataclass
class Tally:
    """Sums over the records of a run: steps, tokens by what became of them, preemptions.

    finished: seq_ids of the requests that ended, in that order, as keys. last: the newest record.
    """

    num_steps: int = 0
    last: StepRecord | None = None
    num_prefill_tokens: int = 0
    num_cached_tokens: int = 0
    num_generated_tokens: int = 0
    num_preemptions: int = 0
    num_evicted_blocks: int = 0
    finished: dict[int, None] = field(default_factory=dict)

    @property
    def last_step(self) -> int:
        """Number of the newest step, or -1."""
        return -1 if self.last is None else self.last.step

    def push(self, item: Snapshot | StepRecord) -> None:
        """A subscriber's callback."""
        if isinstance(item, Snapshot) or item.step <= self.last_step:  # a record may come twice
            return
        planned, committed = item.planned, item.committed
        lost = *item.before.preempted.seq_id, *planned.preempted.seq_id  # the former in a step that failed
        prefill = zip(planned.count, planned.is_prefill, strict=True)
        self.finished.update(dict.fromkeys(committed.finished_seq_id))
        # All at once: a record that Ctrl-C kept from being counted comes again, and is counted once.
        vars(self).update(
            num_steps=self.num_steps + 1,
            num_prefill_tokens=self.num_prefill_tokens + sum(count for count, is_prefill in prefill if is_prefill),
            num_cached_tokens=self.num_cached_tokens + sum(planned.admitted.num_cached_tokens),
            num_generated_tokens=self.num_generated_tokens + len(committed.token_id),
            num_preemptions=self.num_preemptions + len(lost),
            num_evicted_blocks=self.num_evicted_blocks + planned.blocks.kind.count("evicted"),
            last=item,
        )


def describe_run(
    tally: Tally, seconds: float, log: RequestLog, *, found: str | None = None, until: object = None
) -> RunSummary:
    """What a run came to, with the texts of the requests that it finished.

    found: what the run stopped at. until: what it was to stop at, of which a text is named where nothing was found.
    """
    known = {request.seq_id: request for request in log.table}
    finished = tuple(known[seq] for seq in tally.finished if seq in known)
    num_missing = len(tally.finished) - len(finished)
    left = [request.request_id for request in known.values() if not request.is_finished]
    rate = f", {tally.num_generated_tokens / seconds:,.0f} a second" if seconds > 0 else ""
    prefill, cached = counted(tally.num_prefill_tokens, "token"), f"{tally.num_cached_tokens:,}"
    notes = [
        f"{prefill} computed in prefill, {cached} more were in the prefix cache",
        f"{counted(tally.num_generated_tokens, 'token')} generated{rate}",
    ]
    if tally.num_evicted_blocks:
        notes.append(f"{counted(tally.num_evicted_blocks, 'cached block')} evicted to make room")
    if tally.num_preemptions:
        notes.append(f"{counted(tally.num_preemptions, 'preemption')}: what was lost is computed again")
    if num_missing:
        notes.append(f"{num_missing:,} of those that finished are not listed; {forgotten(log.finished.num_forgotten)}")
    if not tally.num_steps:
        notes = []
    if found is not None:
        notes.insert(0, f"stopped at {found}")
    elif until is not None and not callable(until):
        notes.insert(0, f"did not come up: {until}")
    notes.append("unfinished: " + shortened(", ".join(left), 200) if left else "all requests are finished")
    if left and tally.last is not None:  # it was stopped for a reason, which is often to be seen there
        step = describe_step(tally.last, log)
        notes += [step.headline, *step.notes]
    return RunSummary(
        headline=f"{counted(tally.num_steps, 'step')} in {seconds:.2f} s",
        columns=COLUMNS,
        rows=tuple(map(_row, finished)),
        notes=tuple(notes),
        tally=tally,
        seconds=seconds,
        finished=finished,
        found=found,
    )


def _row(request: Request) -> tuple[str, ...]:
    return (
        request.request_id,
        request.status,
        str(len(request.prompt_token_ids)),
        str(request.num_cached_tokens),
        str(len(request.token_ids)),
        request.text,
    )
