"""One loaded model and all that looks at it: the plain-Python twin of the magics.

    session = Session()
    session.load("demo", num_kvcache_blocks=96)
    session.add("Once upon a time", max_tokens=40)
    session.peek(); session.step(); session.run()

Nothing here needs an event loop but ``run_live``, and nothing needs ipywidgets but ``watch``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from nvexplore.notebook import figure
from nvexplore.notebook.describe import PlanSummary, StepSummary, describe_plan, describe_step
from nvexplore.notebook.display import Display
from nvexplore.notebook.errors import NO_MODEL, SessionError
from nvexplore.notebook.links import Links
from nvexplore.notebook.requests import Decode, Request, RequestLog, RequestTable
from nvexplore.notebook.runner import TaskRunner
from nvexplore.notebook.settings import NvExplore
from nvexplore.notebook.tally import RunSummary, Tally, describe_run
from nvexplore.sampling_params import SamplingParams

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from nvexplore.engine.subscription import Subscription
    from nvexplore.explore.recorder import Recorder
    from nvexplore.llm import LLM
    from nvexplore.notebook.explorer import Explorer


T = TypeVar("T")


class Session:
    """Owns an LLM, its recorder, the request log, the views and the runner of live runs.

    llm is None until ``load`` or ``attach``, and again after ``close``; recorder and requests stay readable.
    """

    def __init__(self, settings: NvExplore | None = None) -> None:
        self.settings = settings if settings is not None else NvExplore()
        self.llm: LLM | None = None
        self.model = ""
        self.log = RequestLog()
        self._recorder: Recorder | None = None
        self._runner: TaskRunner | None = None
        self._display: Display | None = None
        self._subscriptions: list[Subscription] = []

    # ---------------------------------------------------------------- the model

    def load(self, model: str | None = None, **options: Any) -> LLM:
        """Load a model and look at it; ``options`` are the engine's. A model loaded before is closed first."""
        from nvexplore.llm import LLM

        self.close()
        name = self.settings.model if model is None else model
        llm = LLM(name, **options)
        try:
            return self.attach(llm, name)
        except BaseException:
            llm.close()
            raise

    def attach(self, llm: LLM, model: str = "") -> LLM:
        """Look at an LLM that was made elsewhere; from now on this session closes it."""
        from nvexplore.explore.recorder import Recorder

        if llm is not self.llm:
            self.close()
        self.llm, self.model = llm, model
        self.log, recorder = RequestLog(_decoder(llm)), Recorder()
        self._recorder = recorder
        self._subscriptions = [llm.engine.subscribe(self.log.push), llm.engine.subscribe(recorder.push)]
        links = Links(self)
        self._runner = TaskRunner(
            links.step, links.has_work, advance=links.advance, settle=links.settle, on_change=links.changed
        )
        self._display = Display(llm.engine, recorder, self.log.text, self._runner, links.command)
        return llm

    def close(self) -> None:
        """Stop a live run, close the engine and free its memory; views keep what they show. Idempotent."""
        runner, display, llm, subscriptions = self._runner, self._display, self.llm, self._subscriptions
        self._runner = self._display = self.llm = None
        self._subscriptions = []
        if runner is not None:
            runner.close()
        for subscription in subscriptions:
            subscription.close()
        if display is not None:
            display.close()
        if llm is not None:
            llm.close()

    @property
    def is_loaded(self) -> bool:
        return self.llm is not None and not self.llm.is_closed

    @property
    def has_work(self) -> bool:
        """Any request is unfinished."""
        return self.llm is not None and not self.llm.is_closed and self.llm.engine.has_unfinished

    # ---------------------------------------------------------------- requests

    def add(
        self,
        prompt: str | list[int],
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        request_id: str | None = None,
        chat: bool | None = None,
        priority: int = 0,
        **sampling: Any,
    ) -> Request:
        """Queue a prompt, text or token ids; what is None comes from the settings. Raises as the engine does.

        priority: lower is sooner. sampling: more of ``SamplingParams`` (top_p, seed, stop, ignore_eos, ...).
        """
        llm, settings = self._loaded(), self.settings
        params = SamplingParams(
            max_tokens=settings.max_tokens if max_tokens is None else max_tokens,
            temperature=settings.temperature if temperature is None else temperature,
            **sampling,
        )
        tokens = prompt
        if isinstance(prompt, str) and (settings.chat if chat is None else chat):
            tokens = llm.chat_prompt([{"role": "user", "content": prompt}])
        seq = llm.add_request(tokens, params, request_id=request_id, priority=priority)
        request = self.log.add(seq.request_id, seq.seq_id, seq.prompt_token_ids)
        if isinstance(prompt, str):
            request.prompt = prompt
        self.display.refresh()
        return request

    def abort(self, request_id: str) -> bool:
        """End a request and free its blocks; False where no such request lives."""
        request, aborted = self.log.find(request_id), self._loaded().abort(request_id)
        if aborted and request is not None:
            self.log.end(request.seq_id, "abort")
        self.display.refresh()
        return aborted

    @property
    def requests(self) -> RequestTable:
        """All requests, with their texts so far."""
        return self.log.table

    # ---------------------------------------------------------------- steps

    def step(self) -> StepSummary:
        """Run one batch. A live run is paused first."""
        llm = self._loaded()
        self.runner.pause()
        record = llm.step()
        self.display.show(self.runner.status)
        return describe_step(record, self.log)

    def peek(self) -> PlanSummary:
        """What the next step would do, and why; changes nothing."""
        return describe_plan(self._loaded().plan(), self.log)

    def run(self, *, max_steps: int | None = None, until: Callable[[Tally], bool] | None = None) -> RunSummary:
        """Step until all requests are finished, ``max_steps`` were made, or ``until(tally)`` after a step."""
        engine, runner, tally = self._loaded().engine, self.runner, Tally()
        started = time.perf_counter()
        with engine.subscribe(tally.push):
            runner.run_blocking(max_steps=max_steps, until=None if until is None else lambda: until(tally))
        return describe_run(tally, time.perf_counter() - started, self.log)

    def run_live(self, *, hz: float | None = None) -> TaskRunner:
        """Start a run that goes on while other cells work, return at once; ``await session.runner.done()``."""
        self._loaded()
        runner = self.runner
        runner.slice_s = self.settings.live_slice_ms / 1e3
        runner.max_hz = (self.settings.live_hz if hz is None else hz) or None
        runner.run()
        return runner

    def pause(self) -> None:
        """Pause a live run."""
        self.runner.pause()

    # ---------------------------------------------------------------- looking

    def watch(self, what: str = "all") -> Any:
        """A widget: the "schedule", the "blocks", or "all" of it with run, pause and step buttons."""
        return self.display.view(what)

    def frame(self, name: str, *, step: int | None = None) -> pd.DataFrame:
        """One of nvexplore.explore.frames over what was recorded; ``step`` is for "blocks" and "slots"."""
        return figure.frame(self.recorder, name, step)

    def plot(self, name: str) -> Figure:
        """A figure of what was recorded: "memory", "throughput" or "schedule"."""
        return figure.plot(self.recorder, name)

    @property
    def explorer(self) -> Explorer:
        """What feeds the views: their status, selection and callbacks."""
        return self.display.explorer

    @property
    def recorder(self) -> Recorder:
        """The last steps of the model, or of the one that was closed last."""
        return _there(self._recorder)

    @property
    def runner(self) -> TaskRunner:
        return _there(self._runner)

    @property
    def display(self) -> Display:
        return _there(self._display)

    def __repr__(self) -> str:
        if self.llm is None or self.llm.is_closed:
            return "Session(no model is loaded)"
        return f"Session({self.model or 'a model'}, {self.runner.status})"

    def _loaded(self) -> LLM:
        if self.llm is None or self.llm.is_closed:
            raise SessionError(NO_MODEL)
        return self.llm


def _there(thing: T | None) -> T:
    if thing is None:
        raise SessionError(NO_MODEL)
    return thing


def _decoder(llm: LLM) -> Decode:
    """``llm.decode`` that keeps the tokenizer and not the model: texts can be read when it is closed."""
    tokenizer = llm.tokenizer
    return lambda token_ids: str(tokenizer.decode(list(token_ids), skip_special_tokens=True))
