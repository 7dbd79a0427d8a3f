"""One loaded model and all that looks at it: the plain-Python twin of the magics.

    session = Session()
    session.load("demo", num_kvcache_blocks=96)
    session.add("Once upon a time", max_tokens=40)
    session.peek(); session.step(); session.run()

Nothing here needs an event loop but ``run_live``, and nothing needs ipywidgets but ``watch``.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nvexplore.notebook import recorded
from nvexplore.notebook.describe import PlanSummary, StepSummary, describe_plan, describe_step
from nvexplore.notebook.display import Display
from nvexplore.notebook.errors import NO_MODEL, SessionError, there
from nvexplore.notebook.links import Links
from nvexplore.notebook.looking import Looking
from nvexplore.notebook.requests import Decoder, Request, RequestLog, RequestTable
from nvexplore.notebook.runner import TaskRunner
from nvexplore.notebook.settings import NvExplore
from nvexplore.notebook.stops import Condition, Stops
from nvexplore.notebook.summary import Summary
from nvexplore.notebook.tally import RunSummary, Tally, describe_run
from nvexplore.sampling_params import SamplingParams

if TYPE_CHECKING:
    from nvexplore.engine.subscription import Subscription
    from nvexplore.explore.recorder import Recorder
    from nvexplore.llm import LLM


class Session(Looking):
    """Owns an LLM, its recorder, the request log, the views and the runner of live runs.

    What looks at it, such as ``watch`` and ``frame``, is in looking.py.

    llm is None until ``load`` or ``attach``, and again after ``close``; recorder and requests stay readable.
    stops: where runs end early; ``session.stops.breakpoints = ["preempt"]`` holds for all runs, as boxes ticked in a
    view do.
    """

    def __init__(self, settings: NvExplore | None = None) -> None:
        self.settings = settings if settings is not None else NvExplore()
        self.llm: LLM | None = None
        self.model = ""
        self.log = RequestLog()
        self.stops = Stops()
        self._recorder: Recorder | None = None
        self._runner: TaskRunner | None = None
        self._display: Display | None = None
        self._subscriptions: list[Subscription] = []

    # ---------------------------------------------------------------- the model

    def load(self, model: str | None = None, **options: Any) -> LLM:
        """Load a model and look at it; ``options`` are the engine's. A model loaded before is closed first.

        Where options or name are wrong it stays.
        """
        from nvexplore.llm import LLM

        name = self.settings.model if model is None else model
        LLM.check(name, **options)
        self.close()
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
        self.log, recorder = RequestLog(Decoder(llm.tokenizer)), Recorder()
        self._recorder, self.stops.log = recorder, self.log
        self._subscriptions = [llm.engine.subscribe(each.push) for each in (self.log, recorder, self.stops)]
        links = Links(self)
        self._runner = TaskRunner(
            links.step,
            links.has_work,
            advance=links.advance,
            settle=links.settle,
            why_stop=self.stops.reason,
            is_picky=self.stops.is_set,
            on_change=links.changed,
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
            self.stops.follow(is_running=False)
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
        self.runner.found = None
        record = llm.step()
        self.display.show(self.runner.status)
        return describe_step(record, self.log)

    def peek(self) -> PlanSummary:
        """What the next step would do, and why; changes nothing."""
        return describe_plan(self._loaded().plan(), self.log)

    def run(self, *, max_steps: int | None = None, until: Condition | None = None) -> RunSummary:
        """Step until all requests are finished, ``max_steps`` were made, or a step was one to stop at.

        until: a text such as "preempt,miss" (``nvexplore.explore.until.Until.of`` tells them all), or a function of the
        Tally of this run. The summary says what was found, and in which step. Raises UntilError, SessionError.
        """
        llm, runner, tally = self._loaded(), self.runner, Tally()
        llm.settle()  # what a live run has begun is no step of this one
        self.stops.begin(until, next_step=llm.engine.next_step, tally=tally)
        started = time.perf_counter()
        runner.run_blocking(max_steps=max_steps)
        return describe_run(tally, time.perf_counter() - started, self.log, found=runner.found, until=until)

    def run_live(self, *, hz: float | None = None, until: Condition | None = None) -> TaskRunner:
        """Start a run that goes on while other cells work, return at once; ``await session.runner.done()``.

        until: as in ``run``; the runner's status says what was found.
        """
        self.stops.begin(until, next_step=self._loaded().engine.next_step)
        runner = self.runner
        runner.slice_s = self.settings.live_slice_ms / 1e3
        runner.max_hz = (self.settings.live_hz if hz is None else hz) or None
        runner.run()
        return runner

    def pause(self) -> None:
        """Pause a live run."""
        self.runner.pause()

    # ---------------------------------------------------------------- files

    def save(self, path: str | Path, *, replace: bool = False, redact: bool = False) -> Summary:
        """Write what was recorded to a file that ``open`` reads; ``replace`` an old one.

        redact: without what requests say: prompts, completions, their names, salts and stop strings.
        Raises ValueError where nothing is recorded, FileExistsError, OSError.
        """
        memory, redact = recorded.ledger_of(self._display, self.llm), redact or recorded.is_redacted(self._display)
        return recorded.save(self.recorder, path, self.log.text, memory, self.model, replace=replace, redact=redact)

    def open(self, path: str | Path) -> Summary:
        """Look at a recording in place of a model, which is closed; all but running works as on the model itself.

        Raises RecordingError or OSError, and changes nothing then.
        """
        recording, log = recorded.load(path)
        self.close()
        self.model, self.log, self._recorder = recording.model, log, recording.recorder
        self._display = recorded.RecordedDisplay(recording, log)
        return recorded.opened(path, recording, log)

    # ---------------------------------------------------------------- itself

    @property
    def runner(self) -> TaskRunner:
        return there(self._runner)

    def __repr__(self) -> str:
        if self.llm is None or self.llm.is_closed:
            return f"Session({'no model is loaded' if self._display is None else f'a recording of {self.model}'})"
        return f"Session({self.model or 'a model'}, {self.runner.status})"

    def _loaded(self) -> LLM:
        if self.llm is None or self.llm.is_closed:
            raise SessionError(NO_MODEL)
        return self.llm
