"""The options of an engine as users give them. Knows neither torch nor the scheduler; turns into EngineLimits."""

from __future__ import annotations

import ast
import difflib
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from nvexplore.engine.eviction import Eviction, make_eviction
from nvexplore.engine.limits import EngineLimits
from nvexplore.engine.policy import Policy, make_policy

if TYPE_CHECKING:
    from nvexplore.model_config import ModelConfig

DEFAULT_MAX_MODEL_LEN = 4096
_BLOCK_SIZE = 16
_FLASH_ATTN_BLOCK_SIZE = 256  # flash-attn 2 takes multiples of it only, and flash-attn-4 is fastest with it
_MOST_ROWS = 2**24  # sequences, or tokens of a step: some memory is set aside for each beforehand
_LARGEST_SEED = 2**63 - 1  # that of a request too
_AttentionName = Literal["auto", "torch", "triton", "flash_attn"]
_DEFAULTS = {
    "cpu": {"max_num_seqs": 32, "max_num_batched_tokens": 512, "overlap": False},
    "cuda": {"max_num_seqs": 512, "max_num_batched_tokens": 16_384, "overlap": True},
}
_BACKEND = (
    *("attention_backend", "prefill_backend", "decode_backend", "kv_cache_dtype"),
    *("compile_layers", "gpu_memory_utilization"),
)
_POOL = (
    *("dtype", "seed", "block_size", "num_kvcache_blocks", "max_num_batched_tokens", "max_num_seqs"),
    *("enforce_eager", "tensor_parallel_size"),
)


def _option(default: Any, help: str, nano_vllm: str = "", **limits: Any) -> Any:
    return Field(default, description=help, json_schema_extra={"nano_vllm": nano_vllm}, **limits)


def _known_policy(policy: str | Policy) -> str | Policy:
    make_policy(policy)
    return policy


def _known_eviction(eviction: str | Eviction) -> str | Eviction:
    make_eviction(eviction)
    return eviction


