"""A model, its tokenizer and an engine under one name. Knows no notebook; decides and computes nothing itself."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as SequenceOf
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from nvexplore.conversation import Messages
from nvexplore.engine.engine import Engine
from nvexplore.engine.events import Planned, StepRecord
from nvexplore.engine.sequence import Sequence
from nvexplore.generation import (
    GenerationOutput,
    TextDelta,
    advance,
    check_progress,
    output_of,
    read_deltas,
    run_to_end,
)
from nvexplore.half_made import closed_if_it_fails
from nvexplore.load_plan import LoadPlan
from nvexplore.progress import LoadProgress
from nvexplore.prompts import Prompt, as_list, params_for
from nvexplore.sampling_params import SamplingParams
from nvexplore.text.codec import Codec
from nvexplore.text.stop_finder import StopFinder

if TYPE_CHECKING:
    from nvexplore.runner.memory_ledger import MemoryLedger
    from nvexplore.runner.model_runner import ModelRunner


class LLM:
    """``LLM("demo")``, ``LLM("/path/to/checkpoint")`` or ``LLM("org/name")``, with EngineConfig's options.

    ``generate`` and ``stream`` for text; ``add_request`` and ``step`` to look. Several may live in one process; calls
    from several threads take turns. Use as a context manager, or ``close()`` it.
    Raises ImportError (what to install), TypeError/ValueError (an option), FileNotFoundError (the model), RankError.
    """

    def __init__(self, model: str | Path = "demo", **options: Any) -> None:
        plan = LoadPlan.of(model, options)
        from transformers import AutoTokenizer

        from nvexplore.runner.tensor_parallel import start_runner

        self.path, self.config, self.model_config = plan.path, plan.config, plan.model_config
        config, max_model_len = plan.config, plan.max_model_len
        self.tokenizer = AutoTokenizer.from_pretrained(self.path)
        self._codec = Codec(self.tokenizer, self.path, self.model_config.vocab_size)
        self.runner: ModelRunner | None = start_runner(
            self.path,
            self.model_config,
            device=plan.device,
            max_model_len=max_model_len,
            progress=LoadProgress(),
            **config.runner_options(),
        )
        with closed_if_it_fails(self.runner.close):
            self._engine: Engine | None = Engine(
                config.limits(num_blocks=self.runner.num_blocks, max_model_len=max_model_len),
                self.runner,
                eos_token_ids=self.model_config.eos_token_ids | ({self.tokenizer.eos_token_id} - {None}),
                vocab_size=self.model_config.vocab_size,
                stop_matcher=StopFinder(self._codec.decode),
                overlap=bool(config.overlap),
            )
        self._lock = threading.RLock()

    @staticmethod
    def check(model: str | Path = "demo", **options: Any) -> None:
        """Raise what ``LLM(model, **options)`` would before it loads anything; loads nothing.

        That is: a package or a model that is not there, a wrong option, and one that the model or this machine does not
        allow. What only shows while weights are read or memory is taken (damage, too little of it) does not.
        """
        LoadPlan.of(model, options)

    @property
    def engine(self) -> Engine:
        """The engine; RuntimeError once the LLM is closed."""
        if self._engine is None:
            raise RuntimeError("this LLM is closed; make a new one")
        return self._engine

    @property
    def memory(self) -> MemoryLedger:
        """Where memory goes, and the arithmetic that gave the pool so many blocks; ``print`` it."""
        if self.runner is None:
            raise RuntimeError("this LLM is closed; make a new one")
        return self.runner.memory

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text``, with the special tokens that the tokenizer adds by itself; warns of two BOS."""
        return self._codec.encode(text)

    def decode(self, token_ids: Iterable[int]) -> str:
        """Text of ``token_ids``, without special tokens."""
        return self._codec.text_of(token_ids)

    def chat_prompt(self, messages: Messages) -> list[int]:
        """Token ids of a conversation in the model's template, ready for the assistant's turn.

        messages: see ``Messages``. One BOS in front where the template or the tokenizer has one.
        Raises TypeError or ValueError naming the message, ValueError for what the template refuses, or without one.
        """
        return self._codec.chat_prompt(messages)

    def add_request(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
    ) -> Sequence:
        """Queue a prompt; the Sequence returned fills up as ``step`` is called. priority: lower is sooner."""
        with self._lock:
            ids = self._codec.ids_of(prompt)
            return self.engine.add_request(ids, sampling_params, request_id=request_id, priority=priority)

    def abort(self, request_id: str) -> bool:
        """End a request; False if no such request lives."""
        with self._lock:
            return self.engine.abort(request_id)

    @property
    def has_unfinished(self) -> bool:
        return self.engine.has_unfinished

    def plan(self) -> Planned:
        """What the next step would do, and why; changes nothing."""
        with self._lock:
            return self.engine.plan()

    def step(self) -> StepRecord:
        """Run one batch and tell all about it; an idle engine gives an empty record."""
        with self._lock:
            record = self.engine.step(want_record=True).record
        assert record is not None  # it was asked for
        return record

    def advance(self) -> None:
        """Bring one more step to its end, faster than ``step``: on a GPU the next one is running by then.

        Subscribers are told of it. RuntimeError if requests are unfinished and none can run.
        """
        with self._lock:
            advance(self.engine)

    def settle(self) -> None:
        """Wait for the step that ``advance`` may have left running; every other call does so too."""
        with self._lock:
            self.engine.settle()

    def steps(self) -> Iterator[StepRecord]:
        """Step until every request has finished; yields one record a step."""
        while self.has_unfinished:
            record = self.step()
            check_progress(record, self.engine)
            yield record

    def generate(
        self,
        prompts: Prompt | SequenceOf[Prompt],
        sampling_params: SamplingParams | SequenceOf[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[GenerationOutput]:
        """Complete ``prompts`` (texts or token ids, see ``Prompt``; one SamplingParams for all, or one each), in order.

        A bad prompt is refused before any is queued. An interrupt ends this call's requests and leaves others be.
        """
        batch = as_list(prompts)
        params = params_for(batch, sampling_params)
        engine = self.engine
        with self._lock:
            checked = [engine.check_request(self._codec.ids_of(p), s) for p, s in zip(batch, params, strict=True)]
        firsts: list[Sequence] = []
        try:
            for ids, each in zip(checked, params, strict=True):
                with self._lock:
                    firsts.append(engine.add_request(ids, each))
            run_to_end([seq for first in firsts for seq in first.samples], self.advance, use_tqdm)
        except BaseException:
            self._end(firsts)
            raise
        return [output_of(first, self._codec.decode) for first in firsts]

    def chat(
        self, messages: Messages, sampling_params: SamplingParams | None = None, *, use_tqdm: bool = False
    ) -> GenerationOutput:
        """The assistant's answer to one conversation, in the model's template."""
        return self.generate([self.chat_prompt(messages)], sampling_params, use_tqdm=use_tqdm)[0]

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> Iterator[TextDelta]:
        """Complete one prompt and yield its text as it comes; all texts joined are ``generate``'s.

        A bad prompt is refused at once; the request is queued when the first delta is asked for, and the engine steps
        while one is waited for (other requests go on with it). Closing the iterator early aborts the request.
        """
        params = SamplingParams() if sampling_params is None else sampling_params
        with self._lock:
            ids = self.engine.check_request(self._codec.ids_of(prompt), params)
        return self._stream(ids, params)

    def _stream(self, ids: list[int], params: SamplingParams) -> Iterator[TextDelta]:
        with self._lock:
            first = self.engine.add_request(ids, params)
        try:
            yield from read_deltas(first, self._codec.decode, self.advance, self._lock)
        finally:
            self._end([first])

    def _end(self, firsts: list[Sequence]) -> None:
        """Abort what is left of these requests."""
        with self._lock:
            engine = self._engine
            for seq in (seq for first in firsts for seq in first.samples):
                if not seq.is_finished and engine is not None:
                    engine.abort(seq.request_id)

    @property
    def is_closed(self) -> bool:
        return self._engine is None

    def close(self) -> None:
        """Free weights and KV pool, once a step of another thread has ended; its call raises then. May be repeated."""
        self._engine = None  # before the lock: a thread that steps on and on would take it again and again
        with self._lock:
            if self.runner is not None:
                self.runner.close()
            self.runner = None

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
