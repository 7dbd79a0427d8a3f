"""Finds the browser side (widgets/) and makes the one module text that a widget is given. Knows no Jupyter.

anywidget loads a module from a blob, where nothing can be imported. The sources are plain modules that import each
other by name, so that node can test each alone; here they are put into one scope, in the order of their imports.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

from nvexplore.explore.glossary import GLOSSARY

PACKAGE = Path(__file__).resolve().parents[1]
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./([\w.]+)";\n', re.MULTILINE)
_OTHER = re.compile(r"^\s*import\b|\bimport\s*\(|^export (?:\*|\{)", re.MULTILINE)
_TEXT_OR_COMMENT = re.compile(r'"(?:[^"\\\n]|\\.)*"|`[^`]*`|//.*')
_EXPORT = re.compile(r"^export (?!default\b)", re.MULTILINE)


class AssetError(RuntimeError):
    """The browser side is not there, or its sources do not fit into one scope."""


def widgets_folder() -> Path:
    """Where the sources are: inside the package if it was installed from a wheel, else beside it in the checkout."""
    for folder in (PACKAGE / "widgets", PACKAGE.parent / "widgets"):
        if (folder / "store.js").is_file():
            return folder
    raise AssetError(f"the browser side of nvexplore is missing: no widgets/store.js in {PACKAGE} or beside it")


def in_order(names: list[str], read: Callable[[str], str]) -> dict[str, str]:
    """The sources ``names`` and all they import, each after those it imports."""
    sources: dict[str, str] = {}
    under_way: list[str] = []

    def visit(name: str) -> None:
        if name in under_way:
            raise AssetError(f"{name} imports itself, by way of {', '.join(under_way)}")
        if name not in sources:
            under_way.append(name)
            text = read(name)
            for imported in _IMPORT.findall(text):
                visit(imported)
            under_way.pop()
            sources[name] = text

    for name in names:
        visit(name)
    return sources


def join_modules(sources: dict[str, str]) -> str:
    """One module from several, which ``in_order`` has ordered.

    Raises AssetError for an import or export of another form, and for a name that two files define.
    """
    parts: list[str] = []
    owner: dict[str, str] = {}
    for name, source in sources.items():
        text = _IMPORT.sub("", source)
        if _OTHER.search(text):
            raise AssetError(
                f'{name}: only `import {{ names }} from "./file.js";` and `export` before a definition fit'
            )
        text = _EXPORT.sub("", text)
        for defined in top_level_names(text):
            if defined in owner:
                raise AssetError(f"{name} and {owner[defined]} both define {defined}")
            owner[defined] = name
        parts.append(f"// ---- {name}\n{text}")
    return "\n".join(parts)


def top_level_names(text: str) -> list[str]:
    """Names that a source defines at the left margin, where all top-level definitions stand."""
    text = _TEXT_OR_COMMENT.sub(lambda found: "" if found[0].startswith("//") else "0", text)
    names = re.findall(r"^(?:async )?(?:function\*?|class) +(\w+)", text, re.MULTILINE)
    # A declaration goes on in the lines behind it that are indented.
    for declared in re.findall(r"^(?:const|let|var) +(.+(?:\n[ \t]+.*)*)", text, re.MULTILINE):
        # `a = 1, b = 2`: a name stands at the start and after each comma at this level.
        depth = 0
        flat = ""
        for character in declared:
            depth += (character in "([{") - (character in ")]}")
            flat += character if depth == 0 else ""
        names += re.findall(r"(?:^|,)\s*(\w+) *=(?!=)", flat)
    return names


@cache
def module_text() -> str:
    """The Explorer's module: every ``*_view.js``, the glue whose default export anywidget takes, and the glossary."""
    views = sorted(path.name for path in widgets_folder().glob("*_view.js"))
    joined = join_modules(in_order([*views, "explorer.js"], _read))
    return f"{joined}\n// ---- glossary.py\nlearn({json.dumps(glossary_rows())});\n"


def glossary_rows() -> list[list[str]]:
    """The terms as the page takes them (``learn`` in glossary.js): the name, what it means, and other spellings."""
    return [[term.name, term.text, *term.also] for term in GLOSSARY.values()]


@cache
def view_text() -> str:
    """A single view's module: it finds its Explorer in the page and holds nothing else."""
    return _read("mount.js")


@cache
def style_text() -> str:
    """The style sheet of all views."""
    return _read("views.css")


def _read(name: str) -> str:
    return (widgets_folder() / name).read_text(encoding="utf-8")
