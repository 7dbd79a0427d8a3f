"""The glossary explains every term that a view uses, and none that no view uses; it is told in Python too."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.error import UsageError

from nvexplore.explore.glossary import GLOSSARY, MAX_TEXT, UnknownTermError, define
from nvexplore.notebook import assets
from nvexplore.notebook.session import Session
from tests.notebook_fakes import Shell

ROOT = Path(__file__).parents[1]
SPELLINGS = {word.lower(): term.name for term in GLOSSARY.values() for word in (term.name, *term.also)}


def words_of_the_views() -> str:
    """All that the views' sources and the explanations that they show may say, a text a line."""
    texts = []
    for path in sorted(assets.widgets_folder().glob("*.js")):
        if path.name != "glossary.js" and not path.name.endswith(".test.js"):
            source = re.sub(r"^(import .*|\s*//.*)$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
            texts += re.findall(r'"(?:[^"\\\n]|\\.)*"|`[^`]*`', source)
    for path in sorted((ROOT / "nvexplore" / "explore").glob("explain*.py")):
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        texts += [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return "\n".join(texts).lower()


def used() -> set[str]:
    """Spellings that the page would find there: the longest ones first, as glossary.js does."""
    ordered = sorted(SPELLINGS, key=lambda word: (-len(word), word))
    found = re.findall(rf"(?<![\w-])({'|'.join(map(re.escape, ordered))})s?(?![\w-])", words_of_the_views())
    return set(found)


def test_every_term_is_used_by_a_view() -> None:
    assert len(GLOSSARY) >= 40
    assert set(GLOSSARY) - {SPELLINGS[word] for word in used()} == set(), "explained, and nobody uses it"


def test_every_other_spelling_is_there_because_a_view_says_so() -> None:
    others = {word.lower() for term in GLOSSARY.values() for word in term.also}
    # What people say who ask the session: names of options and columns, and what the field calls it.
    asked_for = {"max_num_batched_tokens", "block_id", "overlap", "time to first token", "tensor parallelism"}
    assert others - used() == asked_for


@pytest.mark.parametrize("name", GLOSSARY)
def test_a_term_is_explained_in_a_sentence_or_two(name: str) -> None:
    text = GLOSSARY[name].text
    assert 40 <= len(text) <= MAX_TEXT == 300
    assert (text.endswith(".") and text[0].isupper()) or text.startswith("-"), text
    assert text.isprintable() and "  " not in text
    assert define(name) is GLOSSARY[name]


def test_no_spelling_means_two_terms() -> None:
    assert len(SPELLINGS) == sum(1 + len(term.also) for term in GLOSSARY.values())


def test_the_page_gets_the_terms_from_python() -> None:
    last = assets.module_text().rstrip().rsplit("\n", 1)[-1]
    assert last.startswith("learn(") and last.endswith(");")
    told = json.loads(last.removeprefix("learn(").removesuffix(");"))
    assert [(name, text, tuple(also)) for name, text, *also in told] == list(GLOSSARY.values())
    sources = "".join(path.read_text(encoding="utf-8") for path in assets.widgets_folder().glob("*"))
    assert [term.name for term in GLOSSARY.values() if term.text in sources] == [], "no second copy"


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("slots", "slot"),
        ("Slot-mapping", "slot_mapping"),
        ("  chunked   prefill ", "chunked prefill"),
        ("chunked-prefill", "chunked prefill"),
        ("block_tables", "block table"),
        ("budget", "token budget"),
        ("padding", "padding (-1)"),
        ("TTFT", "TTFT"),
        ("cu seqlens k", "cu_seqlens_k"),
    ],
)
def test_a_term_is_found_as_people_write_it(said: str, name: str) -> None:
    assert define(said).name == name


def test_an_unknown_term_names_the_nearest() -> None:
    with pytest.raises(UnknownTermError, match=r"no 'prefix cach', did you mean 'prefix cache'\?"):
        define("prefix cach")
    with pytest.raises(UnknownTermError, match=r"no '###': it knows waiting, running, .*inter-token latency"):
        define("###")


def test_the_session_tells_the_terms() -> None:
    session = Session()  # no model is needed
    assert repr(session.glossary("slots")).startswith(
        "slot: The place of one token's key and value in the pool: block_t"
    )
    assert repr(session.glossary("budget")).endswith("also: budget, max_num_batched_tokens")
    told = session.glossary()
    assert told.headline == f"{len(GLOSSARY)} terms"
    assert told.rows == tuple((term.name, term.text) for term in GLOSSARY.values())


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    shell = Shell(str(tmp_path_factory.mktemp("ipython")))
    shell.run("%load_ext nvexplore")
    yield shell
    shell.close()


def test_the_magic_explains_one_term_or_all(shell: Shell) -> None:
    assert shell.run("%nvx_glossary block table").headline.startswith("block table: The physical blocks of")
    assert shell.run("%nvx_glossary CUDA-graphs").headline.startswith("CUDA graph: ")
    assert len(shell.run("%nvx_glossary").rows) == len(GLOSSARY)
    with pytest.raises(UsageError, match="did you mean 'preemption'"):
        shell.run("%nvx_glossary preemtion")
    shell.run("%nvx_glossary?")
    assert "reach it with Tab and arrows" in " ".join(shell.shown.split())


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("%nvx_glossary cu_", ["cu_seqlens_q", "cu_seqlens_k"]),
        ("%nvx_glossary chunked-", ["chunked-prefill"]),
        ("told = %nvx_glossary TT", ["TTFT"]),
    ],
)
def test_tab_completes_terms(shell: Shell, line: str, names: list[str]) -> None:
    with provisionalcompleter():
        assert [each.text for each in shell.ip.Completer.completions(line, len(line))] == names
    assert [shell.run(f"%nvx_glossary {name}").headline.split(":")[0].replace(" ", "-") for name in names] == names
