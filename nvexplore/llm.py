"""A model, its tokenizer and an engine under one name. Knows no notebook; decides and computes nothing itself."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as SequenceOf
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from nvexplore.checkpoint import resolve_checkpoint
from nvexplore.config import EngineConfig
from nvexplore.engine.engine import Engine
from nvexplore.engine.events import Planned, StepRecord
from nvexplore.engine.sequence import Sequence
from nvexplore.progress import progress_bar
from nvexplore.sampling_params import SamplingParams

Prompt = str | SequenceOf[int]
Messages = SequenceOf[dict[str, str]]


@dataclass(frozen=True, slots=True)
class GenerationOutput:
    """What one prompt gave. finish_reason: "stop", "length" or "abort"; num_cached_tokens: from the prefix cache."""

    request_id: str
    prompt_token_ids: list[int]
    token_ids: list[int]
    text: str
    finish_reason: str | None
    num_cached_tokens: int


class LLM:
    """``LLM("demo")``, ``LLM("/path/to/checkpoint")`` or ``LLM("org/name")``, with EngineConfig's options.

    ``generate`` for text; ``add_request`` and ``step`` to look. Several may live in one process; calls from several
    threads take turns. Use as a context manager, or ``close()`` it.
    Raises ImportError (what to install), TypeError/ValueError (an option), FileNotFoundError (the model).
    """

    def __init__(self, model: str | Path = "demo", **options: Any) -> None:
        config = EngineConfig.of(**options)
        try:
            import torch  # noqa: F401
            from transformers import AutoTokenizer

            from nvexplore.runner.model_runner import ModelRunner
        except ModuleNotFoundError as error:
            raise ImportError(f'LLM needs {error.name}: pip install "nvexplore[run]"') from error
        from nvexplore.model_config import ModelConfig

        self.path = resolve_checkpoint(model)
        self.config = config
        self.model_config = ModelConfig.from_path(self.path)
        max_model_len = config.model_len(self.model_config.max_position_embeddings)
        self.tokenizer = AutoTokenizer.from_pretrained(self.path)
        self.runner: ModelRunner | None = ModelRunner(
            self.path,
            self.model_config,
            device=config.device,
            dtype=config.dtype,
            block_size=config.block_size,
            num_kvcache_blocks=config.num_kvcache_blocks,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_num_seqs=config.max_num_seqs,
            max_model_len=max_model_len,
            attention_backend=config.attention_backend,
            seed=config.seed,
        )
        self._engine: Engine | None = Engine(
            config.limits(num_blocks=self.runner.num_blocks, max_model_len=max_model_len),
            self.runner,
            eos_token_ids=self.model_config.eos_token_ids,
            vocab_size=self.model_config.vocab_size,
        )
        self._lock = threading.RLock()

    @property
    def engine(self) -> Engine:
        """The engine; RuntimeError once the LLM is closed."""
        if self._engine is None:
            raise RuntimeError("this LLM is closed; make a new one")
        return self._engine

    # ------------------------------------------------------------------ text

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text``, with the special tokens that the tokenizer adds by itself."""
        return list(self.tokenizer.encode(text))

    def decode(self, token_ids: Iterable[int]) -> str:
        """Text of ``token_ids``, without special tokens."""
        return str(self.tokenizer.decode(list(token_ids), skip_special_tokens=True))

    def chat_prompt(self, messages: Messages) -> list[int]:
        """Token ids of a conversation in the model's template, ready for the assistant's turn.

        messages: dicts with "role" and "content". Raises ValueError if the model has no chat template.
        """
        if not self.tokenizer.chat_template:
            raise ValueError(f"the tokenizer of {self.path} has no chat template; use generate()")
        ids = self.tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, return_dict=False)
        return list(ids)

    # ------------------------------------------------------------------ one batch at a time

    def add_request(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None, *, request_id: str | None = None
    ) -> Sequence:
        """Queue a prompt (text or token ids); the Sequence returned fills up as ``step`` is called."""
        with self._lock:
            return self.engine.add_request(self._ids(prompt), sampling_params, request_id=request_id)

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

    def steps(self) -> Iterator[StepRecord]:
        """Step until every request has finished; yields one record a step."""
        while self.has_unfinished:
            yield self.step()

    # ------------------------------------------------------------------ whole prompts

    def generate(
        self,
        prompts: Prompt | SequenceOf[Prompt],
        sampling_params: SamplingParams | SequenceOf[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[GenerationOutput]:
        """Complete ``prompts`` (texts or lists of token ids; one SamplingParams for all, or one each), in order.

        A bad prompt is refused before any is queued. An interrupt ends this call's requests and leaves others be.
        """
        batch = _as_list(prompts)
        params = _params_for(batch, sampling_params)
        engine = self.engine
        with self._lock:
            checked = [engine.check_request(self._ids(p), s) for p, s in zip(batch, params, strict=True)]
        seqs: list[Sequence] = []
        try:
            for ids, each in zip(checked, params, strict=True):
                with self._lock:
                    seqs.append(engine.add_request(ids, each))
            self._run(seqs, use_tqdm)
        except BaseException:
            with self._lock:
                for seq in seqs:
                    if not seq.is_finished:
                        engine.abort(seq.request_id)
            raise
        return [self._output(seq) for seq in seqs]

    def chat(
        self, messages: Messages, sampling_params: SamplingParams | None = None, *, use_tqdm: bool = False
    ) -> GenerationOutput:
        """The assistant's answer to one conversation, in the model's template."""
        return self.generate([self.chat_prompt(messages)], sampling_params, use_tqdm=use_tqdm)[0]

    def _run(self, seqs: list[Sequence], use_tqdm: bool) -> None:
        done = 0
        with closing(progress_bar(sum(s.sampling_params.max_tokens for s in seqs), use_tqdm)) as bar:
            while not all(seq.is_finished for seq in seqs):
                with self._lock:
                    self.engine.step()
                now = sum(seq.num_completion_tokens for seq in seqs)
                bar.update(now - done)
                done = now

    def _output(self, seq: Sequence) -> GenerationOutput:
        token_ids = seq.completion_token_ids
        return GenerationOutput(
            request_id=seq.request_id,
            prompt_token_ids=seq.prompt_token_ids,
            token_ids=token_ids,
            text=self.decode(token_ids),
            finish_reason=seq.finish_reason,
            num_cached_tokens=seq.num_cached_tokens,
        )

    def _ids(self, prompt: Prompt) -> SequenceOf[int]:
        return self.encode(prompt) if isinstance(prompt, str) else prompt

    # ------------------------------------------------------------------ the end

    @property
    def is_closed(self) -> bool:
        return self._engine is None

    def close(self) -> None:
        """Free weights and KV pool; a second call does nothing."""
        runner, self.runner, self._engine = self.runner, None, None
        if runner is not None:
            runner.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def _as_list(prompts: Prompt | SequenceOf[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str):
        return [prompts]
    batch = list(prompts)
    if batch and not any(isinstance(p, (str, bytes)) or hasattr(p, "__iter__") for p in batch):
        return [batch]  # type: ignore[list-item]  # one prompt of token ids
    return batch  # type: ignore[return-value]


def _params_for(
    batch: list[Prompt], params: SamplingParams | SequenceOf[SamplingParams] | None
) -> list[SamplingParams]:
    if params is None:
        params = SamplingParams()
    if isinstance(params, SamplingParams):
        return [params] * len(batch)
    each = list(params)
    if len(each) != len(batch):
        raise ValueError(f"sampling_params: {len(each)} given for {len(batch)} prompts; give one, or one a prompt")
    return each
