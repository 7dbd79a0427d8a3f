"""The serving workloads, at any size. All but one know engines by ``generate`` alone.

So every engine is measured in the same way: first token and step times are differences of whole calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from nvexplore.bench.serving import IDS, WORKLOADS, CountsHits, Figure, Server, Serving, Source, seconds
from nvexplore.bench.serving_arrivals import mixed_arrivals

BATCHES: Final = (1, 8, 32, 64)
_WITH_OPTIONS: Final = ("nvexplore", "recorded")

Floor = Callable[[Sequence[int], Sequence[int]], float]
"""The least seconds on this machine for requests with prompts of such lengths, and so many new tokens each."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large the workloads are.

    scale:         of counts and lengths; 1 is nano-vLLM's own benchmark, and what goes with it.
    ids:           prompts are of token ids below it.
    max_model_len: no request is longer.
    rate:          requests a second of mixed-arrivals; None: all arrive within ARRIVAL_SECONDS or so.
    """

    scale: float = 1.0
    ids: int = IDS
    max_model_len: int = 40_960
    rate: float | None = None

    def of(self, full: int, least: int = 1) -> int:
        """``full`` at this scale."""
        return max(least, round(full * self.scale))

    def new(self, full: int, least: int = 1) -> int:
        """``full`` tokens at this scale, but no more than a quarter of what a request may have."""
        return max(1, min(self.of(full, least), self.max_model_len // 4))

    def prompt(self, full: int, new: int) -> int:
        """The length of a prompt that is completed by ``new`` tokens."""
        return max(1, min(self.of(full, 4), self.max_model_len - new))


def workloads(
    names: Sequence[str], sizes: Sizes, floor: Floor | None = None, peer_floor: Floor | None = None
) -> list[Serving]:
    """Those of ``names`` (of WORKLOADS), in the order of WORKLOADS; a step at each batch size is one of its own.

    peer_floor: that of engines which do not have nvexplore's options; None: the same.
    """
    makers: dict[str, Callable[[], list[Serving]]] = {
        "throughput": lambda: [_throughput(sizes, floor, peer_floor)],
        "step": lambda: _steps(sizes),
        "first-token": lambda: [_first_token(sizes)],
        "prefill": lambda: [_prefill(sizes)],
        "shared-prefix": lambda: [_shared_prefix(sizes)],
        "mixed-arrivals": lambda: [_mixed_arrivals(sizes)],
    }
    return [each for name in WORKLOADS if name in names for each in makers[name]()]


def throughput(
    server: Server,
    seed: int,
    *,
    ids: int,
    count: int,
    longest: int,
    floor: Floor | None,
    peer_floor: Floor | None = None,
) -> list[Figure]:
    """nano-vLLM's own benchmark: 256 prompts of 100 to 1,024 ids, as many new tokens each, all at once."""
    source, least = Source("throughput", seed, ids), max(1, longest * 100 // 1024)
    prompts = [source.prompt(source.between(least, longest)) for _ in range(count)]
    max_tokens = [source.between(least, longest) for _ in range(count)]
    took = seconds(server, prompts, max_tokens)
    figures = [Figure("output", "", sum(max_tokens) / took, "tokens/s", True)]
    if peer_floor is not None and server.name not in _WITH_OPTIONS:
        floor = peer_floor
    if floor is not None:
        share = floor([len(prompt) for prompt in prompts], max_tokens) / took
        figures.append(Figure("share of the floor's speed", "", 100 * share, "%", None))
    return figures


def decode_step(server: Server, seed: int, *, ids: int, batch: int, prompt: int, short: int, new: int) -> list[Figure]:
    """Milliseconds a step: a completion of ``short + new`` tokens less one of ``short``, over the tokens between."""
    source = Source(f"step at batch {batch}", seed, ids)
    took = [
        seconds(server, [source.prompt(prompt) for _ in range(batch)], [tokens] * batch)
        for tokens in (short, short + new)
    ]
    return [Figure("decode step", f"batch {batch}", (took[1] - took[0]) / new * 1e3, "ms", False)]


def first_token(server: Server, seed: int, *, ids: int, prompt: int) -> list[Figure]:
    took = seconds(server, [Source("first token", seed, ids).prompt(prompt)], [1])
    return [Figure("time to first token", f"{prompt:,} ids", took * 1e3, "ms", False)]


def prefill(server: Server, seed: int, *, ids: int, count: int, prompt: int) -> list[Figure]:
    source = Source("prefill", seed, ids)
    took = seconds(server, [source.prompt(prompt) for _ in range(count)], [1] * count)
    return [Figure("prefill", f"{count} x {prompt:,} ids", count * prompt / took, "prompt tokens/s", True)]


def shared_prefix(server: Server, seed: int, *, ids: int, count: int, shared: int, own: int, new: int) -> list[Figure]:
    """Many requests whose prompts begin alike, each with an end of its own."""
    source = Source("shared prefix", seed, ids)
    head = source.prompt(shared)
    took = seconds(server, [head + source.prompt(own) for _ in range(count)], [new] * count)
    figures = [Figure("all requests", f"{count} x ({shared:,} + {own:,}) ids", took, "s", False)]
    if isinstance(server, CountsHits):
        rate = 100 * server.num_cached_tokens / (count * (shared + own))
        figures.append(Figure("hit rate", "of prompt tokens", rate, "%", None))
    return figures


def _throughput(sizes: Sizes, floor: Floor | None, peer_floor: Floor | None) -> Serving:
    longest = max(1, min(sizes.of(1024, 2), sizes.max_model_len // 2))
    count = sizes.of(256, 2)
    run = partial(throughput, ids=sizes.ids, count=count, longest=longest, floor=floor, peer_floor=peer_floor)
    return Serving("throughput", run, 2 * longest)


def _steps(sizes: Sizes) -> list[Serving]:
    short, new = sizes.new(8, 2), sizes.new(128, 8)
    prompt = sizes.prompt(64, short + new)
    batches = dict.fromkeys(batch if batch == 1 else sizes.of(batch) for batch in BATCHES)
    runs = [partial(decode_step, ids=sizes.ids, batch=each, prompt=prompt, short=short, new=new) for each in batches]
    return [Serving("step", run, prompt + short + new) for run in runs]


def _first_token(sizes: Sizes) -> Serving:
    prompt = sizes.prompt(64, 1)
    return Serving("first-token", partial(first_token, ids=sizes.ids, prompt=prompt), prompt + 1)


def _prefill(sizes: Sizes) -> Serving:
    prompt = sizes.prompt(8192, 1)
    return Serving("prefill", partial(prefill, ids=sizes.ids, count=sizes.of(8, 2), prompt=prompt), prompt + 1)


def _shared_prefix(sizes: Sizes) -> Serving:
    own, new = sizes.new(64, 4), sizes.new(64, 2)
    shared = sizes.prompt(2048, own + new)
    run = partial(shared_prefix, ids=sizes.ids, count=sizes.of(256, 2), shared=shared, own=own, new=new)
    return Serving("shared-prefix", run, shared + own + new)


def _mixed_arrivals(sizes: Sizes) -> Serving:
    new = sizes.new(256, 4)
    longest = sizes.prompt(1024, new)
    count = sizes.of(256, 4)
    run = partial(mixed_arrivals, ids=sizes.ids, count=count, longest=longest, new=new, rate=sizes.rate)
    return Serving("mixed-arrivals", run, longest + new, is_streaming=True)
