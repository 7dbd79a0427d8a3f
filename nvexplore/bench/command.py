"""``nvexplore bench``: decode and prefill speed, serving's, or the scheduler's, beside a peer's; a table or JSON."""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from nvexplore.bench.kernel_command import add_kernel_options, run_kernels
from nvexplore.bench.modes import DECODE, OPTIONS, settle_mode
from nvexplore.bench.report import write_report
from nvexplore.bench.serving_command import add_serving_options, run_serving
from nvexplore.bench.serving_setup import PEERS as SERVING_PEERS
from nvexplore.bench.serving_setup import find_model
from nvexplore.command_error import CommandError
from nvexplore.whole_file import user_path

if TYPE_CHECKING:
    from nvexplore.bench.compare import Comparison

PEER_NAMES = ("transformers",)  # contenders.py has them; to name them here loads no torch
SCHEDULER_PEER = "nano-vllm"
DTYPES = ("float32", "bfloat16", "float16")


def add_command(commands: Any) -> None:
    """Register the command with the ``add_subparsers`` object of the ``nvexplore`` command."""
    command = commands.add_parser("bench", help="measure tokens a second beside a peer's", description=__doc__)
    peers = tuple(dict.fromkeys((*PEER_NAMES, SCHEDULER_PEER, *SERVING_PEERS)))
    command.add_argument("--peer", choices=peers, help=f"({PEER_NAMES[0]}; with --serving or --scheduler none)")
    command.add_argument("--peer-path", metavar="DIR", type=Path, help="a checkout of the peer, if it is not installed")
    command.add_argument("--model", help=f"'demo', a checkpoint folder or a Hub name ({OPTIONS['model'].default})")
    command.add_argument(
        "--dtype", type=_dtypes, help="with commas (bfloat16,float32; with --serving the checkpoint's alone)"
    )
    command.add_argument("--batch", type=_counts, help=f"prompts at a time, with commas ({_words('batch')})")
    command.add_argument("--prompt-len", type=_count, help=f"tokens a prompt ({_words('prompt_len')})")
    command.add_argument("--new-tokens", type=_count, help=f"tokens a completion ({_words('new_tokens')})")
    command.add_argument("--passes", type=_count, help="measured passes; medians are told (3; with --scheduler 9)")
    command.add_argument("--threads", type=_count, help="torch's threads, for both (torch's own choice)")
    command.add_argument("--json", metavar="FILE", help="write all figures there, over old ones; '-': standard output")
    add_serving_options(command)
    add_kernel_options(command)
    only = command.add_argument_group("the scheduler alone", "microseconds a step and a prompt, without any model")
    only.add_argument("--scheduler", action="store_true", help="measure this instead")
    only.add_argument("--rows", type=_counts, help=f"sequences that decode ({_words('rows')})")
    only.add_argument("--block-size", type=_counts, help=f"tokens a block ({_words('block_size')})")
    only.add_argument("--blocks", type=_counts, help=f"pools beside the one that fits ({_words('blocks')})")
    command.set_defaults(run=bench)


