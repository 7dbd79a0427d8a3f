"""Takes what requests say out of records, and leaves what an engine did with them.

Token ids become numbers that tell nothing but which prompts and completions begin alike, which is all that a prefix
cache is about: a number stands for one token after the same tokens, and for nothing else. Hashes of blocks, request ids
and cache salts are numbered too; stop strings and stop ids are left out. Lengths and times stay as they were.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from msgspec.structs import replace

from nvexplore.engine.events import Added, BlockEvents, Snapshot, StepRecord

_EMPTY = -1  # the node of a sequence without tokens


def redacted(items: Iterable[Snapshot | StepRecord]) -> Iterator[Snapshot | StepRecord]:
    """The items of a recording, in order and from a snapshot on, without what requests say."""
    redactor = _Redactor()
    for item in items:
        yield redactor.snapshot(item) if isinstance(item, Snapshot) else redactor.record(item)


class _Redactor:
    """Numbers everything in the order in which it comes, so equal recordings are redacted to equal ones."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[int, int], int] = {}  # (node of what is before, token id) -> node
        self._ends: dict[int, int] = {}  # of each sequence: the node of all its tokens
        self._hashes: dict[int, int] = {}
        self._names: dict[str, int] = {}
        self._salts: dict[str, int] = {}

    def snapshot(self, snapshot: Snapshot) -> Snapshot:
        sequences = snapshot.sequences
        rows = [self._row(*each) for each in zip(sequences.seq_id, sequences.token_ids, strict=True)]
        named = replace(sequences, token_ids=rows, request_id=self._named(sequences.request_id))
        return replace(snapshot, sequences=named, hash=self._hashed(snapshot.hash))

    def record(self, record: StepRecord) -> StepRecord:
        before, planned, committed = record.before, record.planned, record.committed
        return replace(
            record,
            before=replace(before, added=self._added(before.added), blocks=self._blocks(before.blocks)),
            planned=replace(planned, blocks=self._blocks(planned.blocks)),
            committed=replace(
                committed,
                token_id=[self._append(*each) for each in zip(committed.seq_id, committed.token_id, strict=True)],
                blocks=self._blocks(committed.blocks),
            ),
        )

    def _added(self, added: Added) -> Added:
        return replace(
            added,
            token_ids=[self._row(*each) for each in zip(added.seq_id, added.token_ids, strict=True)],
            request_id=self._named(added.request_id),
            sampling_params=[self._params(params) for params in added.sampling_params],
        )

    def _params(self, params: dict[str, Any]) -> dict[str, Any]:
        salt = params.get("cache_salt")
        number = None if salt is None else str(self._salts.setdefault(salt, len(self._salts)))
        without: dict[str, Any] = {"stop": [], "stop_token_ids": [], "cache_salt": number}
        return params | {name: value for name, value in without.items() if name in params}

    def _blocks(self, events: BlockEvents) -> BlockEvents:
        return replace(events, hash=self._hashed(events.hash))

    def _hashed(self, hashes: list[int | None]) -> list[int | None]:
        known = self._hashes
        return [None if each is None else known.setdefault(each, len(known)) for each in hashes]

    def _named(self, names: list[str]) -> list[str]:
        return [f"r{self._names.setdefault(name, len(self._names))}" for name in names]

    def _row(self, seq_id: int, token_ids: list[int]) -> list[int]:
        self._ends[seq_id] = _EMPTY
        return [self._append(seq_id, token_id) for token_id in token_ids]

    def _append(self, seq_id: int, token_id: int) -> int:
        if token_id < 0:  # none could be chosen
            return token_id
        node = self._nodes.setdefault((self._ends[seq_id], token_id), len(self._nodes))
        self._ends[seq_id] = node
        return node
