"""JupyterLab's and Notebook 7's own styles for what a cell puts out do not reach into the views."""

from __future__ import annotations

import pytest

from tests.lab.conftest import Open
from tests.lab.driver import APPS
from tests.lab.test_lab import ADD, LOAD

pytestmark = pytest.mark.lab
PAIRS = """(lists) => lists.flatMap((list) => [...list.querySelectorAll('dt')].map((dt) => {
    const range = document.createRange(), dd = dt.nextElementSibling, [a, b] = [dt, dd].map(
        (el) => el.getBoundingClientRect()), whole = list.getBoundingClientRect();
    range.selectNodeContents(dt);
    return { label: a.width, needs: range.getBoundingClientRect().width, text: b.width, list: whole.width,
        gap: b.left - a.right, lines: Math.abs(a.top - b.top), floats: getComputedStyle(dt).float +
        getComputedStyle(dd).float } }))"""


@pytest.mark.parametrize("app", APPS)
def test_both_texts_where_they_part_stand_beside_their_labels(open_notebook: Open, app: str) -> None:
    """An output's dt and dd float there, with a fifth and four fifths of the width: of our grid's columns."""
    notebook = open_notebook("styles.ipynb", [LOAD, ADD, "%nvx_watch prefix", "%nvx_step -n 6"], app)
    notebook.run_all()
    page = notebook.page
    page.locator(".nvx-prefix[data-step='5']").wait_for()
    step = notebook.python(
        "print(next(r.step for r in loaded.session.explorer.recorder.records if 1 in r.planned.admitted.seq_id))"
    )
    notebook.python(f"loaded.session.explorer.cursor = {step}")
    texts = page.locator(".nvx-miss dl")
    texts.first.wait_for()
    for width in (1280, 848, 480):
        page.set_viewport_size({"width": width, "height": 4000})
        page.wait_for_timeout(300)
        pairs = texts.evaluate_all(PAIRS)
        assert pairs
        for pair in pairs:
            assert pair["floats"] == "nonenone", pair
            assert pair["label"] >= min(pair["needs"], 0.4 * pair["list"]) - 1, f"{width}: cut: {pair}"
            if pair["list"] < 250:  # one below the other
                assert pair["label"] == pair["text"] == pair["list"], f"{width}: all of the width: {pair}"
                continue
            assert 0 <= pair["gap"] <= 12 and pair["lines"] < 6, f"{width}: side by side: {pair}"
            assert abs(pair["label"] + pair["gap"] + pair["text"] - pair["list"]) <= 1, f"{width}: all of it: {pair}"
