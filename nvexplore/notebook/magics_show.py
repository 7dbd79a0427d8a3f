"""%nvx_watch, %nvx_frame and %nvx_plot: the live views, the numbers behind them, and plots of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from IPython.core.magic import magics_class

from nvexplore.notebook.decorators import argument, line_magic, magic_arguments
from nvexplore.notebook.display import VIEWS
from nvexplore.notebook.figure import FRAMES, PLOTS
from nvexplore.notebook.magics import SessionMagics, identifier, one_line_errors

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@magics_class
class ShowMagics(SessionMagics):
    """Views, frames and plots."""

    @magic_arguments
    @argument("what", nargs="?", default="all", choices=VIEWS, help="schedule, blocks, or all with the buttons")
    @line_magic
    def nvx_watch(self, line: str) -> Any:
        """Show what happens while it happens: the schedule, the block map, or all with run, pause and step buttons.

        A view follows every step from now on, wherever it is made, and still has those made before. Click a block, or
        a row of the schedule, and the same sequence lights up in the other view.
        In Python: ``session.watch()``; ``session.explorer.on_select(callback)`` brings clicks back.

        Example::

            %nvx_watch blocks
        """
        args = self.arguments(self.nvx_watch, line)
        with one_line_errors(ValueError):
            return self.session.watch(args.what)

    @magic_arguments
    @argument("name", choices=FRAMES, help="which one")
    @argument("--step", type=int, metavar="N", help="blocks and slots: after this step (default: the last)")
    @argument("-o", "--out", type=identifier, metavar="VAR", help="put it into this variable too")
    @line_magic
    def nvx_frame(self, line: str) -> pd.DataFrame:
        """Return what was recorded as a pandas DataFrame.

        steps: a row a step. sequences: a row a request. blocks: a row a physical block. slots: a row a token that a
        step wrote, and where. prefix_hits: a row an admission. schedule: a row a stretch of a request's life.
        nvexplore.explore.frames.COLUMNS tells what the columns mean. In Python: ``session.frame("steps")``.

        Example::

            %nvx_frame steps -o steps
        """
        args = self.arguments(self.nvx_frame, line)
        with one_line_errors(ValueError):
            frame = self.session.frame(args.name, step=args.step)
        self.store(args.out, frame)
        return frame

    @magic_arguments
    @argument("name", choices=list(PLOTS), help="which one")
    @line_magic
    def nvx_plot(self, line: str) -> Figure:
        """Draw what was recorded: memory, throughput or schedule.

        The result is a matplotlib figure: ``figure.axes[0]``, ``figure.savefig("memory.svg")``. In Python:
        ``session.plot("memory")``, or nvexplore.explore.plots for axes of your own.

        Example::

            %nvx_plot memory
        """
        args = self.arguments(self.nvx_plot, line)
        with one_line_errors(ValueError):
            return self.session.plot(args.name)
