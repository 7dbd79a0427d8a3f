"""Prompts reach the engine as they were typed, whatever IPython does to a line (J02)."""

from __future__ import annotations

import pytest
from IPython.core.error import UsageError

from nvexplore.notebook.requests import RequestTable
from tests.notebook_fakes import Shell

VERBATIM = [
    "{12}",
    '{"a": 1}',
    "$x and {x}",
    "{round(9.3)}",
    "$HOME ${x} $$x {{x}} %s %(x)s",
    "What is the capital of France?",
    "Really??",
    "it's open ( and [ and {",
    "\"quoted\" and 'single'",
    "ends with blanks  ",
    "ends with a backslash \\",
    "a; b;",
    "# no comment",
    "two  blanks\tand a tab",
    "--later is -no --option",
    "naïve 日本語 🙂 \u202eabc </script><b>",
    "%nvx_add %%nvx_add !ls",
]


@pytest.mark.parametrize("prompt", VERBATIM)
def test_a_line_reaches_the_engine_as_it_was_typed(loaded: Shell, prompt: str) -> None:
    loaded.run("x = 'EXPANDED'")
    option = "-- " if prompt.startswith("-") else ""
    request = loaded.run(f"%nvx_add {option}{prompt}")
    assert request.prompt == prompt
    assert bytes(request.prompt_token_ids).decode() == prompt
    assert loaded.run(f"r = %nvx_add {option}{prompt}\nr").prompt == prompt


@pytest.mark.parametrize("prompt", VERBATIM)
def test_a_cell_reaches_the_engine_as_it_was_typed(loaded: Shell, prompt: str) -> None:
    loaded.run("x = 'EXPANDED'")
    body = f"{prompt}\n\n  indented {prompt}\n%nvx_add no magic?"
    assert loaded.run(f"%%nvx_add --max-tokens 3\n{body}").prompt == body


def test_lines_of_prompts_inside_other_code(loaded: Shell) -> None:
    loaded.run("for _ in range(2):\n    %nvx_add Who was she?\n    %nvx_add it's (\nlast = %nvx_add Over?")
    prompts = [request.prompt for request in loaded["session"].requests]
    assert prompts == ["Who was she?", "it's (", "Who was she?", "it's (", "Over?"]
    # A string that merely looks like it, and the question that asks for help.
    assert loaded.run("'''\n%nvx_add Who?\n'''") == "\n%nvx_add Who?\n"
    loaded.run("%nvx_add?")
    assert "Queue a prompt" in loaded.ip.find_line_magic("nvx_add").__doc__
    assert len(loaded["session"].requests) == 5


def test_prompts_from_variables(loaded: Shell) -> None:
    loaded.run("text = 'from {here}'; ids = [1, 2, 3]; texts = ['a', 'bc']")
    assert loaded.run("%nvx_add --var text").prompt == "from {here}"
    assert loaded.run("%nvx_add --var ids").prompt_token_ids == [1, 2, 3]
    both = loaded.run("%nvx_add --id t --var texts")
    assert [(r.request_id, r.prompt) for r in both] == [("t-0", "a"), ("t-1", "bc")]
    local = "def f():\n    inside = 'local'\n    return get_ipython().run_line_magic('nvx_add', '--var inside')\nf()"
    assert loaded.run(local).prompt == "local"


def test_a_cell_of_many_prompts(loaded: Shell) -> None:
    with pytest.raises(UsageError, match="a live request has this id"):
        loaded.run("taken = %nvx_add --id q-1 x", "%%nvx_add --each-line --id q\none\ntwo\n")
    assert list(loaded["llm"].engine.live) == ["q-1"]  # all or none
    loaded.run("%nvx_abort q-1")
    lines = loaded.run("%%nvx_add --each-line --id q\none\n\n  two?\n")
    assert isinstance(lines, RequestTable)
    assert [(r.request_id, r.prompt) for r in lines] == [("q-0", "one"), ("q-1", "  two?")]
    paragraphs = loaded.run("%%nvx_add --each-paragraph\none\nmore\n\n \ntwo\n")
    assert [r.prompt for r in paragraphs] == ["one\nmore", "two"]
    assert loaded.run("%%nvx_add\nkept\n\n").prompt == "kept\n"
