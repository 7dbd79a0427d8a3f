"""The bar of a long load: shown from a size on, whole at the end, silent otherwise."""

from __future__ import annotations

import pytest

from nvexplore.progress import LoadProgress


def load(progress: LoadProgress, total: int) -> None:
    for done in range(0, total + 1, total // 4):
        progress(done, total)


def test_a_big_file_shows_a_bar(capsys: pytest.CaptureFixture[str]) -> None:
    load(LoadProgress(at_least=4 << 20), 4 << 20)
    shown = capsys.readouterr().err
    assert shown.startswith("\rload:   0%") and "load: 100%" in shown and "4.00M/4.00M" in shown


@pytest.mark.parametrize(("enabled", "total"), [(True, 4 << 20), (False, 8 << 30)])
def test_small_files_and_those_who_do_not_want_it_show_nothing(
    enabled: bool, total: int, capsys: pytest.CaptureFixture[str]
) -> None:
    load(LoadProgress(enabled), total)
    assert capsys.readouterr().err == ""
