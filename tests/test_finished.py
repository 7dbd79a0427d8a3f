"""No run loses a request that ended in it, a long session stays small, and what is forgotten is told."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from IPython.core.error import UsageError

from nvexplore.notebook import finished as finished_module
from nvexplore.notebook.finished import Finished
from nvexplore.notebook.requests import Request, RequestLog
from nvexplore.notebook.session import Session
from nvexplore.notebook.tally import Tally, describe_run
from tests.notebook_fakes import FakeLLM, Shell

MOST = 20


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finished_module, "MAX_FINISHED", MOST)


def session_with(num_requests: int, **options: Any) -> Session:
    session, llm = Session(), FakeLLM(max_num_seqs=8, **options)
    session.attach(llm)  # type: ignore[arg-type]
    add(session, num_requests)
    return session


def add(session: Session, num_requests: int, name: str = "r") -> None:
    for i in range(num_requests):
        session.add([i + 1, 5], max_tokens=2, request_id=f"{name}{i}")


def names(session: Session) -> list[str]:
    return [request.request_id for request in session.requests]


@pytest.mark.parametrize("overlap", [False, True])
def test_a_run_keeps_all_that_end_in_it(overlap: bool) -> None:
    session = session_with(3 * MOST, overlap=overlap)
    summary = session.run()
    assert len(summary.tally.finished) == len(summary.finished) == len(summary.rows) == 3 * MOST
    assert names(session) == [f"r{i}" for i in range(3 * MOST)]
    assert "forgotten" not in repr(session.requests) + repr(summary)
    first = session.log.find("r0")
    assert first is not None and first.text


def test_a_run_in_parts_forgets_with_each_part_and_says_so() -> None:
    session = session_with(3 * MOST)
    while session.has_work:
        summary = session.run(max_steps=5)
        assert len(summary.finished) == len(summary.tally.finished)
    assert 0 < session.log.finished.num_forgotten == 3 * MOST - len(session.requests)


def test_the_next_run_forgets_the_oldest_and_that_is_told() -> None:
    session = session_with(3 * MOST)
    session.run()
    add(session, 2 * MOST, "s")
    assert len(session.requests) == 5 * MOST, "nothing goes before the next run begins"
    summary = session.run()
    assert len(summary.finished) == 2 * MOST
    assert names(session) == [f"r{i}" for i in range(2 * MOST, 3 * MOST)] + [f"s{i}" for i in range(2 * MOST)]
    told = "40 requests that ended long ago are forgotten: those of the newest run are kept, and 20 more"
    assert told in repr(session.requests) and told in session.requests._repr_html_()
    assert session.log.name(0) == "sequence 0" and session.log.name(3 * MOST - 1) == f"r{3 * MOST - 1}"


def test_many_runs_stay_small() -> None:
    session = session_with(0)
    for number in range(30):
        add(session, 10, f"run{number}-")
        assert len(session.run().finished) == 10
        assert len(session.requests) <= MOST + 10
    assert session.log.finished.num_forgotten == 300 - MOST - 10


def test_single_steps_stay_small() -> None:
    session = session_with(5 * MOST)
    while session.has_work:
        session.step()
        assert sum(request.is_finished for request in session.requests) <= MOST
    assert session.log.finished.num_forgotten == 4 * MOST
    add(session, 1, "last")
    session.run()
    assert len(session.requests) == MOST + 1


@pytest.mark.parametrize("max_num_seqs", [2, 64])
def test_a_live_run_keeps_all_too(max_num_seqs: int) -> None:
    async def live() -> Session:
        session = Session()
        session.attach(FakeLLM(max_num_seqs=max_num_seqs))  # type: ignore[arg-type]
        add(session, 2 * MOST)
        session.run_live()
        await asyncio.sleep(0)
        add(session, MOST, "late")
        await session.runner.done()
        return session

    session = asyncio.run(live())
    assert len(session.requests) == 3 * MOST and not session.log.finished.num_forgotten
    session.step()
    assert len(session.requests) == 3 * MOST, "until another run begins"


def test_a_recording_shows_all_its_requests(tmp_path: Path) -> None:
    session = session_with(3 * MOST)
    session.run()
    session.save(tmp_path / "run.nvx")
    opened = Session()
    opened.open(tmp_path / "run.nvx")
    assert len(opened.requests) == 3 * MOST


def test_a_request_that_is_forgotten_is_not_called_unknown(loaded: Shell) -> None:
    loaded.run("for i in range(60): loaded.session.add([1, 2], max_tokens=1, request_id=f'r{i}')")
    with pytest.raises(UsageError, match=r"^no request nobody$"):
        loaded.run("%nvx_text nobody")
    loaded.run("loaded.session.run()", "loaded.session.run()")
    with pytest.raises(UsageError, match=r"^no request r0 \(40 requests that ended long ago are forgotten: "):
        loaded.run("%nvx_text r0")
    assert "40 requests that ended long ago are forgotten" in repr(loaded.run("%nvx_text"))
    assert "forgotten" not in repr(loaded.run("%nvx_text r59"))


def test_a_summary_whose_requests_are_forgotten_says_how_many() -> None:
    log, tally = RequestLog(), Tally()
    for seq_id in range(MOST + 3):
        log.add(f"r{seq_id}", seq_id, [1])
        log.end(seq_id, "length")
    tally.finished.update(dict.fromkeys(range(MOST + 3)))
    tally.num_steps = 1
    summary = describe_run(tally, 0.0, log)
    assert len(summary.finished) == MOST
    assert any(note.startswith("3 of those that finished are not listed; 3 requests that") for note in summary.notes)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_kept_follows_one_rule(seed: int) -> None:
    """All of the newest run, and of the others the newest; a request is kept or counted, never both."""
    rng, kept = random.Random(seed), Finished()
    order: list[int] = []
    of_run: set[int] = set()
    for _ in range(rng.randint(1, 400)):
        what = rng.random()
        if what < 0.02:
            kept.begin()
            kept.keeps_all, of_run = True, set()
        elif what < 0.05:
            kept.keeps_all = False
        else:
            seq_id = len(order)
            for _ in range(rng.choice([1, 1, 2])):
                kept.add(Request(f"r{seq_id}", seq_id, [], ""))
            order.append(seq_id)
            if kept.keeps_all:
                of_run.add(seq_id)
            if rng.random() < 0.5:
                kept.trim()
        others = [seq_id for seq_id in order if seq_id not in of_run]
        assert set(kept.all()) >= of_run | set(others[max(0, len(others) - MOST) :])
        assert len(kept.all()) + kept.num_forgotten == len(order)
        assert [seq_id for seq_id in order if seq_id in kept] == list(kept.all())
    kept.trim()
    assert len(set(kept.all()) - of_run) == min(MOST, len(order) - len(of_run))
