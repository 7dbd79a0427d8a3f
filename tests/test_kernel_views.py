"""Views in a real kernel: what they cost is counted rightly, and a flood of steps ends with the last one shown."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from nvexplore.toy import make_toy
from tests.kernel_flood import flood
from tests.kernel_views import MOST_MESSAGES, measure, problems, report
from tests.page_stand_in import Sent, counted, most_in_a_second

STEPS = 3_000
MOST_LAG_S = 2.0  # on a machine with other work: from sending to arrival
MOST_IDLE_S = 30.0  # a cell ends by drawing images of what is displayed, for the notebook's file
pytestmark = pytest.mark.filterwarnings("default")  # what a kernel's client warns of is not of this project


@pytest.fixture(autouse=True)
def _own_history(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")


def test_messages_are_counted_in_any_second() -> None:
    times = [0.0, 0.4, 0.9, 1.0, 1.1, 5.0]
    messages = [Sent(when, 10, "frame" if when == 5.0 else "delta") for when in times]
    assert most_in_a_second(messages) == 4, "from 0.4 to 1.1, and a second after 0.0 is another second"
    assert most_in_a_second([]) == 0
    assert counted(messages) == {
        "messages": {"delta": 5, "frame": 1},
        "bytes": 60,
        "messages_a_second": 1.2,
        "most_in_a_second": 4,
        "max_lag": 0.0,
    }


def test_the_report_compares_medians_and_names_what_does_not_hold() -> None:
    blocking = [{"tokens": 100, "seconds": seconds} for seconds in (1.0, 2.0, 4.0)]
    run: dict[str, Any] = {"last_step": 7, "last_step_shown": 7, "most_in_a_second": MOST_MESSAGES}
    watched = [run | {"tokens": 100, "seconds": seconds} for seconds in (2.5, 2.5, 1.0)]
    told = report(blocking, watched) | {"gaps": 0, "errors": []}
    assert told["ratio"] == 0.8 and told["generate_tokens_a_second"] == [100, 50, 25]
    assert problems(told) == []
    late = run | {"last_step_shown": 6, "most_in_a_second": MOST_MESSAGES + 1}
    told |= {"runs": [run, late], "gaps": 2, "errors": ["why_view: no"], "most_in_a_second": MOST_MESSAGES + 1}
    found = "; ".join(problems(told))
    assert all(word in found for word in ("why_view: no", "2 messages did not", "31 messages in", "step 6 is shown"))


@pytest.mark.slow
def test_the_benchmark_runs_under_all_views_in_a_kernel(tmp_path: Path) -> None:
    toy = make_toy(tmp_path / "toy", "qwen3")
    told = asyncio.run(measure(str(toy), 0.01, 1))
    assert problems(told) == []
    (run,) = told["runs"]
    assert run["tokens"] > 4 and {"frame", "delta", "answer"} <= set(run["messages"])
    assert run["bytes"] > 1_000 and told["ratio"] > 0 and "all" in told["views"]


@pytest.mark.slow
def test_a_flood_of_steps_ends_idle_with_the_last_step_shown() -> None:
    for told in asyncio.run(flood(STEPS)):
        assert told["shown"] == told["next_step"] and told["is_frame_last"] and told["gaps"] == 0, told
        assert told["max_lag"] < MOST_LAG_S and told["idle_after"] < MOST_IDLE_S, told
        assert told["most_in_a_second"] <= MOST_MESSAGES, told
