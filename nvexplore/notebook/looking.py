"""What looks at a session's model and changes nothing of it: views, frames, plots, and what their words mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nvexplore.checks import check_text
from nvexplore.explore.glossary import GLOSSARY, define
from nvexplore.notebook import figure
from nvexplore.notebook.errors import there
from nvexplore.notebook.stops import Stops
from nvexplore.notebook.summary import Summary

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from nvexplore.explore.recorder import Recorder
    from nvexplore.notebook.display import Display
    from nvexplore.notebook.explorer import Explorer


class Looking:
    """The part of a ``Session`` that shows; the session sets what stands here."""

    stops: Stops
    _recorder: Recorder | None
    _display: Display | None

    def watch(self, what: str = "all") -> Any:
        """A widget: one of ``display.VIEWS``, or "all" of them with run, pause and step buttons."""
        view = self.display.view(what)  # first: where there is no such view, nothing is made
        self.stops.link(self.display.explorer)
        return view

    def frame(self, name: str, *, step: int | None = None) -> pd.DataFrame:
        """One of nvexplore.explore.frames over what was recorded; ``step`` is for "blocks" and "slots"."""
        return figure.frame(self.recorder, name, step)

    def plot(self, name: str) -> Figure:
        """A figure of what was recorded: "memory", "throughput" or "schedule"."""
        return figure.plot(self.recorder, name)

    @property
    def explorer(self) -> Explorer:
        """What feeds the views: their status, selection and callbacks."""
        return self.stops.link(self.display.explorer)

    @property
    def recorder(self) -> Recorder:
        """The last steps of the model, or of the one that was closed last."""
        return there(self._recorder)

    def glossary(self, term: str | None = None) -> Summary:
        """What a term of the views means, or all of them; UnknownTermError names the nearest one. TypeError."""
        if term is None:
            rows = tuple((each.name, each.text) for each in GLOSSARY.values())
            return Summary(headline=f"{len(rows)} terms", columns=("term", "meaning"), rows=rows)
        found = define(check_text("term", term))
        also = (f"also: {', '.join(found.also)}",) if found.also else ()
        return Summary(headline=f"{found.name}: {found.text}", notes=also)

    @property
    def display(self) -> Display:
        return there(self._display)
