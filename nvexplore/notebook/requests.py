"""Every request by its id: how far it is and what it has said, learnt from the records. Knows no engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from nvexplore.engine.events import Snapshot, StepRecord
from nvexplore.explore.lifecycle import turns
from nvexplore.notebook.finished import Finished, forgotten
from nvexplore.notebook.summary import Summary, shortened

Decode = Callable[[list[int]], str]
LIVE = ("waiting", "prefill", "decode")


class Decoder:
    """``llm.decode`` that keeps the tokenizer and not the model: texts can be read when it is closed."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def __call__(self, token_ids: list[int]) -> str:
        return str(self.tokenizer.decode(list(token_ids), skip_special_tokens=True))


def _no_text(_: list[int]) -> str:
    return ""


@dataclass(eq=False, repr=False)
class Request:
    """One request, kept up to date.

    preemptions: numbers of the events in which it was sent back to wait.
    status: "waiting", "prefill", "decode", or why it has ended: "stop", "length", "abort", "error", "closed" (its model
    was), or "finished": it left in a gap of the records, or in a step that failed, so that they do not say why.
    """

    request_id: str
    seq_id: int
    prompt_token_ids: list[int]
    prompt: str
    token_ids: list[int] = field(default_factory=list)
    status: str = "waiting"
    num_cached_tokens: int = 0
    preemptions: set[int] = field(default_factory=set)
    decode: Decode = _no_text

    @property
    def num_preemptions(self) -> int:
        return len(self.preemptions)

    @property
    def is_finished(self) -> bool:
        return self.status not in LIVE

    @property
    def text(self) -> str:
        """The completion so far."""
        return self.decode(self.token_ids) if self.token_ids else ""

    def __repr__(self) -> str:
        text = f", text={self.text!r}" if self.token_ids else ""
        return (
            f"Request({self.request_id!r}, {self.status}, {len(self.prompt_token_ids)} prompt tokens"
            f"{f', {self.num_cached_tokens} cached' if self.num_cached_tokens else ''}, "
            f"prompt={shortened(self.prompt)!r}{text})"
        )


class RequestTable(Sequence[Request]):
    """Requests as a list that shows itself as a table. num_forgotten: those that should be in it and are not kept."""

    def __init__(self, requests: list[Request], num_forgotten: int = 0) -> None:
        self._requests, self.num_forgotten = requests, num_forgotten

    def __len__(self) -> int:
        return len(self._requests)

    def __getitem__(self, index: int) -> Request:  # type: ignore[override]
        return self._requests[index]

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def summary(self) -> Summary:
        """The table, with whole texts."""
        live = sum(not request.is_finished for request in self)
        return Summary(
            headline=f"{len(self)} request{'' if len(self) == 1 else 's'}, {live} unfinished",
            columns=("request", "status", "prompt tokens", "cached", "generated", "prompt", "text so far"),
            rows=tuple(
                (
                    request.request_id,
                    request.status,
                    str(len(request.prompt_token_ids)),
                    str(request.num_cached_tokens),
                    str(len(request.token_ids)),
                    shortened(request.prompt),
                    request.text,
                )
                for request in self
            ),
            notes=(forgotten(self.num_forgotten),) if self.num_forgotten else (),
        )

    def __repr__(self) -> str:
        return repr(self.summary())

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()


