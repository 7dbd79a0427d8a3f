"""The fast tests of nvexplore/engine: those that must cover it (``coverage``) and notice its mutants (``mutants``)."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ENGINE = ROOT / "nvexplore" / "engine"

# Quick and wide ones first: a mutant that nothing notices runs them all.
NAMES = (
    "engine_parts",
    "free_list",
    "undo",
    "queues",
    "prefix_cache",
    "eviction",
    "block_manager",
    "cache_options",
    "event_log",
    "engine_records",
    "search_records",
    "refusals",
    "miss",
    "commit",
    "recovery",
    "transactions",
    "scheduling",
    "policy",
    "policy_faults",
    "engine",
    "overlap",
    "overlap_cache",
    "overlap_ends",
    "overlap_faults",
    "overlap_interrupts",
)
# Which of them notice a mutant soonest, where that is not the file of the module's own name.
LIKELY = {
    "batch": ("engine_parts",),
    "commit": ("commit", "engine_parts", "overlap_ends", "transactions"),
    "engine": ("event_log", "engine_records", "refusals", "transactions"),
    "events": ("engine_records",),
    "flight": ("overlap", "overlap_interrupts"),
    "hashing": ("prefix_cache", "cache_options"),
    "limits": ("refusals",),
    "output": ("commit", "refusals"),
    "policy": ("policy", "policy_faults"),
    "queues": ("queues", "policy_faults"),
    "record_builder": ("engine_records", "search_records", "event_log"),
    "recovery": ("recovery", "overlap_faults"),
    "requests": ("refusals", "commit"),
    "scheduler": ("engine_records", "search_records", "scheduling", "policy"),
    "sequence": ("engine_parts", "commit"),
    "snapshot": ("engine_parts", "engine_records"),
    "steps": ("overlap", "overlap_faults", "overlap_interrupts", "engine_records"),
    "subscription": ("engine_parts", "overlap_ends"),
}


def test_file(name: str) -> Path:
    return ROOT / "tests" / f"test_{name}.py"


FILES = tuple(test_file(name) for name in NAMES)


def files_for(module: str) -> tuple[list[Path], list[Path]]:
    """The test files that are likely to notice a mutant of ``module``, and the others."""
    likely = [test_file(name) for name in LIKELY.get(module, (module,))]
    return likely, [file for file in FILES if file not in likely]
