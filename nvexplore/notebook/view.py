"""The base of the displayed views: a name and an Explorer. Knows no data; the page finds it in the Explorer's store."""

from __future__ import annotations

import re
from typing import Any

import anywidget
import traitlets as t
from ipywidgets import widget_serialization

from nvexplore.notebook import answers, assets, rerun
from nvexplore.notebook.explorer import Explorer
from nvexplore.notebook.still_outputs import Displayed


def file_of(view: type) -> str:
    """The name of the files of a view's class: ``BlockView`` is block_view."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", view.__name__).lower()


class View(Displayed, anywidget.AnyWidget):
    """One view of an Explorer. A subclass named ``BlockView`` shows what widgets/block_view.js mounts.

    Run in the same cell again it takes the place of the one before, which is closed.

    It may define ``answer(context, id)``, a static method: what its page gets for ``store.ask("block_view", id)``, a
    dict of plain values, texts and bytes about one step (see ``answers.Context``). It must change nothing.
    """

    _esm = t.Unicode().tag(sync=True)
    explorer = t.Instance(Explorer).tag(sync=True, **widget_serialization)
    key = t.Unicode().tag(sync=True)
    view = t.Unicode().tag(sync=True)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        answers.register(file_of(cls), cls)

    def __init__(self, explorer: Explorer) -> None:
        super().__init__(explorer=explorer, key=explorer.key, view=file_of(type(self)), _esm=assets.view_text())
        explorer.add_view(self)
        rerun.close_previous(self, type(self).__name__)

    def close(self) -> None:
        """Leave the page and the kernel; the Explorer and its other views stay."""
        layout = self.layout
        super().close()
        layout.close()

    def __repr__(self) -> str:
        return f"{self._anywidget_id.rpartition('.')[2]} of {self.explorer!r}"

    def written_again(self, unless: str) -> Any:
        """As of ``Explorer``."""
        return self.explorer.completed(super()._repr_mimebundle_(), self.view, unless)

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        self.explorer.start()
        return self.explorer.completed(super()._repr_mimebundle_(**kwargs), self.view)
