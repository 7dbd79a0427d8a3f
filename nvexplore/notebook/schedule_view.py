"""A row a sequence, a column a step: what ran, what waited, and how the token budget was spent."""

from nvexplore.notebook.view import View


class ScheduleView(View):
    """``ScheduleView(explorer)``; drawn by widgets/schedule_view.js."""