class RequestLog:
    """A subscriber that keeps the requests; ``push`` takes a Snapshot, then every StepRecord.

    text: from token ids. finished: the requests that have ended.
    num_blocks, block_size, max_num_seqs: the engine's, for those who describe a record.
    """

    def __init__(self, decode: Decode = _no_text) -> None:
        self.text = decode
        self._by_seq: dict[int, Request] = {}
        self.finished = Finished()
        self.num_blocks = self.block_size = self.max_num_seqs = 0
        self._next_step = self._told = self._first_event = 0

    def push(self, item: Snapshot | StepRecord) -> None:
        if isinstance(item, Snapshot):
            self._restart(item)
        elif item.step >= self._next_step:
            # Ctrl-C may end this anywhere, and the record comes again: whatever _apply does, doing it twice is
            # doing it once.
            self._apply(item)
            self._next_step, self._told = item.step + 1, item.event

    def add(self, request_id: str, seq_id: int, prompt_token_ids: list[int]) -> Request:
        """Note a request that the next record will tell of."""
        prompt = self.text(prompt_token_ids)
        request = Request(request_id, seq_id, prompt_token_ids, prompt, decode=self.text)
        self._by_seq[seq_id] = request
        return request

    def name(self, seq_id: int) -> str:
        """The request id of a sequence."""
        request = self.of(seq_id)
        return request.request_id if request is not None else f"sequence {seq_id}"

    def of(self, seq_id: int) -> Request | None:
        """The request of a sequence; None if it is not known, or forgotten."""
        return self._by_seq.get(seq_id) or self.finished.get(seq_id)

    def find(self, request_id: str) -> Request | None:
        """The newest request of that id."""
        return next((r for r in reversed(self.table) if r.request_id == request_id), None)

    @property
    def table(self) -> RequestTable:
        """All requests known, by age."""
        known = {**self.finished.all(), **self._by_seq}
        return RequestTable([known[seq_id] for seq_id in sorted(known)], self.finished.num_forgotten)

    def unfinished(self) -> set[int]:
        """The sequences that have not ended, as far as is known."""
        return {seq_id for seq_id, request in list(self._by_seq.items()) if not request.is_finished}

    def note_gone(self, seq_ids: set[int], status: str) -> None:
        """These have left the engine, and no record has told yet; one that does says better why, and when."""
        for seq_id in seq_ids & self.unfinished():
            self._by_seq[seq_id].status = status

    def _restart(self, snapshot: Snapshot) -> None:
        self.num_blocks, self.block_size = snapshot.num_blocks, snapshot.block_size
        self.max_num_seqs = snapshot.max_num_seqs
        columns = snapshot.sequences
        is_next = (snapshot.step, snapshot.told) == (self._next_step, self._told)
        for seq_id in self._by_seq.keys() - set(columns.seq_id):
            # Between two steps nobody leaves who is not aborted; else it was in steps of which there is no record.
            self.end(seq_id, "abort" if is_next else "finished")
        self._next_step, self._told, self._first_event = snapshot.step, snapshot.told, snapshot.event
        for row, seq_id in enumerate(columns.seq_id):
            tokens, prompt = columns.token_ids[row], columns.num_prompt_tokens[row]
            request = self._by_seq.get(seq_id) or self.add(columns.request_id[row], seq_id, tokens[:prompt])
            request.token_ids, request.status = tokens[prompt:], columns.status[row]
            request.num_cached_tokens = columns.num_cached_tokens[row]
            request.preemptions = set(range(-columns.num_preemptions[row], 0))  # before this log's time

    def _apply(self, record: StepRecord) -> None:
        added, committed = record.before.added, record.committed
        columns = zip(added.seq_id, added.request_id, added.token_ids, strict=True)
        for seq_id, request_id, token_ids in columns:
            if self.of(seq_id) is None:
                self.add(request_id, seq_id, token_ids)
        for number, kind, seq_id, amount in turns(record):
            request = self._by_seq.get(seq_id)
            if request is None:  # it ended in this session's sight already
                continue
            if kind == "admitted":
                request.status, request.num_cached_tokens = "prefill", amount
            elif kind == "preempted" and number >= self._first_event:  # what was before it the snapshot has told
                request.status = "waiting"
                request.preemptions.add(number)
            elif kind == "aborted":
                self._end(seq_id, "abort")
        length = dict(zip(record.planned.seq_id, record.planned.context_len, strict=True))
        for seq_id, token_id in zip(committed.seq_id, committed.token_id, strict=True):
            request = self._by_seq.get(seq_id)
            if request is None:
                continue
            request.token_ids[length[seq_id] - len(request.prompt_token_ids) :] = [token_id]
            request.status = "decode"
        for seq_id, reason in zip(committed.finished_seq_id, committed.finish_reason, strict=True):
            self._end(seq_id, reason)
        self.finished.trim()

    def end(self, seq_id: int, reason: str) -> None:
        """Note that a request has ended; what is not live is passed over."""
        self._end(seq_id, reason)
        self.finished.trim()

    def _end(self, seq_id: int, reason: str) -> None:
        request = self._by_seq.get(seq_id)
        if request is None:
            return
        request.status = reason
        self.finished.add(request)
        self._by_seq.pop(seq_id, None)  # last: until then, doing it again does it all