def bench(args: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    if args.json not in (None, "-") and ((file := user_path(args.json)).is_dir() or not file.parent.is_dir()):
        raise CommandError(f"--json {args.json}: no file can be written there")
    mode = settle_mode(args)
    if mode == DECODE and args.peer not in (None, *PEER_NAMES):
        asked = f"--peer {args.peer}"
        raise CommandError(f"{asked}: this measures beside {PEER_NAMES[0]} only; add --scheduler or --serving")
    if mode == "kernels":
        return run_kernels(args)
    if mode == "scheduler":
        return _bench_scheduler(args)
    missing = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if missing:
        raise CommandError(f'bench needs {", ".join(missing)}: pip install "nvexplore[run]"')
    args.passes = args.passes or 3
    return _bench_serving(args) if mode == "serving" else _bench_decode(args)


def _bench_decode(args: argparse.Namespace) -> int:
    """Neither ``--serving`` nor ``--scheduler``."""
    args.peer = args.peer or PEER_NAMES[0]
    if args.new_tokens < 2:
        raise CommandError("--new-tokens: at least 2, the first token belongs to the prefill")
    import torch

    from nvexplore.bench.compare import compare
    from nvexplore.bench.contenders import PEERS, Nvexplore
    from nvexplore.bench.workload import Workload

    path, config = find_model(args.model)
    length = args.prompt_len + args.new_tokens
    if length > config.max_positions:
        asked = f"--prompt-len {args.prompt_len} and --new-tokens {args.new_tokens} are {length} tokens"
        raise CommandError(f"{asked}: at most {config.max_positions}, what the model was made for")
    if args.threads:
        torch.set_num_threads(args.threads)
    workloads = [Workload(batch, args.prompt_len, args.new_tokens) for batch in sorted(args.batch)]
    report = {
        "peer": args.peer,
        "model": str(args.model),
        "passes": args.passes,
        **_machine("nvexplore", "torch", args.peer),
    }
    report["threads"] = torch.get_num_threads()
    results: list[dict[str, Any]] = []
    for dtype in args.dtype or ["bfloat16", "float32"]:
        with ExitStack() as stack:
            contenders: list[Any] = []
            for make in (Nvexplore, PEERS[args.peer]):
                try:
                    contenders.append(make(path, dtype, workloads[-1]))
                except (OSError, ValueError) as error:  # the model's other files, or what the engine is asked for
                    raise CommandError(" ".join(str(error).split())) from None
                stack.callback(contenders[-1].close)
            found = compare((contenders[0], contenders[1]), workloads, args.passes, partial(_tell, dtype))
        results += [{"dtype": dtype, **comparison.as_dict()} for comparison in found]
        if args.json != "-":
            _print_table(dtype, found)
    _write(report | {"load_after": _load(), "results": results}, args.json)
    return 0


def _bench_serving(args: argparse.Namespace) -> int:
    """``--serving``: engines as those who use them see them."""
    report = _machine("nvexplore", "torch", "transformers", "triton")
    found = run_serving(args, (lambda line: None) if args.json == "-" else print, partial(_tell, "serving"))
    _write(found | report | {"load_after": _load()}, args.json)
    return 0


def _bench_scheduler(args: argparse.Namespace) -> int:
    """``--scheduler``: needs neither torch nor a model."""
    from nvexplore.bench.deciders import Nvexplore
    from nvexplore.bench.nano_vllm_scheduler import NanoVllm, NotNanoVllm
    from nvexplore.bench.scheduler_cost import Cost, DifferentWork, scheduler_costs
    from nvexplore.bench.scheduler_table import table

    makers: list[Any] = [Nvexplore]
    if args.peer == SCHEDULER_PEER:
        if args.peer_path is None:
            raise CommandError(f"--peer {SCHEDULER_PEER} needs --peer-path, a checkout of it")
        makers.append(partial(NanoVllm, args.peer_path))
    elif args.peer or args.peer_path:
        raise CommandError(f"with --scheduler the peer is {SCHEDULER_PEER}: --peer {SCHEDULER_PEER} --peer-path DIR")
    passes = args.passes or 9
    report = {"peer": args.peer, "passes": passes, **_machine("nvexplore", "xxhash")}
    results: list[Cost] = []
    try:
        for block_size in args.block_size:
            found = scheduler_costs(makers, block_size, args.rows, args.blocks, passes, partial(_tell, "scheduler"))
            if args.json != "-":
                print("\n".join(table(found)))
            results += found
    except (NotNanoVllm, DifferentWork, ValueError) as error:
        raise CommandError(str(error)) from None
    _write(report | {"load_after": _load(), "results": [cost.as_dict() for cost in results]}, args.json)
    return 0


def _write(report: dict[str, Any], where: str | None) -> None:
    if where:
        write_report(report, where)


def _print_table(dtype: str, comparisons: Sequence[Comparison]) -> None:
    ours, theirs = comparisons[0].names
    print(f"\n{dtype:<10} {'':>6} {'decode, tokens/s':>34} {'prefill, tokens/s':>34}")
    print(f"{'':<10} {'batch':>6} " + " ".join(f"{ours:>12} {theirs:>14} {'ratio':>6}" for _ in range(2)) + "  equal")
    for each in comparisons:
        cells = []
        for rates, ratio in ((each.decode, each.decode_ratio), (each.prefill, each.prefill_ratio)):
            cells.append(f"{median(rates[0]):>12.1f} {median(rates[1]):>14.1f} {ratio:>5.2f}x")
        print(f"{'':<10} {each.workload.batch:>6} " + " ".join(cells) + f"  {each.equal_tokens:>5.0%}")


def _machine(*distributions: str) -> dict[str, Any]:
    """Versions of Python and of those distributions that are installed, the processors, and how busy they are."""
    versions = {name: version for name in distributions if (version := _version(name)) is not None}
    return {
        "versions": {"python": platform.python_version(), **versions},
        "platform": platform.platform(),
        "processors": os.cpu_count(),
        "load_before": _load(),
    }


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _load() -> list[float] | None:
    return [round(value, 2) for value in os.getloadavg()] if hasattr(os, "getloadavg") else None


def _tell(dtype: str, line: str) -> None:
    print(f"{dtype}: {line}", file=sys.stderr, flush=True)


def _words(name: str) -> str:
    default = OPTIONS[name].default
    return ",".join(map(str, default)) if isinstance(default, tuple) else str(default)


def _count(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a whole number") from None
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value}: must be at least 1")
    return value


def _counts(text: str) -> list[int]:
    return [_count(part) for part in text.split(",")]


def _dtypes(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in DTYPES:
            raise argparse.ArgumentTypeError(f"{name!r}: choose from {', '.join(DTYPES)}")
    return names
