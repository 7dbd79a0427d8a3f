"""What a serving benchmark runs, on what: all that can be wrong with it is found here, before anything is loaded."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from nvexplore.command_error import CommandError

if TYPE_CHECKING:
    from nvexplore.model_config import ModelConfig

PEERS: Final = ("nano-vllm", "vllm", "transformers", "recorded")  # servers.py has them; to name them here loads little
CPU_SCALE: Final = 1 / 32
ALONE, BESIDE_A_PEER = 0.9, 0.45  # of the GPU's memory, for each engine
# Options that the benchmark chooses itself.
_TAKEN: Final = {
    "dtype": "say --dtype",
    "gpu_memory_utilization": "say --memory",
    "max_model_len": "it is what the workloads need",
}


class Setup(NamedTuple):
    """What is run, on what. device: its name; memory: the share of it that each engine gets; options: ours."""

    path: Path
    config: ModelConfig
    dtype: str
    has_gpu: bool
    device: str
    scale: float
    memory: float
    options: dict[str, Any]


def find_model(model: str) -> tuple[Path, ModelConfig]:
    """The folder of ``--model`` and what its config.json says; CommandError where there is none that runs here."""
    from nvexplore.checkpoint import resolve_checkpoint
    from nvexplore.demo import DemoModelError
    from nvexplore.model_config import ModelConfig

    try:
        path = resolve_checkpoint(model)
        return path, ModelConfig.from_path(path)
    except (OSError, ValueError, TypeError, DemoModelError) as error:
        raise CommandError(" ".join(str(error).split())) from None


def find_setup(args: argparse.Namespace) -> Setup:
    """What ``args`` ask for; CommandError for what is wrong with it."""
    if args.dtype is not None and len(args.dtype) > 1:
        raise CommandError(f"--serving measures one --dtype at a time, not {','.join(args.dtype)}")
    if args.peer_path and not args.peer:
        raise CommandError(f"--peer-path {args.peer_path}: which peer is it? --peer {' or '.join(PEERS)}")
    most = 0.5 if args.peer else 1
    if args.memory and args.memory > most:
        raise CommandError(f"--memory {args.memory:g}: at most {most:g}{', for each of two' if args.peer else ''}")
    options = dict(args.option)
    if taken := options.keys() & _TAKEN.keys():
        name = min(taken)
        raise CommandError(f"--option {name}={options[name]}: {_TAKEN[name]}")
    import torch

    from nvexplore.bench.servers import SERVERS, PeerError, find_peer
    from nvexplore.config import EngineConfig

    has_gpu = torch.cuda.is_available()
    try:
        if args.peer:
            find_peer(args.peer, args.peer_path)
        EngineConfig.of(**options)
    except (ValueError, TypeError, PeerError) as error:
        raise CommandError(str(error)) from None
    path, config = find_model(args.model)
    dtype = args.dtype[0] if args.dtype else config.dtype or "float32"
    if args.peer and (why := SERVERS[args.peer].refusal(config, dtype, has_gpu=has_gpu)):
        raise CommandError(f"--peer {args.peer} {why}")
    if args.plots:
        try:
            args.plots.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CommandError(f"--plots {args.plots}: {error.strerror}") from None
    return Setup(
        path=path,
        config=config,
        dtype=dtype,
        has_gpu=has_gpu,
        device=torch.cuda.get_device_name() if has_gpu else "CPU",
        scale=args.scale or (1.0 if has_gpu else CPU_SCALE),
        memory=args.memory or (BESIDE_A_PEER if args.peer else ALONE),
        options=options,
    )