class EngineConfig(BaseModel):
    """Options of ``LLM(model, **options)``; unknown ones are refused with the nearest name.

    ``None`` means: chosen when the model is loaded (see each description).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, arbitrary_types_allowed=True)

    max_num_seqs: int | None = _option(
        None,
        "sequences that hold KV blocks at the same time, at most; None: 32 on a CPU, 512 on a GPU",
        "max_num_seqs",
        ge=1,
        le=_MOST_ROWS,
    )
    max_num_batched_tokens: int | None = _option(
        None,
        "tokens a step, at most: longer prompts run in chunks; None: 512 on a CPU, 16384 on a GPU",
        "max_num_batched_tokens",
        ge=1,
        le=_MOST_ROWS,
    )
    max_model_len: int | None = _option(
        None,
        f"prompt + completion tokens of a request, at most; None: the model's limit, but at most "
        f"{DEFAULT_MAX_MODEL_LEN}",
        "max_model_len",
        ge=1,
    )
    block_size: int | None = _option(
        None,
        f"tokens a KV block; None: {_BLOCK_SIZE}, or {_FLASH_ATTN_BLOCK_SIZE} where `flash_attn` is asked for",
        "kvcache_block_size",
        ge=1,
    )
    num_kvcache_blocks: int | None = _option(
        None,
        "KV blocks in the pool; None: as many as fit (at most 1 GiB on a CPU)",
        "num_kvcache_blocks",
        ge=1,
    )
    enable_prefix_caching: bool = _option(True, "share the KV blocks of equal prompt beginnings")
    prefix_hash: Literal["xxhash", "sha256"] = _option(
        "xxhash",
        "what equal beginnings are found by; `sha256` where prompts come from those who would like them to collide "
        "(a hit always compares the ids too)",
    )
    eviction: Annotated[str | Eviction, AfterValidator(_known_eviction)] = _option(
        "lru",
        "which free block is allocated next and loses its prefix: `lru` the one freed longest ago; `lfu` of the 64 "
        "oldest the one hit least; or an Eviction object of your own",
    )
    policy: Annotated[str | Policy, AfterValidator(_known_policy)] = _option(
        "prefill_first",
        "who runs first: `prefill_first` runs prompts before decoding; `mixed` decodes in every step and gives prompts "
        "the rest of the budget; or a Policy object of your own",
    )
    attention_backend: _AttentionName = _option(
        "auto",
        "implementation of attention: `torch` on a CPU; `triton`, or the packages flash-attn or flash-attn-4 as "
        "`flash_attn`, on a GPU; auto: the fastest that fits",
    )
    prefill_backend: _AttentionName | None = _option(
        None, "attention of steps with prompt tokens; None: what `attention_backend` says"
    )
    decode_backend: _AttentionName | None = _option(
        None, "attention of steps with decode rows alone; None: what `attention_backend` says"
    )
    device: str = _option("auto", "where the model runs: `cpu`, `cuda` or `cuda:1`; auto: the GPU where there is one")
    gpu_memory_utilization: float = _option(
        0.9, "share of the GPU's memory that weights, steps and KV pool may take", "gpu_memory_utilization", gt=0, le=1
    )
    tensor_parallel_size: int = _option(
        1,
        "processes among which each layer is split: on a CPU to see how, on GPUs one each from `device` on",
        "tensor_parallel_size",
        ge=1,
    )
    enforce_eager: bool = _option(False, "capture no CUDA graphs", "enforce_eager")
    overlap: bool | None = _option(
        None,
        "runs plan each step while the one before is being computed, and read its tokens a step late; None: on a GPU",
    )
    compile_layers: bool = _option(
        False, "on a GPU: norms, rotation, SiLU and sampler by torch.compile, as nano-vLLM's are, not by fused kernels"
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = _option(
        "auto", "number format of weights and KV; auto: the checkpoint's"
    )
    kv_cache_dtype: Literal["auto", "fp8"] = _option(
        "auto",
        "number format of KV alone; auto: `dtype`; `fp8`: 8 bits (e4m3, no scales, beyond 448 it is 448), which makes "
        "room for about twice as many blocks as 16 bits do and rounds each value to 4 significant bits",
    )
    seed: int = _option(0, "of the sampler; equal seeds give equal tokens", ge=0, le=_LARGEST_SEED)

    @classmethod
    def of(cls, **options: Any) -> Self:
        """Check ``options``; raises TypeError for an unknown name, ValueError naming option, value and limit."""
        for name in options:
            if name not in cls.model_fields:
                near = difflib.get_close_matches(name, cls.model_fields, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else f"; the options are {', '.join(cls.model_fields)}"
                raise TypeError(f"unknown option {name!r}{hint}")
        try:
            return cls(**options)
        except ValidationError as error:
            problems = [_problem(detail) for detail in error.errors()]
            raise ValueError("; ".join(problems)) from None

    def on(self, device_type: str) -> Self:
        """These options with the defaults that depend on the device ("cpu" or "cuda") and on each other filled in."""
        asked = (self.prefill_backend or self.attention_backend, self.decode_backend or self.attention_backend)
        block_size = _FLASH_ATTN_BLOCK_SIZE if "flash_attn" in asked else _BLOCK_SIZE
        defaults = {"block_size": block_size, **_DEFAULTS[device_type]}
        return self.model_copy(update={name: v for name, v in defaults.items() if getattr(self, name) is None})

    def backend_options(self) -> dict[str, Any]:
        """The options that decide what computes, by the names that ``create_backend`` gives them."""
        return {name: getattr(self, name) for name in _BACKEND}

    def runner_options(self) -> dict[str, Any]:
        """These and the pool's, by the names that ``ModelRunner`` gives them."""
        return self.backend_options() | {name: getattr(self, name) for name in _POOL}

    def model_len(self, model: ModelConfig) -> int:
        """The length limit for a model; a ValueError says why it cannot run as long sequences as are asked for."""
        if self.max_model_len is None:
            return min(model.max_positions, DEFAULT_MAX_MODEL_LEN)
        return model.check_max_model_len(self.max_model_len)

    def limits(self, *, num_blocks: int, max_model_len: int) -> EngineLimits:
        """The engine's limits once the pool's size is known."""
        if self.max_num_seqs is None or self.max_num_batched_tokens is None or self.block_size is None:
            return self.on("cpu").limits(num_blocks=num_blocks, max_model_len=max_model_len)
        return EngineLimits(
            num_blocks=num_blocks,
            block_size=self.block_size,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_model_len=max_model_len,
            enable_prefix_caching=self.enable_prefix_caching,
            policy=self.policy,
            prefix_hash=self.prefix_hash,
            eviction=self.eviction,
        )


def parse_option(text: str) -> tuple[str, Any]:
    """``key=value`` as a command line has it: the value a Python literal, or else a string. ValueError for no key."""
    key, equals, value = text.partition("=")
    key = key.replace("-", "_")
    if not equals or not key.isidentifier():
        raise ValueError(f"{text!r} is not of the form key=value")
    try:
        return key, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return key, value


def _problem(detail: Any) -> str:
    if detail["type"] == "value_error":  # one of our own checks, which names option and value itself
        return str(detail["ctx"]["error"])
    message = detail["msg"]
    return f"{detail['loc'][0]}={detail['input']!r}: {message[:1].lower()}{message[1:]}"


def options_table() -> str:
    """The options as a Markdown table, nano-vLLM's names beside; the README holds its output."""
    rows = ["| option | default | meaning | nano-vLLM |", "|---|---|---|---|"]
    for name, field in EngineConfig.model_fields.items():
        extra = field.json_schema_extra
        nano = extra.get("nano_vllm") if isinstance(extra, dict) else ""
        rows.append(f"| `{name}` | `{field.default!r}` | {field.description} | {f'`{nano}`' if nano else ''} |")
    return "\n".join(rows) + "\n"
