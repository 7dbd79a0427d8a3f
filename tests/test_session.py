"""A session in plain Python, interrupts, and event loops (J04, J13, J17)."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nvexplore.engine.policy import Policy
from nvexplore.explore.until import Until
from nvexplore.notebook.errors import SessionError
from nvexplore.notebook.session import Session
from nvexplore.toy import make_toy
from tests.comms import RecordedComm, recorded_comms
from tests.fakes import check_invariants, unconstrained
from tests.notebook_fakes import FakeLLM


@pytest.fixture(autouse=True)
def fake_llm(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "real" not in request.node.name:
        monkeypatch.setattr("nvexplore.llm.LLM", FakeLLM)
        monkeypatch.setattr(FakeLLM, "made", [])


@pytest.fixture
def comms() -> Iterator[list[RecordedComm]]:
    import ipywidgets

    with recorded_comms() as made:
        yield made
    ipywidgets.Widget.close_all()


def said(session: Session) -> dict[str, list[int]]:
    return {request.request_id: request.token_ids for request in session.requests}


def test_a_session_without_a_shell() -> None:
    session = Session()
    assert repr(session) == "Session(no model is loaded)"
    with pytest.raises(SessionError, match="no model is loaded"):
        session.step()
    llm = session.load("demo")
    request = session.add("hello", max_tokens=3, request_id="r")
    assert "would run 1 prefill chunk of 5 tokens" in session.peek().headline
    assert session.step().record.step == 0
    assert session.run().finished == (request,)
    assert request.token_ids == unconstrained(list(b"hello"), 3)
    assert session.frame("steps")["step"].tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="no frame 'all'"):
        session.frame("all")
    with pytest.raises(ValueError, match="no plot 'all'"):
        session.plot("all")
    with pytest.raises(ValueError, match="no view 'tokens'"):
        session.watch("tokens")
    assert repr(session) == "Session(demo, idle)"
    session.close()
    session.close()
    assert llm.is_closed


def test_an_llm_made_elsewhere() -> None:
    llm: Any = FakeLLM()
    seq = llm.add_request("made before", None, request_id="early")
    llm.step()
    session = Session()
    session.attach(llm)
    llm.add_request("made by hand", None, request_id="hand")
    session.run(max_steps=4)
    assert [request.request_id for request in session.requests] == ["early", "hand"]
    assert session.requests[0].token_ids == seq.completion_token_ids
    assert session.requests[0].text == llm.tokenizer.decode(seq.completion_token_ids)
    session.close()
    assert llm.is_closed


def test_the_log_is_the_engine_through_preemptions_and_aborts() -> None:
    session = Session()
    llm = session.load(num_kvcache_blocks=8, max_num_batched_tokens=8)
    prompts = {name: name * 6 for name in "abcdef"}
    for name, prompt in prompts.items():
        session.add(prompt, max_tokens=14, request_id=name)
    session.abort("c")
    while session.has_work:
        session.run(max_steps=3)
        session.abort("e")
        live = llm.engine.live
        for request in session.requests:
            if not request.is_finished:
                seq = live[request.request_id]
                assert (request.status, request.token_ids) == (seq.status, seq.completion_token_ids)
                assert request.num_preemptions == seq.num_preemptions
                assert request.num_cached_tokens in (seq.num_cached_tokens, request.num_cached_tokens)
    assert sum(request.num_preemptions for request in session.requests) > 0
    status = {request.request_id: request.status for request in session.requests}
    assert status == dict.fromkeys("abdf", "length") | dict.fromkeys("ce", "abort")
    for name in "abdf":
        assert said(session)[name] == unconstrained(list(prompts[name].encode()), 14)


@pytest.mark.parametrize("stage", ["begin", "write", "end"])
def test_an_interrupted_run_goes_on_where_it_was(stage: str) -> None:
    """J04: the requests stay, since they were asked for by hand; not a token is lost or made twice."""
    countdown = [7]

    def interrupt(now: str) -> None:
        if now == stage:
            countdown[0] -= 1
            if countdown[0] == 0:
                raise KeyboardInterrupt

    session = Session()
    llm = session.load(interrupt=interrupt)
    session.add("first prompt", max_tokens=8, request_id="a")
    session.add("second", max_tokens=8, request_id="b")
    with pytest.raises(KeyboardInterrupt):
        session.run()
    assert session.runner.status == "paused"
    check_invariants(llm.engine)
    session.run()
    assert said(session) == {
        "a": unconstrained(list(b"first prompt"), 8),
        "b": unconstrained(list(b"second"), 8),
    }
    assert len(session.frame("steps")) == llm.engine.next_step


def test_an_interrupt_while_the_views_are_told_changes_nothing(comms: list[RecordedComm]) -> None:
    """J04 (d): in the callback that shows progress."""
    session = Session()
    session.load()
    explorer = session.explorer
    explorer.start()
    push, calls = explorer.push, [0]

    def push_or_interrupt(item: Any) -> None:
        calls[0] += 1
        if calls[0] == 4:
            raise KeyboardInterrupt
        push(item)

    subscription = session.llm.engine.subscribe(push_or_interrupt)  # type: ignore[union-attr]
    session.add("hello", max_tokens=9, request_id="a")
    with pytest.raises(KeyboardInterrupt):
        session.run()
    session.run()
    subscription.close()
    assert said(session) == {"a": unconstrained(list(b"hello"), 9)}
    assert len(session.frame("steps")) == 9


def test_everything_synchronous_works_inside_a_running_loop(comms: list[RecordedComm]) -> None:
    """J17: no asyncio.run, no nested loop, in what is not a coroutine."""

    async def cell() -> None:
        session = Session()
        session.load()
        request = session.add("hello", max_tokens=6)
        session.peek()
        session.step()
        session.run(max_steps=2)
        session.watch()
        session.run()
        session.frame("sequences")
        session.plot("memory")
        assert request.token_ids == unconstrained(list(b"hello"), 6)
        session.close()

    asyncio.run(cell())


def test_plots_do_not_pile_up() -> None:
    """J13: fifty plots, and pyplot was never asked for one."""
    import matplotlib.pyplot as plt

    session = Session()
    session.load()
    session.add("hello", max_tokens=4)
    session.run()
    figures = [weakref.ref(session.plot("memory")) for _ in range(10)]
    gc.collect()
    assert plt.get_fignums() == []
    assert not [ref for ref in figures if ref() is not None]


def test_a_real_model(tmp_path: Path) -> None:
    session = Session()
    llm = session.load(str(make_toy(tmp_path / "toy")), num_kvcache_blocks=16, max_num_batched_tokens=12)
    llm_ref = weakref.ref(llm)
    session.add("the same words, and then", max_tokens=12, request_id="a", ignore_eos=True)
    session.add("the same words, and then more", max_tokens=12, request_id="b", ignore_eos=True)
    summary = session.run()
    assert summary.tally.num_cached_tokens >= 16
    alone = [llm.generate([p], _greedy(12), use_tqdm=False)[0].text for p in ("the same words, and then",)]
    assert [session.requests[0].text] == alone
    session.close()
    assert llm.is_closed
    del llm
    gc.collect()
    assert llm_ref() is None


def test_a_real_llm_steps_by_hand_until_something_happens(tmp_path: Path) -> None:
    from nvexplore.llm import LLM

    with LLM(make_toy(tmp_path / "toy"), num_kvcache_blocks=16, max_num_batched_tokens=12) as llm:
        llm.add_request("the same words, and then", _greedy(12), request_id="a")
        llm.add_request("the same words, and then more", _greedy(12), request_id="b")
        until, found = Until.of("hit,step==30"), []
        for record in llm.steps():
            if (words := until.matches(record)) is not None:
                found.append((record.step, words))
                break
        assert found == [(llm.engine.next_step - 1, "request b took 16 tokens from the prefix cache")]


def _greedy(max_tokens: int) -> Any:
    from nvexplore.sampling_params import SamplingParams

    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)


def test_a_real_run_that_can_do_nothing_ends_and_says_why(tmp_path: Path) -> None:
    """N36: a policy that lets nobody in must not keep a cell busy for ever."""

    class Closed(Policy):
        name = "closed"

        def admission_order(self, waiting: Any) -> Any:
            return ()

    session = Session()
    session.load(make_toy(tmp_path), policy=Closed(), num_kvcache_blocks=8, max_model_len=64)
    session.add("ab", max_tokens=8)
    with pytest.raises(RuntimeError, match="policy 'closed' admits none of 1 unfinished requests"):
        session.run()
    session.close()
