"""Run, pause and step buttons, the step counter and how full the pool is."""

from nvexplore.notebook.view import View


class ControlsView(View):
    """``ControlsView(explorer)``; drawn by widgets/controls_view.js. The dashboard has it on top."""
