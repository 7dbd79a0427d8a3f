"""%nvx_save and %nvx_open: recordings as files."""

from __future__ import annotations

from IPython.core.magic import magics_class

from nvexplore.notebook.decorators import argument, line_magic, magic_arguments
from nvexplore.notebook.magics import SessionMagics, one_line_errors
from nvexplore.notebook.summary import Summary


@magics_class
class FileMagics(SessionMagics):
    """What was recorded, in files and out of them."""

    @magic_arguments
    @argument("--replace", action="store_true", help="if the file is there already")
    @argument("--redact", action="store_true", help="without what requests say, and their names: to be shown to others")
    @argument("file", help="where to; .nvx is added to a name without a suffix")
    @line_magic
    def nvx_save(self, line: str) -> Summary:
        """Save the steps that are recorded (the last 10,000), to be looked at later or elsewhere.

        The file holds the prompts and completions of its requests; with --redact their lengths, and which begin alike.
        It needs no model, GPU or torch to be opened. In Python: ``session.save("run.nvx")``.

        Example::

            %nvx_save run.nvx
            %nvx_save --redact for-the-report.nvx
        """
        args = self.arguments(self.nvx_save, line)
        with one_line_errors(ValueError, OSError):
            return self.session.save(args.file, replace=args.replace, redact=args.redact)

    @magic_arguments
    @argument("file", help="what %%nvx_save has written")
    @line_magic
    def nvx_open(self, line: str) -> Summary:
        """Look at a recording: views, frames, plots and texts are as they were when it was saved.

        A model that is loaded is closed first. A recording cannot be run on: %nvx_load loads a model again.
        In Python: ``session.open("run.nvx")``.

        Example::

            %nvx_open run.nvx
            %nvx_watch
        """
        args = self.arguments(self.nvx_open, line)
        with one_line_errors(ValueError, OSError):
            return self.session.open(args.file)
