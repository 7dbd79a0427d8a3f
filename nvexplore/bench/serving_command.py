"""``nvexplore bench --serving``: whole prompts and arriving requests on nvexplore alone or beside a peer, in turns."""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nvexplore.bench.serving import IDS, WORKLOADS
from nvexplore.bench.serving_setup import ALONE, BESIDE_A_PEER, CPU_SCALE, Setup, find_setup
from nvexplore.command_error import CommandError
from nvexplore.config import parse_option

if TYPE_CHECKING:
    from nvexplore.bench.serving import Server, Serving
    from nvexplore.bench.serving_compare import Row
    from nvexplore.bench.serving_startup import Startup
    from nvexplore.bench.serving_workloads import Floor


Say = Callable[[str], None]


def add_serving_options(command: argparse.ArgumentParser) -> None:
    """Add ``--serving`` and what belongs to it alone."""
    only = command.add_argument_group("serving", "many requests at once, or arriving; alone or, with --peer, in turns")
    only.add_argument("--serving", action="store_true", help="measure this instead")
    only.add_argument("--workloads", type=_workloads, help=f"some of {','.join(WORKLOADS)} (all)")
    only.add_argument("--scale", type=_positive, help=f"of counts and lengths (1 on a GPU, {CPU_SCALE:g} without)")
    only.add_argument("--rate", type=_positive, help="requests a second in mixed-arrivals (all within some 4 s)")
    only.add_argument(
        "--memory", type=_positive, help=f"of the GPU's, for each engine ({ALONE}, with a peer {BESIDE_A_PEER})"
    )
    only.add_argument(
        "--option",
        type=_option,
        action="append",
        metavar="KEY=VALUE",
        help="one of LLM's, for nvexplore (and recorded, which is the same with a recorder attached)",
    )
    only.add_argument("--plots", metavar="DIR", type=Path, help="write a PNG a workload there, over old ones")


def run_serving(args: argparse.Namespace, say: Say, tell: Say) -> dict[str, Any]:
    """Measure, ``say`` the results as lines, ``tell`` what goes on meanwhile; return the report but for the machine.

    CommandError where something is wrong or missing.
    """
    setup = find_setup(args)
    import torch

    if args.threads:
        torch.set_num_threads(args.threads)
    say(f"{args.model}, {setup.dtype}, {setup.device}: {_scale_words(setup, args.scale is None)}")
    chosen = _workloads_of(args, setup, tell)
    rows, startups, notes = _measure(args, setup, chosen, tell)
    from nvexplore.bench.serving_compare import table
    from nvexplore.bench.serving_startup import lines

    for line in (*lines(startups), *notes, "", *table(rows)):
        say(line)
    if args.plots:
        from nvexplore.bench.serving_plots import write_plots

        about = f"{Path(args.model).name}, {setup.dtype}, {setup.device}, scale {setup.scale:g}"
        try:
            for file in write_plots(args.plots, rows, startups, about):
                say(f"wrote {file}")
        except OSError as error:
            raise CommandError(f"--plots {args.plots}: {error.strerror or error}") from None
    return {
        "measures": "serving",
        "peer": args.peer,
        "peer_version": _peer_version(args.peer, args.peer_path) if args.peer else None,
        "model": str(args.model),
        "dtype": setup.dtype,
        "device": setup.device,
        "cuda": torch.version.cuda if setup.has_gpu else None,
        "scale": setup.scale,
        "rate": args.rate,
        "memory": setup.memory if setup.has_gpu else None,
        "options": setup.options,
        "passes": args.passes,
        "threads": torch.get_num_threads(),
        "startup": [startup.as_dict() for startup in startups],
        "left_out": notes,
        "results": [row.as_dict() for row in rows],
    }


def _workloads_of(args: argparse.Namespace, setup: Setup, tell: Say) -> list[Serving]:
    from nvexplore.bench.serving_workloads import Sizes, workloads

    sizes = Sizes(setup.scale, min(IDS, setup.config.vocab_size), setup.config.max_positions, args.rate)
    floors = _floors(setup, tell) if setup.has_gpu and "throughput" in args.workloads else ()
    return workloads(args.workloads, sizes, *floors)


