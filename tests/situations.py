"""Engines over the toy runner, each brought into a situation that has to be explained; see ``play`` for how."""

from __future__ import annotations

import re
from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from typing import Any, NamedTuple

from nvexplore.engine.batch import Dispatch, ScheduledBatch
from nvexplore.engine.engine import Engine
from nvexplore.engine.policy import Policy
from nvexplore.engine.sequence import Sequence
from nvexplore.explore.explain import explain
from nvexplore.explore.recorder import Recorder
from nvexplore.sampling_params import SamplingParams
from tests.fakes import ToyRunner, toy_engine


class Scene:
    """An engine and what was recorded of it."""

    def __init__(self, script: str, *, num_blocks: int = 16, block_size: int = 4, **limits: Any) -> None:
        self.engine: Engine = toy_engine(num_blocks, block_size, **limits)
        self.recorder = Recorder()
        self.play(script if "record" in script else f"record {script}")

    def play(self, script: str) -> Scene:
        """Words, one after the other: ``.`` is a step, ``.3`` three, ``>`` an ``advance``, ``record`` begins to record.

        ``a=0:8,5/4`` adds a request of tokens 0 to 7 and 5 with max_tokens 4; then may follow ``!1`` a priority,
        ``@x`` a cache salt, ``+presence_penalty=1`` any other parameter; ``~a`` in a prompt is what a has so far.
        ``-a`` aborts, ``reset`` forgets the cache, ``fail`` is a step that fails.
        """
        for word in script.split():
            if word == "record":
                self.engine.subscribe(self.recorder)
            elif word == "reset":
                self.engine.reset_prefix_cache()
            elif word == "fail":
                self._fail()
            elif word[0] == "-":
                self.engine.abort(word[1:])
            elif set(word) == {">"}:
                for _ in word:
                    self.engine.advance()
            elif word[0] == ".":
                for _ in range(int(word[1:] or 1)):
                    self.engine.step()
            else:
                self.add(word)
        return self

    def add(self, word: str) -> None:
        name, _, rest = word.partition("=")
        prompt, _, rest = rest.partition("/")
        most, *options = re.split(r"(?=[!@+])", rest)
        given: dict[str, Any] = {"max_tokens": int(most)}
        priority = 0
        for option in options:
            if option[0] == "!":
                priority = int(option[1:])
            elif option[0] == "@":
                given["cache_salt"] = option[1:]
            else:
                key, _, value = option[1:].partition("=")
                given[key] = int(value)
        tokens = [token for part in prompt.split(",") for token in self._tokens(part)]
        self.engine.add_request(tokens, SamplingParams(**given), request_id=name, priority=priority)

    def _tokens(self, part: str) -> list[int]:
        if part[0] == "~":
            return self.engine.live[part[1:]].token_ids
        first, _, end = part.partition(":")
        return list(range(int(first), int(end or int(first) + 1)))

    def _fail(self) -> None:
        self.engine.runner.fails_next = True  # type: ignore[attr-defined]
        try:
            self.engine.step()
        except RuntimeError:
            return
        raise AssertionError("the step did not fail")


class Case(NamedTuple):
    """What must be told of the last step of a scene."""

    kind: str
    sentence: str
    script: str
    limits: dict[str, Any]

    def __str__(self) -> str:
        return self.sentence

    def told(self) -> list[tuple[str, str]]:
        found = explain(Scene(self.script, **self.limits).recorder)
        parts = [found.summary, *found.preempted, *found.admitted, *found.waiting, *found.running]
        return [(each.kind, str(each)) for each in parts]


def case(kind: str, sentence: str, script: str, **limits: Any) -> Case:
    """A kind of explanation, its words, how it comes to that (see ``Scene.play``), and the engine's limits."""
    return Case(kind, sentence, script, limits)


class ShortestFirst(Policy):
    name = "shortest_first"

    def admission_order(self, waiting: SequenceOf[Sequence]) -> list[Sequence]:
        return sorted(waiting, key=lambda seq: seq.num_tokens)


class Picky(Policy):
    """Admits nobody whose prompt begins with 0."""

    def admission_order(self, waiting: SequenceOf[Sequence]) -> Iterator[Sequence]:
        return (seq for seq in waiting if seq.token_ids[0])


class Strict(Policy):
    lookahead = 0


class PassesTwo(Policy):
    lookahead = 2


class PassesTwice(Policy):
    max_passed = 2


class OldestGivesWay(Policy):
    def victim(self, candidates: SequenceOf[Sequence], needing: Sequence) -> Sequence:
        return candidates[0]


class GraphRunner(ToyRunner):
    """Says of decode steps that they run as a graph of the next power of two."""

    def dispatch(self, batch: ScheduledBatch) -> Dispatch:
        if any(batch.is_prefill):
            return Dispatch(eager_reason="prefill")
        size = 1 << (len(batch.seqs) - 1).bit_length()
        return Dispatch(graph_size=size, padding=size - len(batch.seqs))


class FailingRunner(ToyRunner):
    """Fails once it has written, where it is told to."""

    fails_next = False

    def run(self, batch: ScheduledBatch) -> Any:
        result = super().run(batch)
        if self.fails_next:
            self.fails_next = False
            raise RuntimeError("the device is gone")
        return result
