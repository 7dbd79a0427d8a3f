"""Plots of frames: each takes the documented frame and an optional ax, and returns the ax.

Drawn with matplotlib's Figure alone: pyplot is not imported and no global setting is touched.
"""

from nvexplore.explore.plots._figure import NotebookFigure
from nvexplore.explore.plots.memory import plot_memory
from nvexplore.explore.plots.schedule import plot_schedule
from nvexplore.explore.plots.throughput import plot_throughput

__all__ = ["NotebookFigure", "plot_memory", "plot_schedule", "plot_throughput"]