def _floors(setup: Setup, tell: Say) -> tuple[Floor, Floor] | tuple[()]:
    """What the throughput workload is held against: measured before engines take the memory. None with experts.

    The first is nvexplore's own, since keys and values may be narrower, and layers split; then that of its peers.
    """
    import torch

    from nvexplore.bench.roofline import measured_bandwidth, measured_matmul, throughput_floor
    from nvexplore.runner.kv_cache import resolve_kv_dtype

    if setup.config.moe is not None:
        tell("no floor is known for a model with experts")
        return ()
    tell("measuring what the device can do")
    device, dtype = torch.device("cuda", torch.cuda.current_device()), getattr(torch, setup.dtype)
    bandwidth, flops = measured_bandwidth(device), measured_matmul(device, dtype)
    torch.cuda.empty_cache()

    def floor(prompts: Sequence[int], new: Sequence[int], *, kv_dtype: torch.dtype, num_ranks: int) -> float:
        return throughput_floor(
            setup.config,
            (prompts, new),
            bandwidth,
            dtype_bytes=dtype.itemsize,
            kv_dtype_bytes=kv_dtype.itemsize,
            num_ranks=num_ranks,
            matmul_flops_per_s=flops,
        ).seconds

    kv_dtype = resolve_kv_dtype(setup.options.get("kv_cache_dtype", "auto"), dtype)
    ranks = setup.options.get("tensor_parallel_size", 1)
    return partial(floor, kv_dtype=kv_dtype, num_ranks=ranks), partial(floor, kv_dtype=dtype, num_ranks=1)


def _measure(
    args: argparse.Namespace, setup: Setup, chosen: list[Serving], tell: Say
) -> tuple[list[Row], list[Startup], list[str]]:
    """The results, how each engine started, and what was left out; engines are closed whatever happens."""
    from nvexplore.bench.servers import PeerError, make_server
    from nvexplore.bench.serving_compare import compare_servers, left_out
    from nvexplore.bench.serving_startup import start

    longest = max(workload.longest for workload in chosen)
    with ExitStack() as stack:
        servers: list[Server] = []
        startups: list[Startup] = []
        # The peer first: nano-vLLM takes for its own what others hold of the GPU, nvexplore does not.
        for name in filter(None, (args.peer, "nvexplore")):
            tell(f"loading {name}")
            try:
                server = make_server(
                    name,
                    setup.path,
                    dtype=setup.dtype,
                    max_model_len=longest,
                    memory=setup.memory,
                    options=setup.options,
                )
            except (PeerError, ValueError, OSError) as error:
                raise CommandError(str(error)) from None
            stack.callback(server.close)
            servers.insert(0, server)
            startups.insert(0, start(server, ids=min(IDS, setup.config.vocab_size), longest=longest))
        return compare_servers(servers, chosen, args.passes, tell), startups, left_out(servers, chosen)


def _scale_words(setup: Setup, is_default: bool) -> str:
    size = "full size" if setup.scale == 1 else f"scale {setup.scale:g} of the full workloads"
    if not is_default:
        return size
    return f"{size}, as on every GPU" if setup.has_gpu else f"{size}, as on every CPU (--scale 1 is full size)"


def _peer_version(peer: str, peer_path: Path | None) -> str | None:
    """What its package says, or the pyproject.toml of the checkout; None where neither does."""
    if peer_path is not None and (file := peer_path / "pyproject.toml").is_file():
        version = tomllib.loads(file.read_text(encoding="utf-8")).get("project", {}).get("version")
        return None if version is None else f"{version} (a checkout)"
    try:
        return metadata.version("nvexplore" if peer == "recorded" else peer)
    except metadata.PackageNotFoundError:
        return None


def _workloads(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in WORKLOADS:
            raise argparse.ArgumentTypeError(f"{name!r}: choose from {', '.join(WORKLOADS)}")
    return names


def _option(text: str) -> tuple[str, Any]:
    try:
        return parse_option(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a number") from None
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text}: must be above 0")
    return value
