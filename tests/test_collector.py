"""Runs leave alone what was there before them: frozen while one goes on, thawed after the last."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator

import pytest

from nvexplore.collector import collect_all, few_collections
from nvexplore.engine.sequence import Sequence, SequenceStatus
from nvexplore.generation import run_to_end
from nvexplore.notebook.runner import TaskRunner
from nvexplore.sampling_params import SamplingParams


class Ring:
    """Garbage that only a collection finds."""

    def __init__(self) -> None:
        self.self = self


@pytest.fixture(autouse=True)
def nothing_is_frozen() -> Iterator[None]:
    gc.unfreeze()  # what the interpreter itself has frozen: some hundred objects in Python 3.12
    yield
    assert gc.get_freeze_count() == 0


def test_what_was_there_before_is_left_alone_and_what_comes_is_collected() -> None:
    gone = weakref.ref(Ring())
    with few_collections():
        new = weakref.ref(Ring())
        gc.collect()
        assert new() is None and gone() is not None
        collect_all()
        assert gone() is None and gc.get_freeze_count() > 0, "the run goes on"
    gc.collect()


def test_the_last_of_several_runs_thaws() -> None:
    with pytest.raises(ValueError, match="in the inner one"), few_collections(), few_collections():
        raise ValueError("in the inner one")
    first, second = few_collections(), few_collections()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert gc.get_freeze_count() > 0
    second.__exit__(None, None, None)


def test_what_somebody_else_has_frozen_stays_frozen() -> None:
    gc.freeze()
    try:
        count = gc.get_freeze_count()
        with few_collections():
            pass
        assert gc.get_freeze_count() >= count - 10  # what is freed by its count leaves
    finally:
        gc.unfreeze()


def test_what_an_interpreter_has_frozen_itself_is_nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.12 starts with 375 objects frozen."""
    count = gc.get_freeze_count
    monkeypatch.setattr(gc, "get_freeze_count", lambda: 375)
    with few_collections():
        assert count() > 1000
    assert count() == 0


def test_a_fresh_interpreter_freezes() -> None:
    program = (
        "import gc; from nvexplore.collector import few_collections as few\nwith few(): print(gc.get_freeze_count())"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(ran.stdout) > 1000


def counting(counts: list[int], steps: int) -> TaskRunner:
    """A run of so many steps, each of which counts what is frozen."""
    return TaskRunner(lambda: counts.append(gc.get_freeze_count()), lambda: len(counts) < steps)


def test_runs_of_a_notebook_are_such_runs() -> None:
    blocking, live = list[int](), list[int]()
    counting(blocking, 2).run_blocking()

    async def watch() -> None:
        runner = counting(live, 2)
        runner.run()
        await runner.done()

    asyncio.run(watch())
    assert len(blocking) == len(live) == 2 and all(blocking) and all(live)


def test_whole_prompts_are_such_runs() -> None:
    counts = list[int]()
    seq = Sequence(0, [1], SamplingParams(max_tokens=1), request_id="0")

    def advance() -> None:
        counts.append(gc.get_freeze_count())
        seq.status = SequenceStatus.FINISHED

    run_to_end([seq], advance, False)
    assert len(counts) == 1 and counts[0] > 0
