"""Pause in a real kernel of the installed ipykernel: no step begins after the click has arrived, and it is soon told.

``python -m tests.kernel_pause 6.31 7.4`` does the same for others.
"""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from tests.kernel_pause import MOST_S, STEP_S, kernel, pauses


def test_pause_is_obeyed_before_the_next_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    with kernel() as page:
        found = pauses(page, 4)
        if page.use_subshell():  # where the installed ipykernel has them, clicks arrive on any thread
            found += pauses(page, 4)
    assert [pause.num_after for pause in found] == [0] * len(found)
    # In steps, which a busy machine does not change: the one that was under way, and at most so many that began.
    assert max(pause.num_between for pause in found) <= MOST_S // STEP_S - 1
    assert statistics.median(pause.told for pause in found) < MOST_S
