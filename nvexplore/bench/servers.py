"""nvexplore as a server of whole prompts, and how any server is made. Each is imported only when it is asked for."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from nvexplore.bench.serving import TEMPERATURE, Arrival, Server
from nvexplore.bench.serving_arrivals import Progress, serve
from nvexplore.bench.serving_peers import NanoVllm, Transformers, Vllm
from nvexplore.sampling_params import SamplingParams

if TYPE_CHECKING:
    from nvexplore.engine.sequence import Sequence as EngineSequence
    from nvexplore.llm import LLM
    from nvexplore.model_config import ModelConfig

# What loading spends its time on, by the names of the runner's stages.
STAGES: Final = {"weights": ("weights",), "compile and warm-up": ("memory", "warm_up"), "graph capture": ("capture",)}


class Nvexplore:
    """``LLM.generate`` with its defaults; ``options`` are EngineConfig's."""

    name = "nvexplore"

    def __init__(self, path: Path, *, dtype: str, max_model_len: int, memory: float, **options: Any) -> None:
        # To import is no part of loading: a peer has imported what it needs, these packages among it, before.
        import transformers  # noqa: F401

        import nvexplore.runner.model_runner  # noqa: F401
        from nvexplore.llm import LLM

        begin = time.perf_counter()
        self._llm = LLM(path, dtype=dtype, max_model_len=max_model_len, gpu_memory_utilization=memory, **options)
        self.load_seconds = time.perf_counter() - begin
        self.stages = grouped(getattr(self._llm.runner, "load_times", {}), self.load_seconds)
        self.num_cached_tokens = 0

    @property
    def backends(self) -> dict[str, str]:
        """What computes attention, by phase, and whether decode steps are graphs: as the engine's records name it."""
        assert self._llm.runner is not None
        prefill, decode = (self._llm.runner.backend.dispatch(*rows) for rows in ((1, 0), (0, 1)))
        graphs = "no graphs" if decode.graph_size is None else "graphs"
        return {"prefill": str(prefill.prefill_backend), "decode": f"{decode.decode_backend}, {graphs}"}

    def generate(self, prompts: list[list[int]], max_tokens: list[int]) -> int:
        outputs = self._llm.generate(prompts, [_params(count) for count in max_tokens], use_tqdm=False)
        self.num_cached_tokens = sum(output.num_cached_tokens for output in outputs)
        return sum(len(output.token_ids) for output in outputs)

    def serve(self, arrivals: Sequence[Arrival]) -> list[list[float]]:
        return serve(_Steps(self._llm), arrivals)

    def close(self) -> None:
        self._llm.close()


class Recorded(Nvexplore):
    """The same with a recorder attached, which keeps what every step tells: a peer that shows what watching costs."""

    name = "recorded"
    module = "nvexplore"
    how_to_get = ""

    def __init__(self, path: Path, **options: Any) -> None:
        super().__init__(path, **options)
        from nvexplore.explore.recorder import Recorder

        self.recorder = Recorder()
        self._subscription = self._llm.engine.subscribe(self.recorder)

    @classmethod
    def refusal(cls, config: ModelConfig, dtype: str, *, has_gpu: bool) -> str | None:
        return None

    def close(self) -> None:
        self._subscription.close()
        super().close()


class _Steps:
    """Steps nobody watches: no records are built."""

    def __init__(self, llm: LLM) -> None:
        from nvexplore.generation import advance

        self._llm, self._advance = llm, advance
        self._running: dict[int, EngineSequence] = {}

    def add(self, number: int, arrival: Arrival) -> None:
        self._running[number] = self._llm.add_request(arrival.prompt, _params(arrival.max_tokens))

    def step(self) -> list[Progress]:
        self._advance(self._llm.engine)
        told = [Progress(i, seq.num_completion_tokens, seq.is_finished) for i, seq in self._running.items()]
        for each in told:
            if each.is_finished:
                del self._running[each.number]
        return told


def _params(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=TEMPERATURE, ignore_eos=True, max_tokens=max_tokens)


def grouped(load_times: dict[str, float], total: float) -> dict[str, float]:
    """A runner's stages as a reader wants them, and as "other" what is left of ``total``; empty if there are none."""
    if not load_times:
        return {}
    stages = {name: sum(load_times.get(part, 0.0) for part in parts) for name, parts in STAGES.items()}
    return {**stages, "other": max(0.0, total - sum(stages.values()))}


SERVERS: Final[dict[str, Any]] = {server.name: server for server in (Nvexplore, Recorded, NanoVllm, Vllm, Transformers)}


class PeerError(Exception):
    """A peer that cannot be run here; the message says why, and what to install or give."""


def find_peer(name: str, peer_path: Path | None) -> None:
    """Make the peer ``name`` importable, from the folder ``peer_path`` where one is given; PeerError if it is not."""
    peer = SERVERS[name]
    if peer_path is not None:
        folder = str(peer_path.resolve())
        if not peer_path.is_dir():
            raise PeerError(f"--peer-path {peer_path}: no such folder")
        if folder not in sys.path:
            sys.path.insert(0, folder)
    if importlib.util.find_spec(peer.module) is None:
        where = "is not installed" if peer_path is None else f"is not in {peer_path}"
        raise PeerError(f"--peer {name}: {peer.module} {where}; {peer.how_to_get}")


def make_server(
    name: str, path: Path, *, dtype: str, max_model_len: int, memory: float, options: dict[str, Any] | None = None
) -> Server:
    """Load ``path`` into the engine ``name``, which may take the share ``memory`` of a GPU's.

    options: EngineConfig's, for an engine of ours.
    PeerError where it cannot be imported: what it needs besides itself shows only then.
    """
    try:
        made = SERVERS[name]
        own = (options or {}) if made in (Nvexplore, Recorded) else {}
        server: Server = made(path, dtype=dtype, max_model_len=max_model_len, memory=memory, **own)
    except ImportError as error:
        raise PeerError(f"{name} cannot be imported: {error}") from error
    return server
