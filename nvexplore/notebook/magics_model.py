"""%nvx_load, %nvx_add, %%nvx_add, %nvx_abort, %nvx_text and %nvx_close: a model and its requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import magics_class, needs_local_scope, no_var_expand

from nvexplore.notebook import prompts
from nvexplore.notebook.decorators import argument, line_cell_magic, line_magic, magic_arguments
from nvexplore.notebook.engine_arguments import engine_arguments, given
from nvexplore.notebook.finished import forgotten
from nvexplore.notebook.magics import SessionMagics, identifier, one_line_errors, option, positive, stop_string
from nvexplore.notebook.requests import Request, RequestTable
from nvexplore.notebook.session import Session
from nvexplore.notebook.summary import Summary, counted

SAMPLING = ("max_tokens", "temperature", "top_k", "top_p", "min_p", "seed", "stop", "ignore_eos")
ADD_OPTIONS = (*SAMPLING, "priority", "chat")


@dataclass(frozen=True, kw_only=True, repr=False)
class LoadSummary(Summary):
    """What was loaded; ``session`` is the Python twin of all the magics."""

    session: Session


@magics_class
class ModelMagics(SessionMagics):
    """A model and its requests."""

    @magic_arguments
    @argument("model", nargs="?", help="demo, a folder, or org/name (default: %%config NvExplore.model)")
    @engine_arguments
    @argument(
        "--option",
        type=option,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any of these by its name in Python, as num_kvcache_blocks=96",
    )
    @argument("-o", "--out", type=identifier, metavar="NAME", help="put the LLM into this variable")
    @line_magic
    def nvx_load(self, line: str) -> LoadSummary:
        """Load a model into an engine that can be looked into.

        Only one is loaded at a time: the engine of an earlier %nvx_load is closed first, its memory freed.
        In Python: ``session.load("demo", num_kvcache_blocks=96)``, which takes a Policy or an Eviction of your own too.

        Example::

            %nvx_load demo --num-kvcache-blocks 96 --block-size 16
            %nvx_load demo --policy mixed --no-enable-prefix-caching
        """
        args = self.arguments(self.nvx_load, line)
        options = {**given(args), **dict(args.option)}
        closed = self.session.model if self.session.is_loaded else None
        with one_line_errors(ValueError, TypeError, OSError, ImportError, *_demo_errors()):
            llm = self.session.load(args.model, **options)
        self.store(args.out, llm)
        limits, num_ranks = llm.engine.limits, llm.config.tensor_parallel_size
        return LoadSummary(
            headline=f"{self.session.model}: {counted(limits.num_blocks, 'KV block')} of {limits.block_size} tokens",
            notes=(
                f"a step: at most {limits.max_num_batched_tokens} tokens of at most {limits.max_num_seqs} sequences",
                *([f"each layer is split over {num_ranks} processes"] if num_ranks > 1 else []),
                *([f"the model loaded before ({closed}) was closed"] if closed is not None else []),
            ),
            session=self.session,
        )

    @magic_arguments
    @argument("--max-tokens", type=positive, metavar="N", help="tokens to generate at most")
    @argument("--temperature", type=float, metavar="T", help="0 is greedy")
    @argument("--top-k", type=int, metavar="K", help="draw from the K likeliest tokens; 0: from all")
    @argument("--top-p", type=float, metavar="P", help="draw from the likeliest tokens that have P of the probability")
    @argument("--min-p", type=float, metavar="P", help="draw from tokens with at least P of the likeliest one's")
    @argument("--seed", type=int, metavar="N", help="the same tokens again for the same prompt")
    @argument(
        "--stop",
        type=stop_string,
        action="append",
        metavar="TEXT",
        help=r"end before this text, in quotes where it has spaces, \n for a line end; may be given several times",
    )
    @argument("--priority", type=int, default=0, metavar="N", help="lower is sooner (default: 0)")
    @argument("--ignore-eos", action="store_true", help="go on when the model says that it is done")
    @argument("--id", metavar="ID", help="name of the request (several prompts: ID-0, ID-1, ...)")
    @argument("--chat", action="store_true", default=None, help="put the prompt into the chat template")
    @argument("--var", type=identifier, metavar="NAME", help="take the prompt, or a list of them, from a variable")
    @argument("--each-line", action="store_true", help="in a %%%%nvx_add cell every line is a prompt")
    @argument("--each-paragraph", action="store_true", help="in a %%%%nvx_add cell every paragraph is a prompt")
    @no_var_expand
    @needs_local_scope
    @line_cell_magic
    def nvx_add(
        self, line: str, cell: str | None = None, local_ns: dict[str, Any] | None = None
    ) -> Request | RequestTable:
        """Queue a prompt: the rest of the line, or the body of the cell. Nothing runs yet.

        The prompt starts at the first word that is no option (or after ``--``) and is taken exactly as it stands:
        quotes, braces, $ and question marks are part of it. ``--var NAME`` takes a variable's value: a text, a list of
        token ids, or a list of texts. Defaults come from %config NvExplore. Values of options may stand in quotes:
        ``--id 'a tale' --stop "The end" --stop "\\n"`` ends before either. ``nvexplore.SamplingParams`` tells more.
        In Python: ``session.add("Once upon a time", max_tokens=40)``.

        Example::

            %nvx_add --id story --max-tokens 40 Once upon a time
        """
        head, rest = prompts.split(line)
        args = self.arguments(self.nvx_add, head)
        found = self._prompts(args, rest, cell, local_ns or {})
        options = {name: value for name in ADD_OPTIONS if (value := getattr(args, name)) is not None}
        added: list[Request] = []
        with one_line_errors(ValueError, TypeError):
            try:
                for number, prompt in enumerate(found):
                    request_id = args.id if args.id is None or len(found) == 1 else f"{args.id}-{number}"
                    added.append(self.session.add(prompt, request_id=request_id, **options))
            except BaseException:
                for request in added:  # all or none
                    self.session.abort(request.request_id)
                raise
        return added[0] if len(added) == 1 else RequestTable(added)

    def _prompts(self, args: Any, rest: str, cell: str | None, local_ns: dict[str, Any]) -> list[Any]:
        """The prompts asked for, from the one place where there are any."""
        if args.var is not None:
            if rest or cell:
                raise UsageError("--var names the prompt: there cannot be another one")
            assert self.shell is not None
            for names in (local_ns, self.shell.user_ns):
                if args.var in names:
                    value = names[args.var]
                    several = isinstance(value, (list, tuple)) and value and isinstance(value[0], (str, list, tuple))
                    return list(value) if several else [value]
            raise UsageError(f"--var {args.var}: there is no such variable")
        if cell is not None:
            if rest:
                raise UsageError(f"the prompt is the body of the cell: what is {rest!r} in its first line?")
            found = prompts.pieces(cell, each_line=args.each_line, each_paragraph=args.each_paragraph)
            if not found:
                raise UsageError("there is no prompt in this cell")
            return found
        if args.each_line or args.each_paragraph:
            raise UsageError("--each-line and --each-paragraph are for a %%nvx_add cell")
        if not rest:
            raise UsageError("there is no prompt: %nvx_add Once upon a time")
        return [rest]

    @magic_arguments
    @argument("ids", nargs="+", metavar="ID", help="requests to end")
    @line_magic
    def nvx_abort(self, line: str) -> RequestTable:
        """End requests, whatever they are doing; their blocks go back to the pool.

        In Python: ``session.abort("story")``.

        Example::

            %nvx_abort story
        """
        args = self.arguments(self.nvx_abort, line)
        with one_line_errors():
            missing = [request_id for request_id in args.ids if not self.session.abort(request_id)]
        if missing:
            ended = [request_id for request_id in args.ids if request_id not in missing]
            also = f"; ended: {', '.join(ended)}" if ended else ""
            raise UsageError(f"no live request {', '.join(missing)}{also}")
        return RequestTable([r for i in args.ids if (r := self.session.log.find(i)) is not None])

    @magic_arguments
    @argument("ids", nargs="*", metavar="ID", help="only these requests")
    @line_magic
    def nvx_text(self, line: str) -> RequestTable:
        """Show every request with its text so far.

        In Python: ``session.requests``, and ``session.requests[0].text``.

        Example::

            %nvx_text story
        """
        args = self.arguments(self.nvx_text, line)
        requests = self.session.requests
        if not args.ids:
            return requests
        missing = [i for i in args.ids if self.session.log.find(i) is None]
        if missing:
            gone = f" ({forgotten(requests.num_forgotten)})" if requests.num_forgotten else ""
            raise UsageError(f"no request {', '.join(missing)}{gone}")
        return RequestTable([r for r in requests if r.request_id in args.ids])

    @magic_arguments
    @line_magic
    def nvx_close(self, line: str) -> Session:
        """Close the views and the engine and free its memory; frames, plots and texts can still be asked for.

        In Python: ``session.close()``.

        Example::

            %nvx_close
        """
        self.arguments(self.nvx_close, line)
        self.session.close()
        return self.session


def _demo_errors() -> tuple[type[Exception], ...]:
    """What can go wrong with the demo model's download is told in one line too."""
    try:
        from nvexplore.demo import DemoModelError
    except ImportError:
        return ()
    return (DemoModelError,)
