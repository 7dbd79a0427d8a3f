"""Finds the browser side (widgets/) and makes the one module text that a widget is given. Knows no Jupyter.

anywidget loads a module from a blob, where nothing can be imported. The sources are plain modules that import each
other by name, so that node can test each alone; here they are put into one scope, in the order of their imports.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./([\w.]+)";\n', re.MULTILINE)
_OTHER_IMPORT = re.compile(r"^\s*import\b|\bimport\s*\(|^export (?:\*|\{)", re.MULTILINE)
_EXPORT = re.compile(r"^export (?!default\b)", re.MULTILINE)


class AssetError(RuntimeError):
    """The browser side is not there, or its sources do not fit into one scope."""


def widgets_folder() -> Path:
    """Where the sources are: inside the package if it was installed from a wheel, else beside it in the checkout."""
    for folder in (PACKAGE / "widgets", PACKAGE.parent / "widgets"):
        if (folder / "store.js").is_file():
            return folder
    raise AssetError(f"the browser side of nvexplore is missing: no widgets/store.js in {PACKAGE} or beside it")


def join_modules(sources: dict[str, str]) -> str:
    """One module from several: ``sources`` maps file name to text, a file after those it imports.

    Raises AssetError for an import that is not of an earlier file by its names, and for a name that two files have.
    """
    parts: list[str] = []
    seen: set[str] = set()
    owner: dict[str, str] = {}
    for name, text in sources.items():
        for imported in _IMPORT.findall(text):
            if imported not in seen:
                raise AssetError(f"{name} imports ./{imported}, which does not come before it")
        text = _IMPORT.sub("", text)
        if _OTHER_IMPORT.search(text):
            raise AssetError(f'{name}: only `import {{ names }} from "./file.js";` can be joined')
        text = _EXPORT.sub("", text)
        for defined in top_level_names(text):
            if defined in owner:
                raise AssetError(f"{name} and {owner[defined]} both define {defined}")
            owner[defined] = name
        seen.add(name)
        parts.append(f"// ---- {name}\n{text}")
    return "\n".join(parts)


def top_level_names(text: str) -> list[str]:
    """Names that a source defines at the left margin, where all top-level definitions stand."""
    names = re.findall(r"^(?:async )?(?:function\*?|class) +(\w+)", text, re.MULTILINE)
    for declared in re.findall(r"^(?:const|let|var) +(.+)", text, re.MULTILINE):
        # `a = 1, b = 2`: a name stands at the start and after each comma at this level.
        depth = 0
        flat = ""
        for character in declared:
            depth += (character in "([{") - (character in ")]}")
            flat += character if depth == 0 else ""
        names += re.findall(r"(?:^|,) *(\w+) *=(?!=)", flat)
    return names


@cache
def module_text() -> str:
    """The Explorer's module: store, kit, every ``*_view.js`` and the glue, whose default export anywidget takes."""
    folder = widgets_folder()
    views = sorted(path.name for path in folder.glob("*_view.js"))
    return join_modules({name: _read(name) for name in ("store.js", "kit.js", *views, "explorer.js")})


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
