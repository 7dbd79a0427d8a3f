"""The base of the displayed views: a name and an Explorer. Knows no data; the page finds it in the Explorer's store."""

from __future__ import annotations

import re
from typing import Any

import anywidget
import traitlets as t
from ipywidgets import widget_serialization

from nvexplore.notebook import assets, rerun
from nvexplore.notebook.explorer import Explorer


class View(anywidget.AnyWidget):
    """One view of an Explorer. A subclass named ``BlockView`` shows what widgets/block_view.js mounts.

    Run in the same cell again it takes the place of the one before, which is closed.
    """

    _esm = t.Unicode().tag(sync=True)
    explorer = t.Instance(Explorer).tag(sync=True, **widget_serialization)
    key = t.Unicode().tag(sync=True)
    view = t.Unicode().tag(sync=True)

    def __init__(self, explorer: Explorer) -> None:
        name = type(self).__name__
        file = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
        super().__init__(explorer=explorer, key=explorer.key, view=file, _esm=assets.view_text())
        explorer.add_view(self)
        rerun.close_previous(self, name)

    def close(self) -> None:
        """Leave the page and the kernel; the Explorer and its other views stay."""
        layout = self.layout
        super().close()
        layout.close()

    def __repr__(self) -> str:
        return f"{self._anywidget_id.rpartition('.')[2]} of {self.explorer!r}"

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        self.explorer.start()
        return super()._repr_mimebundle_(**kwargs)
