"""``%nvx_*?``: the manuals of all magics at once. IPython's own wildcards look at variables only."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Any

from IPython.core import page

_LINE = re.compile(r"\s*\?{0,2}\s*%{0,2}(nvx_[\w*]*\*[\w*]*)\s*\?{0,2}\s*")
_CALL = "__import__('nvexplore.notebook.manual', fromlist=['manual']).show_manuals(get_ipython(), {!r})\n"


class ManualLines:
    """An input transformer: a cell ``%nvx_*?``, or another name with stars, becomes a call that shows the manuals."""

    def __call__(self, lines: list[str]) -> list[str]:
        found = _LINE.fullmatch(lines[0]) if len(lines) == 1 and "?" in lines[0] else None
        return lines if found is None else [_CALL.format(found[1])]


def show_manuals(shell: Any, pattern: str) -> None:
    """Page the manuals of those nvx magics whose names match."""
    magics = shell.magics_manager.magics["line"]
    texts = [magics[name].__doc__.strip() for name in sorted(magics) if fnmatchcase(name, pattern)]
    page.page("\n\n\n".join(texts) or f"there is no magic %{pattern}")
