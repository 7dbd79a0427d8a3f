"""What becomes of a request is known at once, also where no step tells of it: ended by hand, cut off, closed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from nvexplore import LLM, SamplingParams
from nvexplore.notebook.session import Session
from nvexplore.toy import make_toy
from tests.notebook_fakes import FakeLLM, Shell


def statuses(session: Session) -> dict[str, str]:
    return {request.request_id: request.status for request in session.requests}


@pytest.fixture(params=["", "--overlap"], ids=["in turn", "overlapped"])
def session(shell: Shell, request: pytest.FixtureRequest) -> Session:
    """Three requests in different states, and one that has ended."""
    shell.run(f"loaded = %nvx_load {request.param} -o llm", "%nvx_add --id ended --max-tokens 1 x", "%nvx_run")
    shell.run("%nvx_add --id a --max-tokens 20 abc", "%nvx_add --id b --max-tokens 20 bcd", "%nvx_step")
    shell.run("%nvx_add --id new --max-tokens 20 x")
    session: Session = shell["loaded"].session
    return session


def test_who_is_ended_by_hand_is_not_shown_as_going_on(session: Session) -> None:
    before = {"ended": "length", "a": "decode", "b": "decode", "new": "waiting"}
    assert statuses(session) == before
    llm: Any = session.llm
    assert llm.abort("a") and llm.abort("new")
    assert statuses(session) == before | {"a": "abort", "new": "abort"}
    assert session.requests.summary().headline == "4 requests, 1 unfinished"
    session.run()
    assert statuses(session) == before | {"a": "abort", "b": "length", "new": "abort"}
    assert session.log.unfinished() == set()


def test_a_record_that_tells_later_is_believed(session: Session) -> None:
    """Who has left the engine may have finished, in a step of which the log has not been told yet."""
    (a,) = (request for request in session.requests if request.request_id == "a")
    session.log.note_gone({a.seq_id}, "abort")
    assert a.status == "abort"
    session.run()
    assert (a.status, len(a.token_ids)) == ("length", 20)
    session.log.note_gone({a.seq_id}, "abort")
    assert a.status == "length"


@pytest.mark.parametrize(
    "how", ["%nvx_close", "%nvx_load other", "loaded.session.llm.close()", "%unload_ext nvexplore"]
)
def test_what_is_unfinished_when_its_model_is_closed_is_closed(shell: Shell, session: Session, how: str) -> None:
    requests = {request.request_id: request for request in session.requests}
    assert session.llm is not None
    session.llm.abort("b")
    texts = [request.text for request in requests.values()]
    shell.run(how)
    table = list(session.requests)
    if how == "%nvx_load other":
        assert table == []  # the new model's
    else:
        assert table == list(requests.values())
    expected = {"ended": "length", "a": "closed", "b": "closed", "new": "closed"}
    if "llm.close" not in how:  # of a model that somebody else has closed no more can be asked
        expected["b"] = "abort"
    assert {name: request.status for name, request in requests.items()} == expected
    assert [request.text for request in requests.values()] == texts
    assert all(request.is_finished for request in requests.values())
    if how == "%unload_ext nvexplore":
        shell.run("%load_ext nvexplore")


def test_a_load_that_fails_closes_them_too(shell: Shell, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: FakeLLM, *args: object, **options: object) -> None:
        raise ValueError("no room")

    monkeypatch.setattr(FakeLLM, "__init__", fail)
    with pytest.raises(ValueError, match="no room"):
        session.load("other")
    assert set(statuses(session).values()) == {"length", "closed"}
    assert "0 unfinished" in repr(shell.run("%nvx_text"))


def test_a_recordings_requests_are_as_they_were(shell: Shell, session: Session, tmp_path: Path) -> None:
    """They have a life of their own, which no model's end touches."""
    session.step()  # it tells of the newest one too
    before = statuses(session)
    session.save(tmp_path / "run.nvx")
    session.open(tmp_path / "run.nvx")
    assert statuses(session) == before
    session.close()
    assert statuses(session) == before
    assert "3 unfinished" in session.requests.summary().headline


@pytest.fixture
def llm(tmp_path: Path) -> Iterator[LLM]:
    torch.set_num_threads(1)
    with LLM(make_toy(tmp_path / "toy"), num_kvcache_blocks=16, max_model_len=64) as llm:
        yield llm


def test_a_generate_that_is_interrupted_leaves_nobody_unfinished(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session()
    session.attach(llm)
    advance, made = llm.advance, []

    def cut() -> None:
        if len(made) == 3:
            raise KeyboardInterrupt
        made.append(advance())

    monkeypatch.setattr(llm, "advance", cut)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["abc", "xyz"], SamplingParams(temperature=0, max_tokens=30, ignore_eos=True), use_tqdm=False)
    assert [request.status for request in session.requests] == ["abort", "abort"]
    assert all(request.token_ids for request in session.requests)
