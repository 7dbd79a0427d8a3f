"""What was measured of a generation in several ways, kept as JSON. Measures nothing, and reading it needs no torch."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import msgspec

from nvexplore.bench.hot_path_census import Census
from nvexplore.bench.hot_path_steps import Steps
from nvexplore.bench.serving import Source

if TYPE_CHECKING:
    import pandas as pd

RECORDING: Final = "04_hot_path.json"


class Requests(msgspec.Struct, frozen=True, kw_only=True):
    """``num`` prompts of ``prompt_len`` random ids that come at once. Number i gets ``first_end + every * i`` tokens.

    So a run begins with all rows, and ends with a tail in which one leaves every ``every`` steps.
    """

    num: int = 32
    prompt_len: int = 64
    first_end: int = 66
    every: int = 2

    @property
    def max_tokens(self) -> list[int]:
        return [self.first_end + self.every * number for number in range(self.num)]

    def prompts(self, seed: int, ids: int) -> list[list[int]]:
        """New ones for each seed, so that no prefix cache knows them; of ids below ``ids``."""
        source = Source("hot path", seed, ids)
        return [source.prompt(self.prompt_len) for _ in range(self.num)]


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """A way to run requests, and what came of it.

    tokens_per_s:    new tokens a second, an entry a pass that nobody watched. steps: of one that was watched.
    load_seconds:    of the whole construction; load_times: the parts that the runner tells.
    memory, ledger:  where memory goes, as figures in bytes and in words (``MemoryLedger``).
    """

    options: dict[str, Any]
    dtype: str
    requests: Requests
    tokens_per_s: list[float]
    steps: Steps
    census: Census | None
    load_seconds: float
    load_times: dict[str, float]
    memory: dict[str, Any]
    ledger: str

    @property
    def watched_per_s(self) -> float:
        """New tokens a second of the pass that was watched."""
        steps = self.steps
        return 1e6 * sum(self.requests.max_tokens) / (steps.commit_at[-1] + steps.commit_us[-1])


class HotPath(msgspec.Struct, frozen=True, kw_only=True):
    """What ``measure`` found.

    read_bytes_per_s: of the device's memory, measured; None where it was not.
    variants:  the same requests in several ways. left_out: those that could not be run, and why.
    crowd:     other requests, many and long, in the way that is the default; None where they were not run.
    """

    device: str
    versions: dict[str, str]
    date: str
    model: str
    read_bytes_per_s: float | None
    variants: dict[str, Variant]
    left_out: dict[str, str]
    crowd: Variant | None

    def about(self) -> str:
        """Whose figures these are, in one line."""
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        dtype = next(iter(self.variants.values())).dtype
        return f"{self.device}, {self.date}: {self.model} in {dtype} ({versions})"

    def frame(self) -> pd.DataFrame:
        """A row a variant: tokens_per_s; of decode steps with all rows, ``Steps.medians``; of one of them, its kernels.

        watched_per_s: tokens a second of the pass that was watched. kernels, kernel_us: how many, and the time in them;
        NaN where no profiler told.
        """
        import pandas as pd

        rows = {}
        for name, variant in self.variants.items():
            census = variant.census if variant.census and variant.census.counted == "kernels" else None
            seen = {"kernels": len(census.us), "kernel_us": census.total_us} if census else {}
            rates = {"tokens_per_s": median(variant.tokens_per_s), "watched_per_s": variant.watched_per_s}
            rows[name] = {**rates, **variant.steps.medians(), **seen}
        columns = ["tokens_per_s", "watched_per_s", "wall_us", "host_us", "device_us", "kernels", "kernel_us"]
        return pd.DataFrame.from_dict(rows, orient="index", columns=columns, dtype="float64")

    def to_json(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, text: bytes) -> HotPath:
        """ValueError where it is not what ``to_json`` writes."""
        try:
            return msgspec.json.decode(text, type=cls)
        except msgspec.MsgspecError as error:
            raise ValueError(f"this is no recording of nvexplore's hot path: {error}") from None


def recorded(name: str = RECORDING) -> HotPath:
    """Read a recording: the file ``name`` of this folder, or else of nvexplore's notebooks."""
    from nvexplore.cli import notebooks_path

    for file in (Path(name), notebooks_path() / name):
        if file.is_file():
            return HotPath.from_json(file.read_bytes())
    raise FileNotFoundError(
        f"{name} is neither in this folder nor among nvexplore's notebooks: it has what was measured on a GPU, "
        "and without it that can only be shown on a machine with one"
    )
