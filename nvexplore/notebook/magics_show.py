"""%nvx_watch, %nvx_frame, %nvx_plot and %nvx_glossary: live views, the numbers behind them, plots, words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from IPython.core.magic import magics_class

from nvexplore.explore.glossary import GLOSSARY, UnknownTermError
from nvexplore.notebook.decorators import argument, line_magic, magic_arguments
from nvexplore.notebook.display import VIEWS
from nvexplore.notebook.figure import FRAMES, PLOTS
from nvexplore.notebook.magics import SessionMagics, identifier, one_line_errors
from nvexplore.notebook.summary import Summary

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


class Offered(tuple[str, ...]):
    """Choices that Tab offers and argparse does not insist on: other spellings are looked up too."""

    def __contains__(self, word: object) -> bool:
        return True


TERMS = Offered(name.replace(" ", "-") for name in GLOSSARY)


@magics_class
class ShowMagics(SessionMagics):
    """Views, frames, plots, and what their words mean."""

    @magic_arguments
    @argument("what", nargs="?", default="all", choices=VIEWS, help="which one (default: all)")
    @line_magic
    def nvx_watch(self, line: str) -> Any:
        """Show what happens while it happens, in one view or in all.

        all:        every view below, with run, pause and step buttons, and a slider to go back to any step
        schedule:   a row a sequence, a column a step: what ran, what waited, how the token budget was spent
        blocks:     a cell a block of the KV pool: its state, who holds it, what the newest step wrote
        slots:      the way of a step's tokens to their slots in the pool, and the arrays that the runner was given
        prefix:     the prefix cache as a tree, and what each admitted request took from it, and why no more
        why:        why each request runs, waits or was preempted, and what would change it
        memory:     where the memory goes, how full the pool is, and what one more sequence would need of it
        throughput: tokens a second, the queues, and how long each request's tokens took

        A view follows every step from now on, wherever it is made, and still has those made before. Click a block, or
        a row of the schedule, and the same sequence lights up in the other views. To close one, clear its cell's
        output; %nvx_close closes all of them with the engine, and each keeps what it shows.
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

    @magic_arguments
    @argument(
        "term", nargs="*", choices=TERMS, metavar="TERM", help="which one (default: all); - may stand for a space"
    )
    @line_magic
    def nvx_glossary(self, line: str) -> Summary:
        """Explain a term of the views, or all of them, as this engine does it.

        In the views the same is said of each underlined word: point at it, click it, or reach it with Tab and arrows.
        In Python: ``session.glossary("block table")``, ``nvexplore.explore.glossary.GLOSSARY``.

        Example::

            %nvx_glossary chunked prefill
        """
        args = self.arguments(self.nvx_glossary, line)
        with one_line_errors(UnknownTermError):
            return self.session.glossary(" ".join(args.term) or None)
