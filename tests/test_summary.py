"""What magics return as HTML holds prompts and completions: a front end shows them as they are."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest

from nvexplore.notebook.requests import RequestTable
from tests.notebook_fakes import Shell

PRICES = "A pizza is $5 today and it was $10, \\(x\\) \\[y\\] $$z$$"
CELLS = (
    *("%nvx_add --id '$a$' " + PRICES, "%nvx_text", "%nvx_peek", "%nvx_step", "%nvx_run --until step==3", "%nvx_run"),
    *("%nvx_glossary", "%nvx_glossary block", "%nvx_save run.nvx", "%nvx_open run.nvx", "%nvx_load other"),
)


class Uncovered(HTMLParser):
    """The texts outside of every element whose class keeps MathJax off."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[bool] = []
        self.texts: list[str] = []
        self.num_texts = 0
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.open.append("mathjax_ignore" in (dict(attributes).get("class") or "").split())

    def handle_endtag(self, tag: str) -> None:
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.num_texts += 1
        if not any(self.open):
            self.texts.append(data)


def html_of(shown: Any) -> str | None:
    table = RequestTable([shown]) if not hasattr(shown, "_repr_html_") else shown  # a Request alone is plain text
    html: str = table._repr_html_()
    return html


def test_no_prompt_becomes_a_formula(loaded: Shell, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """ "$5 today and it was $10" was typeset, since Jupyter has MathJax go over what is HTML."""
    monkeypatch.chdir(tmp_path)
    for cell in CELLS:
        shown = Uncovered(html_of(loaded.run(cell)) or "")
        assert shown.num_texts and not shown.texts, cell
    assert Uncovered("<p>$x$</p>").texts == ["$x$"]  # it would be seen
