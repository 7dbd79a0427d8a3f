"""What holds for the project as a whole: README against disk, the shape of the files, a quiet import."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest

from tests.conftest import RunPython

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted((ROOT / "nvexplore").rglob("*.py"))
MAX_LINES = 250

# The three worlds and the one direction of their imports: deciding, computing, reading records, showing.
COMPUTES = {"runner", "backends", "layers", "models", "llm"}
MUST_NOT_IMPORT = {
    "engine": COMPUTES | {"explore", "notebook"},
    "runner": {"explore", "notebook"},
    "backends": {"explore", "notebook"},
    "layers": {"explore", "notebook"},
    "models": {"explore", "notebook"},
    "explore": COMPUTES | {"notebook"},
}


def readme_block(name: str) -> str:
    """Return what stands in README.md between ``<!-- name -->`` and ``<!-- /name -->``."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    assert text.count(begin) == 1 and text.count(end) == 1, f"README.md needs {begin} ... {end}"
    return text.split(begin)[1].split(end)[0].strip()


def parse_tree(block: str) -> dict[str, str]:
    """Return path -> description of a fenced tree; a folder's path ends with ``/``.

    Each line is ``name   description`` with at least two spaces between; deeper indentation is nesting, and a
    name may have several parts (``engine/scheduler.py``).
    """
    entries: dict[str, str] = {}
    folders: list[tuple[int, str]] = []  # the folders a line is inside of, with their indentation
    for line in block.splitlines():
        if not line.strip() or line.startswith("```"):
            continue
        indent = len(line) - len(line.lstrip())
        name, _, description = line.strip().partition("  ")
        while folders and folders[-1][0] >= indent:
            folders.pop()
        path = (folders[-1][1] if folders else "") + name
        assert path not in entries, f"{path} is named twice"
        entries[path] = description.strip()
        if name.endswith("/"):
            folders.append((indent, path))
    return entries


def project_files() -> set[str]:
    """Return every file that is in git or would be (new and not ignored)."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {name for name in listed.split("\0") if name and (ROOT / name).is_file()}


def must_be_named(file: str) -> str | None:
    """Return the path under which the tree must name ``file``, or None; for tests/, only the top level."""
    top, *inner = file.split("/")
    if top == "tests":
        return f"tests/{inner[0]}/" if len(inner) > 1 else file
    if top in ("nvexplore", "notebooks", "widgets"):
        # What a package is for is said in the line of its folder.
        return file.removesuffix("__init__.py") if file.endswith("/__init__.py") else file
    return None


def test_the_tree_in_the_readme_is_the_disk() -> None:
    entries, files = parse_tree(readme_block("tree")), project_files()
    expected = {name for file in files if (name := must_be_named(file))}
    assert sorted(expected - set(entries)) == [], "on disk, not in the README"
    gone = {path for path in entries if not (ROOT / path).exists()}
    gone |= {path for path in entries if (ROOT / path).is_dir() != path.endswith("/")}
    assert gone == set(), "in the README, not on disk"
    assert [path for path, description in entries.items() if not description] == [], "named without a word"


def test_a_tree_is_parsed_with_its_nesting() -> None:
    tree = """```
nvexplore/            the package
  engine/             decides
    scheduler.py      who runs
  cli.py              the command
widgets/kit.js        shared drawing
```"""
    assert parse_tree(tree) == {
        "nvexplore/": "the package",
        "nvexplore/engine/": "decides",
        "nvexplore/engine/scheduler.py": "who runs",
        "nvexplore/cli.py": "the command",
        "widgets/kit.js": "shared drawing",
    }


def test_the_options_in_the_readme_are_those_of_the_class() -> None:
    from nvexplore.config import options_table

    assert readme_block("options") == options_table().strip()


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: str(source.relative_to(ROOT)))
def test_a_module_is_short_and_says_what_it_is_for(source: Path) -> None:
    text = source.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MAX_LINES, "is there a second idea inside?"
    assert ast.get_docstring(ast.parse(text)), "a module begins with what it is for"


@pytest.mark.parametrize("world", MUST_NOT_IMPORT)
def test_imports_go_one_way(world: str) -> None:
    wrong = []
    for source in sorted((ROOT / "nvexplore" / world).rglob("*.py")):
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Import | ast.ImportFrom):
                continue
            # Of `from nvexplore import runner` the imported name says which world is meant.
            origin = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            names = [origin + alias.name for alias in node.names]
            for name in names:
                parts = name.split(".")
                if parts[0] == "nvexplore" and len(parts) > 1 and parts[1] in MUST_NOT_IMPORT[world]:
                    wrong.append(f"{source.relative_to(ROOT)}:{node.lineno} imports {name}")
    assert wrong == []


def test_nothing_is_built_into_the_package_folder() -> None:
    # In an editable install such a folder would hide the real one beside the package.
    assert [name for name in ("widgets", "notebooks") if (ROOT / "nvexplore" / name).exists()] == []


HEAVY = ("torch", "triton", "flash_attn", "transformers", "IPython", "ipywidgets", "matplotlib.pyplot")


@pytest.mark.parametrize("module", ["nvexplore", "nvexplore.engine", "nvexplore.explore", "nvexplore.cli"])
def test_an_import_loads_nothing_heavy(module: str, run_python: RunPython) -> None:
    """N27: no GPU or model library at import. J22: no pyplot. And no Jupyter for those who have none."""
    code = f"import {module}, sys; print([name for name in {HEAVY} if name in sys.modules])"
    assert run_python(code, env={"PYTHONPATH": str(ROOT)}) == "[]\n"


def test_an_import_prints_nothing_and_leaves_the_settings_alone(run_python: RunPython) -> None:
    """J22: the backend with all rcParams, pandas options, warnings, logging, random state, default dtype."""
    code = """
import logging, random, signal, sys, warnings
import matplotlib, numpy, pandas, torch

def state():
    return {
        # As plain entries: to look "backend" up the usual way would choose one.
        "rcParams": repr(sorted(dict.items(matplotlib.rcParams))),
        "pandas": pandas.describe_option(_print_desc=False),
        "warnings": repr(warnings.filters),
        "logging": repr((logging.root.handlers, logging.root.level)),
        "random": repr((random.getstate(), numpy.random.get_state(), torch.get_rng_state().tolist())),
        "torch": repr((torch.get_default_dtype(), torch.get_default_device(), torch.is_grad_enabled())),
        "hooks": repr((sys.excepthook, sys.displayhook, signal.getsignal(signal.SIGINT))),
    }

before = state()
import nvexplore, nvexplore.engine, nvexplore.explore
after = state()
print([name for name in before if before[name] != after[name]])
"""
    env = {"PYTHONPATH": str(ROOT), "MPLBACKEND": "module://matplotlib_inline.backend_inline"}
    assert run_python(code, env=env) == "[]\n"
