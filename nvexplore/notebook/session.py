"""One loaded model and all that looks at it: the plain-Python twin of the magics.

    session = Session()
    session.load("demo", num_kvcache_blocks=96)
    session.add("Once upon a time", max_tokens=40)
    session.peek(); session.step(); session.run()

Nothing here needs an event loop but ``run_live``, and nothing needs ipywidgets but ``watch``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from nvexplore.checks import check_text
from nvexplore.notebook import recorded
from nvexplore.notebook.display import Display
from nvexplore.notebook.links import Links
from nvexplore.notebook.requests import Decoder, Request, RequestLog, RequestTable
from nvexplore.notebook.runner import TaskRunner
from nvexplore.notebook.running import Running
from nvexplore.notebook.settings import NvExplore
from nvexplore.notebook.stops import Stops
from nvexplore.notebook.summary import Summary
from nvexplore.sampling_params import SamplingParams

if TYPE_CHECKING:
    from nvexplore.engine.subscription import Subscription
    from nvexplore.explore.recorder import Recorder
    from nvexplore.llm import LLM


class Session(Running):
    """Owns an LLM, its recorder, the request log, the views and the runner of live runs.

    What looks at it, such as ``watch`` and ``frame``, is in looking.py; what runs it is in running.py.

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
        """Load a model and look at it; ``options`` are the engine's. A model or recording from before is closed first.

        It stays where ``LLM.check`` refuses name or options. What fails later has a note that says what was closed.
        """
        from nvexplore.llm import LLM

        name = self.settings.model if model is None else model
        LLM.check(name, **options)
        before = self._before()
        self.close()
        try:
            llm = LLM(name, **options)
            try:
                return self.attach(llm, name)
            except BaseException:
                llm.close()
                raise
        except BaseException as error:
            if before:
                error.add_note(f"the {before} was closed")
            raise

    def attach(self, llm: LLM, model: str = "") -> LLM:
        """Look at an LLM that was made elsewhere; from now on this session closes it.

        Raises RuntimeError for a closed one, and changes nothing then.
        """
        from nvexplore.explore.recorder import Recorder

        engine = llm.engine
        if llm is not self.llm:
            self.close()
        self.llm, self.model = llm, model
        self.log, recorder = RequestLog(Decoder(llm.tokenizer)), Recorder()
        self._recorder, self.stops.log = recorder, self.log
        self._subscriptions = [engine.subscribe(each.push) for each in (self.log, recorder, self.stops)]
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
        self._display = Display(engine, recorder, self.log.text, self._runner, links.command)
        return llm

    def close(self) -> None:
        """Stop a live run, close the engine and free its memory; views keep what they show. Idempotent."""
        self._note_gone()
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
            self.log.note_gone(self.log.unfinished(), "closed")

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
        aborted = self._loaded().abort(check_text("request_id", request_id))
        request = self.log.find(request_id)
        if aborted and request is not None:
            self.log.end(request.seq_id, "abort")
        self.display.refresh()
        return aborted

    @property
    def requests(self) -> RequestTable:
        """All requests, with their texts so far."""
        self._note_gone()
        return self.log.table

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

    def __repr__(self) -> str:
        if self.llm is None or self.llm.is_closed:
            return f"Session({'no model is loaded' if self._display is None else f'a recording of {self.model}'})"
        return f"Session({self.model or 'a model'}, {self.runner.status})"

    def _before(self) -> str:
        """What there is that ``load`` closes, in words; empty where nothing."""
        if self.is_loaded:
            return f"model loaded before ({self.model or 'made elsewhere'})"
        is_recording = isinstance(self._display, recorded.RecordedDisplay)
        return f"recording opened before ({self.model or 'of an engine'})" if is_recording else ""

    def _note_gone(self) -> None:
        """Let the log know who has left the engine by another way than ours: the next record is yet to come, if any."""
        known = self.log.unfinished()  # first: who is added meanwhile is not gone
        if self.llm is None or not known:
            return
        if self.llm.is_closed:
            self.log.note_gone(known, "closed")
        else:
            self.log.note_gone(known - {seq.seq_id for seq in list(self.llm.engine.live.values())}, "abort")
