"""What the magics tell of themselves: manuals with examples that work, and tab completion."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from IPython.core.completer import provisionalcompleter

from nvexplore.notebook.display import VIEWS
from tests.comms import RecordedComm, recorded_comms
from tests.notebook_fakes import Shell


@pytest.fixture
def comms() -> Iterator[list[RecordedComm]]:
    import ipywidgets

    with recorded_comms() as made:
        yield made
    ipywidgets.Widget.close_all()


def test_the_example_in_each_manual_works(
    loaded: Shell, comms: list[RecordedComm], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table = loaded.ip.magics_manager.magics["line"]
    examples = {
        name: re.findall(rf"^ +((?:\w+ = )?%{name}\b.*)$", table[name].__doc__.split("Example::")[1], re.MULTILINE)
        for name in sorted(table)
        if name.startswith("nvx_")
    }
    assert all(examples.values()), examples
    order = (
        "load",
        "add",
        "watch",
        "peek",
        "step",
        "run",
        "frame",
        "plot",
        "glossary",
        "text",
        "pause",
        "abort",
        "save",
        "open",
        "close",
    )
    assert sorted(examples) == sorted(f"nvx_{name}" for name in order)

    def in_a_loop(cell: str) -> Any:
        async def run() -> Any:
            result = loaded.run(cell)
            if "--live" in cell:
                await loaded["session"].runner.done()
            return result

        return asyncio.run(run())

    for name in order:
        for example in examples[f"nvx_{name}"]:
            if name == "abort":
                loaded.run("%nvx_add --id story Once")
            elif name == "run":
                loaded.run("%nvx_add Once")
            in_a_loop(example)
    assert loaded["plan"].planned.seq_id == [0]


def test_a_star_shows_all_manuals(loaded: Shell) -> None:
    loaded.run("%nvx_*?")
    for name in ("nvx_load", "nvx_add", "nvx_watch", "nvx_close"):
        assert f"::\n\n  %{name}" in loaded.shown
    for cell in ("%nvx_p*?", "?nvx_p*", "%%nvx_*p*k??"):
        loaded.run(cell)
        assert "%nvx_peek" in loaded.shown
        assert "%nvx_run --until" not in loaded.shown
    loaded.run("%nvx_*x?")
    assert loaded.shown == "there is no magic %nvx_*x\n"
    loaded.run("%nvx_run?")
    assert "preempt (a request was sent back to wait)" in loaded.shown


COMPLETIONS = {
    "%nvx_run --un": ["--until"],
    "%nvx_run ": ["--until", "--live", "--hz"],
    "%nvx_run --until ": ["preempt", "miss", "hit", "finish", "evict", "graph-miss", "step=="],
    "%nvx_step -n 3 --until=preempt,graph-": ["graph-miss"],
    "%nvx_run --hz 3 --until 'num_run": ["num_running"],
    '%nvx_run --until "step > 3 and waiting_': ["waiting_reason"],
    "%nvx_run --until num_run": [],
    "%nvx_run --until preempt --l": ["--live"],
    "table = %nvx_frame pre": ["prefix_hits"],
    "  %nvx_plot m": ["memory"],
    "%nvx_watch b": ["blocks"],
    "%nvx_text ": ["story", "done", "tale"],
    "%nvx_abort ": ["story", "tale"],
    "%nvx_abort story ta": ["tale"],
    "%nvx_load --policy ": ["prefill_first", "mixed"],
    "%nvx_load --dtype b": ["bfloat16"],
    "%nvx_load --eviction ": ["lru", "lfu"],
    "%nvx_load --kv-cache-dtype f": ["fp8"],
    "%nvx_load --decode-backend t": ["torch", "triton"],
    "%nvx_load --device cu": ["cuda"],
    "%nvx_load --overlap --no-e": ["--no-enable-prefix-caching", "--no-enforce-eager"],
    "%nvx_load d": ["demo"],
    "%nvx_load --option enable_": ["enable_prefix_caching="],
    "%nvx_add --var my_": ["my_prompts"],
    "%%nvx_add --each-": ["--each-line", "--each-paragraph"],
    "%config NvExplore.max": ["NvExplore.max_tokens"],
}


@pytest.mark.parametrize("line", COMPLETIONS)
def test_tab_completes(loaded: Shell, line: str) -> None:
    loaded.run("my_prompts = ['a', 'b']; my_number = 3")
    loaded.run("%nvx_add --id story Once", "%nvx_add --id done --max-tokens 1 x", "%nvx_add --id tale Once")
    loaded.run("%nvx_run --until finish")
    completer = loaded.ip.Completer
    with provisionalcompleter():
        found = [each.text for each in completer.completions(line, len(line))]
    if COMPLETIONS[line]:
        assert found == COMPLETIONS[line]
    else:
        assert not set(found) & {"preempt", "num_running"}


def test_the_manual_of_watch_tells_of_every_view_and_how_to_close_one(loaded: Shell) -> None:
    loaded.run("%nvx_watch?")
    told = dict(re.findall(r"^ *(\w+): +(\w.*)$", loaded.shown, re.MULTILINE))
    assert list(told) == list(VIEWS)
    assert "%nvx_close closes" in " ".join(loaded.shown.split())


def test_a_prompt_is_not_completed(loaded: Shell) -> None:
    from nvexplore.notebook.completion import Completion

    completion = Completion(loaded.ip, loaded["session"])
    assert completion.candidates("%nvx_add --id x --max", "--max") == ["--max-tokens"]
    for line in ("%nvx_add Once upon --max", "nvx = 3 --max", "x = --max", "%nvx_nothing --max", "%time --max"):
        assert completion.candidates(line, "--max") == [], line
