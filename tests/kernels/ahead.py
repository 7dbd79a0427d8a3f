"""Kernels compiled for GPUs that are not there: that they can be, and how much shared memory a program takes.

In a process of its own: where the interpreter runs kernels, nothing can be compiled.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import triton  # noqa: TID253 - only a process that compiles loads this module
from triton.backends.compiler import GPUTarget  # noqa: TID253
from triton.compiler import ASTSource  # noqa: TID253

from nvexplore.backends.kernels import grouped_linear

FORMATS = {"fp32": 4, "fp16": 2, "bf16": 2}
ROWS = {4: (1, 10_000), 2: (1, 2_000, 100_000)}  # of 32 groups: of each size of values every tile


def compiled(kernel: Any, types: dict[str, str], constants: dict[str, Any], target: int, **how: Any) -> Any:
    """The kernel for compute capability ``target`` (90 is 9.0).

    types: of its arguments; of pointers, and of numbers with a * behind, Triton knows that they are multiples of 16.
    """
    aligned = {(at,): [["tt.divisibility", 16]] for at, each in enumerate(types.values()) if "*" in each}
    plain = {name: each.removesuffix("*") for name, each in types.items()}
    source = ASTSource(kernel, plain | dict.fromkeys(constants, "constexpr"), constants, aligned)
    return triton.compile(source, target=GPUTarget("cuda", target, 32), options=how)


def grouped_linears(targets: tuple[int, ...]) -> list[tuple[int, str, int, int, bool, bool]]:
    """Every way to multiply Qwen3-MoE's experts, as a line each.

    That is: target, format, a tile's rows, a program's bytes of shared memory, whether it multiplies by matrix units,
    and whether those round float32.
    """
    found = []
    numbers = {"num_groups": "i32", "x_stride": "i32*"}
    for target, (name, item) in product(targets, FORMATS.items()):
        for rows in ROWS[item]:
            shape = grouped_linear.tile_shape(item, rows, 32)
            constants = {
                "INPUTS": 2048, "OUTPUTS": 1536, "GROUPS": 32, "ROWS": shape.rows, "COLS": shape.cols,
                "STEP": shape.step, "WIDENS": False,
            }  # fmt: skip
            pointers = {"x_ptr": f"*{name}", "weight_ptr": f"*{name}", "ends_ptr": "*i32", "out_ptr": f"*{name}"}
            how = {"num_warps": shape.num_warps, "num_stages": shape.num_stages}
            made = compiled(grouped_linear._grouped_linear, pointers | numbers, constants, target, **how)
            code = made.asm["ptx"]
            found.append((target, name, shape.rows, made.metadata.shared, "mma" in code, "tf32" in code))
    return found
