"""Closing an LLM while others use it: a step ends first, whoever goes on is told, and nobody waits for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from nvexplore import LLM, SamplingParams
from nvexplore.notebook.session import Session
from nvexplore.toy import make_toy
from tests.conftest import RunPython

LONG = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)
CLOSED = "this LLM is closed; make a new one"


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return make_toy(tmp_path_factory.mktemp("toy") / "qwen3", "qwen3")


@pytest.fixture(params=[False, True], ids=["in turn", "overlapped"])
def llm(toy: Path, request: pytest.FixtureRequest) -> Iterator[LLM]:
    with LLM(toy, num_kvcache_blocks=64, max_model_len=512, overlap=request.param) as llm:
        yield llm


class Worker(threading.Thread):
    """Runs ``call`` until it raises or returns."""

    def __init__(self, call: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self.call = call
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.call()
        except BaseException as error:
            self.error = error


def generate(llm: LLM) -> object:
    return llm.generate(["abc", "xyz"], LONG, use_tqdm=False)


def stream(llm: LLM) -> object:
    return list(llm.stream("abc", LONG))


def steps(llm: LLM) -> object:
    llm.add_request("abc", LONG)
    return list(llm.steps())


@pytest.mark.parametrize("use", [generate, stream, steps])
def test_close_from_another_thread_in_mid_step(llm: LLM, use: Callable[[LLM], object]) -> None:
    """The step that runs has model and pool to its end; the thread that asked for it is told at its next one."""
    runner: Any = llm.runner
    launch, is_inside, may_go_on = runner.launch, threading.Event(), threading.Event()
    seen: list[bool] = []

    def slow(*args: Any) -> Any:
        is_inside.set()
        assert may_go_on.wait(30)
        seen.append(hasattr(runner, "model"))
        return launch(*args)

    runner.launch = slow
    worker = Worker(lambda: use(llm))
    assert is_inside.wait(30)
    closer = Worker(llm.close)
    closer.join(0.2)
    assert closer.is_alive()  # it waits for the step
    assert llm.is_closed  # and nobody begins anything new
    may_go_on.set()
    closer.join(30)
    worker.join(30)
    assert not closer.is_alive() and not worker.is_alive()
    assert closer.error is None and all(seen)
    assert isinstance(worker.error, RuntimeError) and str(worker.error) == CLOSED
    assert not hasattr(runner, "model") and llm.runner is None


@pytest.mark.parametrize("use", [generate, stream, steps])
def test_close_at_any_moment_of_other_threads(toy: Path, use: Callable[[LLM], object]) -> None:
    for number in range(6):
        llm = LLM(toy, num_kvcache_blocks=64, max_model_len=512, overlap=number % 2 == 1)
        has_begun = threading.Event()
        llm.engine.subscribe(lambda _, has_begun=has_begun: has_begun.set())
        workers = [Worker(lambda llm=llm: use(llm)) for _ in range(2)]
        assert has_begun.wait(30)
        closers = [Worker(llm.close) for _ in range(2)]
        for thread in (*closers, *workers):
            thread.join(30)
            assert not thread.is_alive()
        assert [closer.error for closer in closers] == [None, None]
        for worker in workers:
            assert isinstance(worker.error, RuntimeError) and str(worker.error) == CLOSED
        assert llm.runner is None


def test_close_between_the_calls_of_others(llm: LLM) -> None:
    deltas = llm.stream("abc", LONG)
    next(deltas)
    records = llm.steps()
    next(records)
    Worker(llm.close).join(30)
    for iterator in (deltas, records):
        with pytest.raises(RuntimeError, match=CLOSED):
            list(iterator)  # type: ignore[call-overload]


def test_close_from_a_callback_of_the_same_thread(llm: LLM) -> None:
    """Whoever is told of a step may close: on the thread that holds the lock."""
    told = []

    def push(item: object) -> None:
        told.append(item)
        if len(told) == 5:
            llm.close()

    llm.engine.subscribe(push)
    worker = Worker(lambda: generate(llm))
    worker.join(30)
    assert not worker.is_alive()
    assert isinstance(worker.error, RuntimeError) and str(worker.error) == CLOSED
    assert llm.is_closed and llm.runner is None


def test_an_interrupted_close_can_be_done_again(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    runner: Any = llm.runner

    def interrupted() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(runner, "close", interrupted)
        with pytest.raises(KeyboardInterrupt):
            llm.close()
    assert llm.is_closed and hasattr(runner, "model")
    llm.close()
    assert llm.runner is None and not hasattr(runner, "model")


def test_a_session_closes_while_another_thread_generates(llm: LLM) -> None:
    session = Session()
    session.attach(llm)
    has_begun = threading.Event()
    llm.engine.subscribe(lambda _: has_begun.set())
    worker = Worker(lambda: generate(llm))
    assert has_begun.wait(30)
    closer = Worker(session.close)
    closer.join(30)
    worker.join(30)
    assert not closer.is_alive() and not worker.is_alive() and closer.error is None
    assert isinstance(worker.error, RuntimeError) and str(worker.error) == CLOSED


@pytest.mark.parametrize("is_daemon", [True, False])
def test_the_interpreter_ends_while_another_thread_generates(toy: Path, is_daemon: bool, run_python: RunPython) -> None:
    """With a close at exit, which a daemon thread in mid-step must not hold up."""
    out = run_python(
        "import atexit, threading\n"
        "from nvexplore import LLM, SamplingParams\n"
        f"llm = LLM({str(toy)!r}, num_kvcache_blocks=64, max_model_len=512)\n"
        "begun = threading.Event()\n"
        "llm.engine.subscribe(lambda _: begun.set())\n"
        "def work():\n"
        "    params = SamplingParams(max_tokens=400, ignore_eos=True)\n"
        "    try: llm.generate(['abc'], params, use_tqdm=False)\n"
        "    except RuntimeError as error: print(error)\n"
        f"threading.Thread(target=work, daemon={is_daemon}).start()\n"
        "assert begun.wait(30)\n"
        "atexit.register(lambda: (llm.close(), print('end')))\n"
    )
    lines = out.strip().splitlines()
    assert "end" in lines and set(lines) <= {"end", CLOSED}
