"""``nvexplore bench --kernels``: every kernel beside what the GPU can do at best, as a table or as JSON."""

from __future__ import annotations

import argparse
import importlib.util
import platform
import sys
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING, Any

from nvexplore.bench.report import write_report
from nvexplore.command_error import CommandError

if TYPE_CHECKING:
    import torch

    from nvexplore.bench.kernel_bench import Case, Ceiling
    from nvexplore.bench.roofline import Floor
    from nvexplore.model_config import ModelConfig

SHAPE = "qwen3-0.6b"
EXPERTS_SHAPE = "qwen3-moe-4-layers"
DISTRIBUTIONS = ("torch", "triton", "flash-attn", "flash-attn-4")


def add_kernel_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--kernels`` and what belongs to it; ``--json`` is the parser's own."""
    shapes = f"in the shape of {SHAPE}, experts in that of {EXPERTS_SHAPE}"
    only = parser.add_argument_group("the kernels alone", f"microseconds a launch on a GPU, {shapes}")
    only.add_argument("--kernels", action="store_true", help="measure these instead")
    only.add_argument("--only-kernel", metavar="TEXT", help="those whose name contains it")


def run_kernels(args: argparse.Namespace) -> int:
    """Measure and return the exit status: 1 where a kernel of the project failed.

    CommandError where there is no GPU, or no kernel of that name.
    """
    device = _device()
    import torch

    from nvexplore.bench.kernel_bench import table_head, table_line, time_case
    from nvexplore.bench.roofline import measured_bandwidth, measured_matmul, nano_vllm_lengths, throughput_floor
    from nvexplore.model_config import ModelConfig
    from nvexplore.random_model import SHAPES

    dtype, config = torch.bfloat16, ModelConfig.from_dict(SHAPES[SHAPE])
    cases = _chosen(_cases(config, device, dtype), args.only_kernel)
    tell = partial(print, file=sys.stderr if args.json == "-" else sys.stdout, flush=True)
    bandwidth, flops = measured_bandwidth(device), measured_matmul(device, dtype)
    copied, read = bandwidth.copy_bytes_per_s, bandwidth.read_bytes_per_s
    ceilings: dict[Ceiling, float] = {"copy": copied, "read": read, "matmul": flops}
    name = torch.cuda.get_device_name(device)
    tell(
        f"{name}: copies {copied / 1e12:.2f} TB/s (read and written), reads {read / 1e12:.2f} TB/s, "
        f"multiplies {flops / 1e12:.0f} TFLOP/s in bfloat16\n"
    )
    tell(table_head())
    results = []
    for case in cases:
        results.append(time_case(case))
        torch.cuda.empty_cache()
        tell(table_line(results[-1], ceilings))
    requests = nano_vllm_lengths()
    floor = throughput_floor(config, requests, bandwidth, dtype_bytes=dtype.itemsize, matmul_flops_per_s=flops)
    tell("\n" + _floor_line(floor))
    report = {
        "device": name,
        "versions": _versions(),
        "shape": SHAPE,
        "dtype": "bfloat16",
        "ceilings": ceilings,
        "results": [result.as_dict(ceilings) for result in results],
        "floor": floor.as_dict(),
    }
    if args.json:
        write_report(report, args.json)
    return 1 if any(result.is_failure for result in results) else 0


def _device() -> torch.device:
    """The GPU, or a CommandError that says what is missing: the GPU first, without which no package helps."""
    if importlib.util.find_spec("torch") is None:
        raise CommandError('--kernels needs a CUDA device, and torch to see it: pip install "nvexplore[run]"')
    import torch

    if not torch.cuda.is_available():
        raise CommandError("--kernels: torch sees no CUDA device here, and kernels are measured on one")
    if importlib.util.find_spec("triton") is None:
        raise CommandError("--kernels needs triton: pip install triton")
    from nvexplore.backends.kernels.launch import IS_INTERPRETED

    if IS_INTERPRETED:
        raise CommandError("--kernels: TRITON_INTERPRET is set, so kernels would not be compiled; unset it")
    return torch.device("cuda", torch.cuda.current_device())


def _cases(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> list[Case]:
    from nvexplore.backends import Backend
    from nvexplore.backends.attention import create_attention
    from nvexplore.backends.compiled_layers import CompiledCudaBackend
    from nvexplore.backends.cuda import CudaBackend
    from nvexplore.bench.attention_cases import attention_cases, full_size_inputs, installed_makers
    from nvexplore.bench.expert_cases import expert_cases
    from nvexplore.bench.kernel_cases import RowSizes, row_cases
    from nvexplore.bench.linear_cases import linear_cases
    from nvexplore.model_config import ModelConfig
    from nvexplore.random_model import SHAPES

    attention = create_attention("triton", device, dtype)
    backends: dict[str, Backend] = {
        "triton": CudaBackend(device, dtype, attention),
        "compiled": CompiledCudaBackend(device, dtype, attention),
    }
    makers_for = partial(installed_makers, device, dtype, config.head_dim)
    return [
        *row_cases(config, backends, RowSizes()),
        *linear_cases(config, device, dtype),
        *expert_cases(ModelConfig.from_dict(SHAPES[EXPERTS_SHAPE]), device, dtype),
        *attention_cases(config, device, dtype, full_size_inputs(), makers_for),
    ]


def _chosen(cases: list[Case], text: str | None) -> list[Case]:
    chosen = [case for case in cases if (text or "") in case.name]
    if not chosen:
        names = ", ".join(dict.fromkeys(case.name for case in cases))
        raise CommandError(f"--only-kernel {text}: no name contains it (there are {names})")
    return chosen


def _floor_line(floor: Floor) -> str:
    return (
        f"nano-vLLM's benchmark at these rates: {floor.seconds:.2f} s, {floor.tokens_per_s:,.0f} tokens/s (keys and "
        f"values {floor.kv_seconds:.2f} s, weights {floor.weight_seconds:.2f} s, prompts "
        f"{floor.prefill_seconds or 0:.2f} s)"
    )


def _versions() -> dict[str, Any]:
    found: dict[str, Any] = {"python": platform.python_version()}
    for name in DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found
