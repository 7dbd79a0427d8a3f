"""Steps as columns: what each ran, what its record says, and when the host and the device were at it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from nvexplore.bench.hot_path_watch import DeviceClock, Watched
from nvexplore.engine.events import Planned, StepRecord

if TYPE_CHECKING:
    import pandas as pd

    from nvexplore.model_config import ModelConfig


class Steps(msgspec.Struct, frozen=True, kw_only=True):
    """One pass, a row a step. ``_us`` are microseconds it took, ``_at`` microseconds since the pass began.

    rows, tokens:    sequences, and tokens run. is_prefill: some of them of prompts.
    plan:            deciding, and the record of it. launch: building the batch and giving it to the device.
    wait:            for the sampled ids. commit: what they change. All of these are the host's.
    device:          from the batch's arrival at the head of the device's queue until its ids were on the host, as the
                     device's clock has it; None without one. Where kernels come late it waits in between.
    wall:            since the commit of the step before.
    read_bytes:      weights, and keys and values of all rows, which a decode step must read; None for prompts and where
                     it is not known.
    graph_size, padding, eager_reason, backend, is_ahead, sync_reason: see ``nvexplore.engine.events.Planned``.
    """

    step: list[int]
    rows: list[int]
    tokens: list[int]
    is_prefill: list[bool]
    plan_at: list[float]
    plan_us: list[float]
    launch_at: list[float]
    launch_us: list[float]
    wait_at: list[float]
    wait_us: list[float]
    commit_at: list[float]
    commit_us: list[float]
    wall_us: list[float]
    device_at: list[float | None]
    device_us: list[float | None]
    read_bytes: list[int | None]
    graph_size: list[int | None]
    padding: list[int | None]
    eager_reason: list[str | None]
    backend: list[str | None]
    is_ahead: list[bool]
    sync_reason: list[str | None]

    def frame(self) -> pd.DataFrame:
        """These columns; what is None is missing."""
        import pandas as pd

        types = dict.fromkeys(("read_bytes", "graph_size", "padding"), "Int64")
        types |= dict.fromkeys(("device_at", "device_us"), "float64")
        types |= dict.fromkeys(("eager_reason", "backend", "sync_reason"), "string")
        return pd.DataFrame(msgspec.structs.asdict(self)).astype(types)

    def medians(self) -> dict[str, float]:
        """Of decode steps with as many rows as there are at most: wall_us, host_us (but for waiting), device_us.

        NaN for a device without a clock.
        """
        frame = self.full()
        host = frame["plan_us"] + frame["launch_us"] + frame["commit_us"]
        times = {"wall_us": frame["wall_us"], "host_us": host, "device_us": frame["device_us"]}
        return {name: float(values.median()) for name, values in times.items()}

    def full(self) -> pd.DataFrame:
        """The decode steps with as many rows as there are at most, but for the first, which comes after a prefill."""
        frame = self.frame()
        frame = frame[~frame["is_prefill"]]
        most: pd.DataFrame = frame[frame["rows"] == frame["rows"].max()]
        return most.iloc[1:]


def steps_of(
    records: Sequence[StepRecord],
    watched: Sequence[Watched],
    clock: DeviceClock | None,
    began: int,
    config: ModelConfig,
    dtype_bytes: int,
    kv_dtype_bytes: int | None = None,
    num_ranks: int = 1,
) -> Steps:
    """Columns of a pass that began at ``began`` (ns); ValueError unless each record was watched.

    dtype_bytes, kv_dtype_bytes, num_ranks: as for ``read_bytes``.
    """
    if len(records) != len(watched):
        raise ValueError(f"{len(records)} records, but {len(watched)} steps were watched")
    rows: list[dict[str, Any]] = []
    landed, sizes = began, (dtype_bytes, kv_dtype_bytes, num_ranks)
    for record, moments in zip(records, watched, strict=True):
        planned, committed = record.planned, record.committed
        ended = moments.wait_ended + committed.commit_ns
        device: tuple[int, int] | None = None
        if clock is not None and moments.begin is not None:
            device = clock.ns(moments.begin), clock.ns(moments.end)
        is_prefill = any(planned.is_prefill)
        rows.append(
            {
                "step": record.step - records[0].step,
                "rows": len(planned.seq_id),
                "tokens": sum(planned.count),
                "is_prefill": is_prefill,
                "plan_at": _us(moments.launch_began - committed.plan_ns - began),
                "plan_us": _us(committed.plan_ns),
                "launch_at": _us(moments.launch_began - began),
                "launch_us": _us(moments.launch_ended - moments.launch_began),
                "wait_at": _us(moments.wait_began - began),
                "wait_us": _us(moments.wait_ended - moments.wait_began),
                "commit_at": _us(moments.wait_ended - began),
                "commit_us": _us(committed.commit_ns),
                "wall_us": _us(ended - landed),
                "device_at": None if device is None else _us(device[0] - began),
                "device_us": None if device is None else _us(device[1] - device[0]),
                "read_bytes": None if is_prefill else read_bytes(config, planned, *sizes),
                "graph_size": planned.graph_size,
                "padding": planned.padding,
                "eager_reason": planned.eager_reason,
                "backend": planned.prefill_backend or planned.decode_backend,
                "is_ahead": planned.is_ahead,
                "sync_reason": planned.sync_reason,
            }
        )
        landed = ended
    return Steps(**{name: [row[name] for row in rows] for name in Steps.__struct_fields__})


def read_bytes(
    config: ModelConfig, planned: Planned, dtype_bytes: int, kv_dtype_bytes: int | None = None, num_ranks: int = 1
) -> int | None:
    """What a decode step must read: all matrices once, and each row's keys and values so far; None with experts.

    dtype_bytes: of a weight; kv_dtype_bytes: of a value in the KV pool, None: the same. Of several ranks each must read
    so much of its share.
    """
    from nvexplore.bench.roofline import Bandwidth, throughput_floor

    if config.moe is not None:
        return None
    # A prompt that is a token shorter than the context, and the one step that makes its second token.
    lengths = [length - 1 for length in planned.context_len], [2] * len(planned.context_len)
    floor = throughput_floor(
        config,
        lengths,
        Bandwidth(1.0, 1.0),
        dtype_bytes=dtype_bytes,
        kv_dtype_bytes=kv_dtype_bytes,
        num_ranks=num_ranks,
    )
    return floor.kv_bytes + floor.weight_bytes


def _us(nanoseconds: int) -> float:
    return round(nanoseconds / 1e3, 1)
