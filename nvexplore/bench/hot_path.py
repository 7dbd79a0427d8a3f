"""Measures one generation in several ways, step by step: where its time goes on the host and on the device."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from nvexplore import __version__
from nvexplore.bench.hot_path_census import Census, census_of
from nvexplore.bench.hot_path_results import HotPath, Requests, Variant, recorded
from nvexplore.bench.hot_path_steps import Steps, steps_of
from nvexplore.bench.hot_path_watch import CudaClock, Watch
from nvexplore.bench.serving import IDS, TEMPERATURE
from nvexplore.engine.events import Snapshot, StepRecord
from nvexplore.sampling_params import SamplingParams

if TYPE_CHECKING:
    import torch

    from nvexplore.llm import LLM

__all__ = ["MANY", "VARIANTS", "HotPath", "Requests", "Variant", "measure", "recorded"]

VARIANTS: Final[dict[str, dict[str, Any]]] = {
    "eager": {"enforce_eager": True, "overlap": False},
    "graphs": {"overlap": False},
    "graphs + overlap": {"overlap": True},
    "compile_layers": {"compile_layers": True, "overlap": True},
    "flash_attn": {"attention_backend": "flash_attn", "overlap": True},
}
"""Each with the options that make it."""
MANY: Final = Requests(num=256, prompt_len=512, first_end=33, every=1)
"""Many long ones: their run has steps of 256 rows down to one, and reading their keys and values takes time."""
CROWD: Final = "a crowd"
_PACKAGES: Final = ("torch", "triton", "flash-attn", "flash-attn-4")


def measure(
    model: str | Path,
    variants: Mapping[str, Mapping[str, Any]] = VARIANTS,
    requests: Requests | None = None,
    *,
    crowd: Requests | None = None,
    passes: int = 3,
    tell: Callable[[str], None] = lambda line: None,
    **options: Any,
) -> HotPath:
    """Run the same requests in each way; ``options`` of the engine are for all of them. crowd: see ``HotPath``.

    RuntimeError if none can be run. What only one lacks (a package, a compiler) leaves that one out.
    """
    from nvexplore.backends import resolve_device

    device = resolve_device(options.get("device", "auto"))
    bandwidth = _read_bytes_per_s(device)
    wanted = {name: ({**options, **own}, requests or Requests()) for name, own in variants.items()}
    if crowd is not None:
        wanted[CROWD] = options, crowd
    found: dict[str, Variant] = {}
    left_out: dict[str, str] = {}
    for name, (own, asked) in wanted.items():
        tell(f"measuring {name}")
        try:
            found[name] = _measure_one(model, own, asked, passes)
        except Exception as error:  # whatever a package, a compiler or a device raises
            left_out[name] = (str(error) or type(error).__name__).splitlines()[0]
            tell(f"{name} is left out: {left_out[name]}")
    if not found:
        raise RuntimeError(f"nothing could be measured: {left_out}")
    return HotPath(
        device=_name_of(device),
        versions={"nvexplore": __version__, **_versions()},
        date=datetime.now(UTC).date().isoformat(),
        model=str(model) if str(model) == "demo" or str(model).startswith("random:") else Path(model).name,
        read_bytes_per_s=bandwidth,
        crowd=found.pop(CROWD, None),
        variants=found,
        left_out=left_out,
    )


def _measure_one(model: str | Path, options: dict[str, Any], requests: Requests, passes: int) -> Variant:
    from nvexplore.llm import LLM

    longest = requests.prompt_len + requests.max_tokens[-1]
    began = time.perf_counter()
    with LLM(model, **{"max_num_seqs": requests.num, "max_model_len": longest, **options}) as llm:
        load_seconds = time.perf_counter() - began
        assert llm.runner is not None  # it is open
        _generate(llm, requests, -1)  # compiles what loading has not
        rates = [sum(requests.max_tokens) / _generate(llm, requests, seed) for seed in range(passes)]
        return Variant(
            options=options,
            dtype=str(llm.runner.dtype).removeprefix("torch."),
            requests=requests,
            tokens_per_s=rates,
            steps=_watched(llm, requests, passes),
            census=_census(llm, requests, passes + 1),
            load_seconds=load_seconds,
            load_times=llm.runner.load_times,
            memory=asdict(llm.memory),
            ledger=str(llm.memory),
        )


def _generate(llm: LLM, requests: Requests, seed: int) -> float:
    """How long it takes, in seconds."""
    prompts = requests.prompts(seed, min(IDS, llm.model_config.vocab_size))
    began = time.perf_counter()
    llm.generate(prompts, _params(requests), use_tqdm=False)
    return time.perf_counter() - began


def _watched(llm: LLM, requests: Requests, seed: int) -> Steps:
    runner = llm.runner
    assert runner is not None
    records: list[StepRecord] = []

    def keep(item: Snapshot | StepRecord) -> None:
        if isinstance(item, StepRecord):
            records.append(item)

    device = runner.backend.device
    clock = CudaClock(device) if device.type == "cuda" else None
    began = time.perf_counter_ns()
    with llm.engine.subscribe(keep), Watch(runner, clock) as watch:
        _generate(llm, requests, seed)
    sizes = runner.dtype.itemsize, runner.kv_cache.pool.dtype.itemsize, runner.backend.ranks.size
    return steps_of(records, watch.steps, clock, began, llm.model_config, *sizes)


def _census(llm: LLM, requests: Requests, seed: int) -> Census | None:
    """Of a step in which all requests decode: here nobody ends before the others."""
    assert llm.runner is not None
    prompts, params = requests.prompts(seed, min(IDS, llm.model_config.vocab_size)), _params(requests)[-1]
    for number, prompt in enumerate(prompts):
        llm.add_request(prompt, params, request_id=f"census-{number}")
    while any(llm.step().planned.is_prefill):
        pass
    try:
        return census_of(lambda: len(llm.step().planned.seq_id), llm.runner.backend)
    finally:
        for number in range(requests.num):
            llm.abort(f"census-{number}")


def _params(requests: Requests) -> list[SamplingParams]:
    return [SamplingParams(temperature=TEMPERATURE, ignore_eos=True, max_tokens=count) for count in requests.max_tokens]


def _read_bytes_per_s(device: torch.device) -> float | None:
    if device.type != "cuda":
        return None
    import torch

    from nvexplore.bench.roofline import measured_bandwidth

    rate = measured_bandwidth(device).read_bytes_per_s
    torch.cuda.empty_cache()
    return rate


def _name_of(device: torch.device) -> str:
    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
