"""Which attention implementation serves a phase: decided by plain facts, so that any machine can be asked about here.

What packages offer is what they say of themselves (flash-attn 2.8.3, flash-attn-4 4.0.0b36); which is faster is what
was measured.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

import torch

# What a user can name on each kind of device, ``auto`` aside.
NAMES: Final[dict[str, tuple[str, ...]]] = {"cpu": ("torch",), "cuda": ("triton", "flash_attn")}

# What ``auto`` takes on a GPU: the first that fits. On an H200 the Triton kernels decode faster than both packages,
# at every block size.
_FASTEST: dict[str, tuple[str, ...]] = {"prefill": ("triton",), "decode": ("triton",)}

# flash-attn 2 first: where blocks are of a size that it takes, it also splits the keys of few rows over the whole GPU.
_FLASH_ATTN: Final = {"flash_attn_2": "flash-attn 2", "flash_attn_4": "flash-attn-4"}

# From here on Triton knows float8_e4m3fn, which takes instructions that older GPUs do not have.
_FP8_CAPABILITY: Final = (8, 9)


class Facts(NamedTuple):
    """What is known before anything is made. capability: the GPU's, as torch gives it; None on a CPU.

    installed: of ``flash_attn_2`` and ``flash_attn_4``; head_dim: None where it is not known.
    kv_dtype: of the pool; None: ``dtype``.
    """

    device_type: str
    dtype: torch.dtype
    block_size: int
    head_dim: int | None = None
    capability: tuple[int, int] | None = None
    installed: frozenset[str] = frozenset()
    kv_dtype: torch.dtype | None = None

    @property
    def has_narrow_kv(self) -> bool:
        return self.kv_dtype not in (None, self.dtype)


class _Refusal(NamedTuple):
    """why: something does not fit; remedy: the option that would change it, or None."""

    why: str
    remedy: str | None = None


def choose(option: str, asked: str, phase: str, facts: Facts) -> str:
    """Return ``torch``, ``triton``, ``flash_attn_2`` or ``flash_attn_4`` for a phase, ``prefill`` or ``decode``.

    asked: what ``option`` is set to. ValueError says why that cannot be and what would work.
    """
    names = NAMES.get(facts.device_type, ())
    if facts.has_narrow_kv and facts.capability is not None and facts.capability < _FP8_CAPABILITY:
        raise ValueError(
            "kv_cache_dtype='fp8': Triton converts it on GPUs of compute capability "
            f"{'.'.join(map(str, _FP8_CAPABILITY))} or more, this one has {'.'.join(map(str, facts.capability))}; "
            "use kv_cache_dtype='auto'"
        )
    if asked == "auto" and names:
        for name in _FASTEST[phase] if facts.device_type == "cuda" else names:
            if not isinstance(found := _fit(name, facts), list):
                return found
        return names[0]
    if asked not in names:
        raise ValueError(
            f"{option}={asked!r}: not available on {facts.device_type} (available: {', '.join(('auto', *names))})"
        )
    if not isinstance(found := _fit(asked, facts), list):
        return found
    remedies = [refusal.remedy for refusal in found]
    known = [remedy for remedy in remedies if remedy is not None]
    works = [" and ".join(dict.fromkeys(known))] if len(known) == len(remedies) else []
    reasons = "; ".join(dict.fromkeys(refusal.why for refusal in found))
    raise ValueError(f"{option}={asked!r}: {reasons}; use {' or '.join([*works, f'{option}={names[0]!r}'])}")


def installed_packages() -> frozenset[str]:
    """Which flash-attn packages can be imported, without importing one: both are called ``flash_attn``.

    flash-attn 2 is told by its extension. It ships an early ``cute`` without paging too: flash-attn-4 is told by the
    file that pages, and by the compiler that it needs.
    """
    spec = find_spec("flash_attn")
    folders = [] if spec is None else [Path(folder) for folder in spec.submodule_search_locations or ()]
    found = set()
    if folders and find_spec("flash_attn_2_cuda") is not None:
        found.add("flash_attn_2")
    if any((folder / "cute" / "paged_kv.py").is_file() for folder in folders) and find_spec("cutlass") is not None:
        found.add("flash_attn_4")
    return frozenset(found)


def _fit(name: str, facts: Facts) -> str | list[_Refusal]:
    """Return the implementation that ``name`` means here, or everything that stands in its way."""
    if name != "flash_attn":
        return name
    refused: list[_Refusal] = []
    for package in _FLASH_ATTN:
        if package in facts.installed:
            found = _refusals(package, facts)
            if not found:
                return package
            # Of two packages that do not fit, the one that options could make fit is talked about.
            if not refused or any(refusal.remedy is None for refusal in refused):
                refused = found
    return refused or [_Refusal("flash-attn is not installed (pip install flash-attn --no-build-isolation)")]


def _refusals(package: str, facts: Facts) -> list[_Refusal]:
    refused, called = [], _FLASH_ATTN[package]
    if facts.dtype not in (torch.float16, torch.bfloat16):
        dtype = str(facts.dtype).removeprefix("torch.")
        refused.append(_Refusal(f"{called} computes in float16 and bfloat16, dtype={dtype}", "dtype='bfloat16'"))
    if facts.has_narrow_kv:
        why = f"{called} takes keys and values in the format of the queries, kv_cache_dtype='fp8'"
        refused.append(_Refusal(why, "kv_cache_dtype='auto'"))
    major, minor = facts.capability or (0, 0)
    if package == "flash_attn_2" and major < 8:
        refused.append(
            _Refusal(f"{called} needs a GPU of compute capability 8.0 or more, this one has {major}.{minor}")
        )
    if package == "flash_attn_4" and major != 9:
        refused.append(_Refusal(f"{called} pages on GPUs of compute capability 9.x only, this one has {major}.{minor}"))
    if facts.head_dim is not None and (facts.head_dim % 8 or facts.head_dim > 256):
        refused.append(_Refusal(f"{called} takes heads of a multiple of 8 up to 256 values, head_dim={facts.head_dim}"))
    if package == "flash_attn_2" and facts.block_size % 256:
        why = f"{called} pages in multiples of 256 tokens, block_size={facts.block_size}"
        refused.append(_Refusal(why, "block_size=256"))
    return refused
