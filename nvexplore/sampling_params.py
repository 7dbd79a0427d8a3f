"""What a request asks of the sampler, checked when it is made. Knows nothing of engines or devices.

How a token is chosen from a row of logits, in this order:

1. penalties: repetition, then frequency and presence, on the raw logits;
2. while the completion has fewer than ``min_tokens`` tokens, end-of-sequence and stop ids get no probability;
3. temperature 0: the maximum, the smallest id on ties. That is all: nothing below applies;
4. temperature: the logits are divided by it;
5. top_k: exactly k tokens stay; of equal logits the smaller id stays;
6. top_p: the probabilities of what is left are renormalised; tokens stay in falling order (equal ones: the smaller
   id first) until their sum reaches top_p, the one that reaches it included;
7. min_p: tokens below ``min_p`` times the largest probability go;
8. one draw from what is left, which depends on the seed, the sample's index and the token's position alone.

The most likely token survives every filter.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

from nvexplore.checks import check_int, check_number, check_text

_LARGEST_INT = 2**63 - 1  # that of tensors; records and recordings have no room for much larger ones either
_MOST_SAMPLES = 16_384  # each is a sequence of its own, made at once
_HOTTEST = 1e30  # hotter than this no logit matters any more, and float32 would soon have infinity
_LEAST_REPETITION, _MOST_REPETITION = 1e-20, 1e20  # beyond, float32 would have 0 or infinity of a logit


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the tokens of one request are chosen and when it ends.

    temperature:        0 is greedy, otherwise logits are divided by it; >= 0, more than 1e30 is 1e30.
    top_k:              keep the k largest logits; 0, -1 or None is off; more than the vocabulary is all of it.
    top_p:              keep the smallest set of likeliest tokens with at least this probability; in (0, 1], 1 is off.
    min_p:              keep tokens with at least this share of the largest probability; in [0, 1], 0 is off.
    repetition_penalty: positive logits of tokens in prompt or completion are divided by it, negative ones multiplied;
                        in [1e-20, 1e20], 1 is off.
    presence_penalty:   subtracted from the logit of every token in the completion; in [-2, 2].
    frequency_penalty:  subtracted once for each time the token is in the completion; in [-2, 2].
    seed:               draws depend on it instead of the engine's seed and the request's number: the same prompt gives
                        the same tokens again, in any company; in [0, 2**63 - 1], or None.
    max_tokens:         completion tokens at most, >= 1.
    min_tokens:         the first so many completion tokens end nothing: no end-of-sequence or stop id is chosen, and
                        no stop string looked for; at most max_tokens.
    stop:               a string or several; the text ends before the first that appears in the completion. Special
                        tokens have no text there: they are named by stop_token_ids.
    stop_token_ids:     ids that end the completion beside the model's end-of-sequence ids.
    ignore_eos:         the model's end-of-sequence ids end nothing; stop and stop_token_ids still do.
    logprobs:           tell the log probabilities of each chosen token and of the so many likeliest; None: none.
    prompt_logprobs:    the same for the tokens of the prompt, which is then computed without the prefix cache.
    n:                  completions of the prompt, in [1, 16384].
    cache_salt:         prompts share KV blocks only with prompts of the same salt, so that nobody can tell from its
                        speed what others have asked; a string of at least 1 character, or None.
    Log probabilities are natural logs of the softmax of the raw logits: before everything listed in this module.
    No integer exceeds 2**63 - 1, and texts are whole characters: a lone surrogate is none.
    Raises TypeError or ValueError naming the argument, its value and the limit.
    """

    temperature: float = 1.0
    top_k: int | None = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    max_tokens: int = 64
    min_tokens: int = 0
    stop: str | Iterable[str] = ()
    stop_token_ids: Iterable[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    n: int = 1
    cache_salt: str | None = None

    def __post_init__(self) -> None:
        for name, value in _checked(self).items():
            object.__setattr__(self, name, value)

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return cast("tuple[str, ...]", self.stop)  # that is how it is kept

    @property
    def has_penalties(self) -> bool:
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    @property
    def has_filters(self) -> bool:
        """top_k, top_p or min_p removes tokens (none of them matters to greedy choice)."""
        return self.temperature > 0 and (bool(self.top_k) or self.top_p < 1 or self.min_p > 0)

    @property
    def is_plain(self) -> bool:
        """Temperature, seed and position alone choose the tokens, and nothing but the tokens is asked for."""
        return not (
            self.has_penalties
            or self.has_filters
            or self.min_tokens
            or self.logprobs is not None
            or self.prompt_logprobs is not None
        )

    @property
    def needs_host(self) -> bool:
        """The host must know each token before the next can be drawn, or is asked for more than the tokens."""
        return self.has_penalties or self.logprobs is not None or self.prompt_logprobs is not None

    def to_dict(self) -> dict[str, Any]:
        """All fields as JSON has them."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        values["stop"], values["stop_token_ids"] = list(self.stop_strings), list(self.stop_token_ids)
        return values


def _checked(params: SamplingParams) -> dict[str, Any]:
    """Every field checked, in the one form it is kept in."""
    p = params
    checked: dict[str, Any] = {
        "temperature": min(check_number("temperature", p.temperature, minimum=0), _HOTTEST),
        "top_k": 0 if p.top_k is None else min(max(0, check_int("top_k", p.top_k, minimum=-1)), _LARGEST_INT),
        "top_p": check_number("top_p", p.top_p, above=0, maximum=1),
        "min_p": check_number("min_p", p.min_p, minimum=0, maximum=1),
        "repetition_penalty": check_number(
            "repetition_penalty", p.repetition_penalty, above=0, minimum=_LEAST_REPETITION, maximum=_MOST_REPETITION
        ),
        "presence_penalty": check_number("presence_penalty", p.presence_penalty, minimum=-2, maximum=2),
        "frequency_penalty": check_number("frequency_penalty", p.frequency_penalty, minimum=-2, maximum=2),
        "seed": None if p.seed is None else _count("seed", p.seed),
        "max_tokens": _count("max_tokens", p.max_tokens, minimum=1),
        "stop": _strings(p.stop),
        "stop_token_ids": _ids(p.stop_token_ids),
        "n": check_int("n", p.n, minimum=1, maximum=_MOST_SAMPLES),
        "cache_salt": _salt(p.cache_salt),
    }
    checked["min_tokens"] = check_int("min_tokens", p.min_tokens, minimum=0)
    if checked["min_tokens"] > checked["max_tokens"]:
        raise ValueError(f"min_tokens={p.min_tokens}: must be at most max_tokens={p.max_tokens}")
    for name in ("logprobs", "prompt_logprobs"):
        count = getattr(p, name)
        checked[name] = None if count is None else _count(name, count)
    if not isinstance(p.ignore_eos, bool):
        raise TypeError(f"ignore_eos={p.ignore_eos!r}: must be True or False")
    return checked


def _count(name: str, value: Any, *, minimum: int = 0) -> int:
    return check_int(name, value, minimum=minimum, maximum=_LARGEST_INT)


def _salt(salt: Any) -> str | None:
    if salt is None:
        return None
    if not isinstance(salt, str):
        raise TypeError(f"cache_salt={salt!r}: must be a str or None, not {type(salt).__name__}")
    if not salt:
        raise ValueError("cache_salt='': must have at least 1 character; None shares with everybody")
    return check_text("cache_salt", salt)


def _strings(stop: Any) -> tuple[str, ...]:
    if isinstance(stop, str):
        stop = (stop,)
    if isinstance(stop, bytes) or not isinstance(stop, Iterable):
        raise TypeError(f"stop={stop!r}: must be a string or several, not {type(stop).__name__}")
    strings = tuple(check_text(f"stop[{i}]", each) for i, each in enumerate(stop))
    for i, each in enumerate(strings):
        if not each:
            raise ValueError(f"stop[{i}]='': must have at least 1 character")
    return strings


def _ids(ids: Any) -> tuple[int, ...]:
    if isinstance(ids, (str, bytes)) or not isinstance(ids, Iterable):
        raise TypeError(f"stop_token_ids={ids!r}: must be integers, not {type(ids).__name__}")
    return tuple(_count(f"stop_token_ids[{i}]", each) for i, each in enumerate(ids))
