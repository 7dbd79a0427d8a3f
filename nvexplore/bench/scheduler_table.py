"""Scheduler costs as lines for the terminal. Measures nothing."""

from __future__ import annotations

from collections.abc import Sequence

from nvexplore.bench.scheduler_cost import Cost

UNITS = {
    "step": "a step",
    "admission": "a prompt, new",
    "hits": "a prompt, cached and held",
    "freed hits": "a prompt, cached and free",
}


def table(costs: Sequence[Cost]) -> list[str]:
    """One line for each cost and pool, and one that says what the largest pool costs more than the smallest."""
    lines: list[str] = []
    for cost in costs:
        names = list(dict.fromkeys(name for name, _ in cost.passes))
        pools = [num_blocks for name, num_blocks in cost.passes if name == names[0]]
        if not lines:
            heads = " ".join(f"{name:>12}" for name in names)
            lines += [
                "",
                "microseconds",
                f"{f'{cost.block_size} tokens a block':<30} {'rows':>8} {'blocks':>8} {heads}",
            ]
        for num_blocks in pools:
            cells = " ".join(f"{cost.median(name, num_blocks):>12.1f}" for name in names)
            if len(names) > 1:
                cells += f" {cost.speedup(names[0], names[1], num_blocks):>5.2f}x"
            unit = UNITS[cost.what] if num_blocks == pools[0] else ""
            lines.append(f"  {unit:<28} {cost.rows:>8} {num_blocks:>8} {cells}")
        if len(pools) > 1:
            cells = " ".join(f"{cost.growth(name):>11.2f}x" for name in names)
            lines.append(f"  {'':<28} {'largest / smallest':>17} {cells}")
    return lines
