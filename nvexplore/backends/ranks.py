"""What the processes of a tensor-parallel engine do together. Knows no layer, no batch and no command.

Every rank holds a share of each layer and computes the whole batch with it. All ranks make the same calls in the same
order; one that fails leaves the others waiting until it is gone.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from nvexplore.layers.embedding import Embedding
from nvexplore.layers.linear import Linear

_PATIENCE = timedelta(minutes=30)  # one rank may read weights, or compile, long after another is done
_TO_COMPUTE_S = 5.0
# An engine that has failed is for its user to close: torch would end the whole process, a notebook's kernel too.
_NCCL = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_ENABLE_MONITORING": "0"}


class Ranks:
    """One rank by itself, which is the whole: nothing is to be exchanged."""

    rank = 0
    size = 1

    def sum(self, x: Tensor) -> Tensor:
        """Add up what all ranks have in ``x``, which may be overwritten; each gets the sum."""
        return x

    def gather(self, x: Tensor) -> Tensor:
        """[R, n] -> [R, size * n]: the columns of all ranks, in their order."""
        return x

    def share(self, x: Tensor) -> Tensor:
        """Give every rank what rank 0 has in ``x``; overwrites that of the others."""
        return x

    def least(self, value: int) -> int:
        """The smallest of all ranks' values."""
        return value

    def recorded(self, graph: torch.cuda.CUDAGraph) -> None:
        """This graph holds calls of this object; it is reset when the group is left."""

    def abort(self) -> None:
        """End what is being waited for: another rank is gone. May be called from any thread, and does not wait."""

    def close(self) -> None:
        """Leave the group; may be called again."""


class ProcessRanks(Ranks):
    """One of ``size`` processes, by gloo on a CPU and by NCCL on GPUs.

    meeting: a file that all ranks name and that was not there before; processes of one machine find each other by it.
    The group is this object's alone: torch's default group is left as it is, so an application may have its own.
    """

    def __init__(self, rank: int, size: int, device: torch.device, meeting: Path) -> None:
        self.rank, self.size, self._device = rank, size, device
        self._store = _c10d().FileStore(str(meeting), size)
        self._group: Any = self._nccl() if device.type == "cuda" else self._gloo()
        self._graphs: list[torch.cuda.CUDAGraph] = []

    def _gloo(self) -> Any:
        gloo = _c10d().ProcessGroupGloo
        options = gloo._Options()
        # By itself gloo looks the machine's name up, which in a container may lead nowhere.
        options._devices = [gloo.create_device(hostname="127.0.0.1")]
        options._timeout = _PATIENCE
        return gloo(self._store, self.rank, self.size, options)

    def _nccl(self) -> Any:
        nccl = _c10d().ProcessGroupNCCL
        options = nccl.Options()
        options._timeout = _PATIENCE
        with _environment(_NCCL):
            return nccl(self._store, self.rank, self.size, options)

    def sum(self, x: Tensor) -> Tensor:
        x = x.contiguous()
        self._group.allreduce([x]).wait()
        return x

    def gather(self, x: Tensor) -> Tensor:
        parts = torch.empty(self.size, *x.shape, dtype=x.dtype, device=x.device)
        self._group._allgather_base(parts, x.contiguous()[None]).wait()
        return parts.transpose(0, 1).reshape(x.shape[0], -1)

    def share(self, x: Tensor) -> Tensor:
        x = x.contiguous()
        options = _c10d().BroadcastOptions()
        options.rootRank = 0
        self._group.broadcast([x], options).wait()
        return x

    def least(self, value: int) -> int:
        options = _c10d().AllreduceOptions()
        options.reduceOp = _c10d().ReduceOp.MIN
        found = torch.tensor([value], dtype=torch.int64, device=self._device)
        self._group.allreduce([found], options).wait()
        return int(found.item())

    def recorded(self, graph: torch.cuda.CUDAGraph) -> None:
        self._graphs.append(graph)

    def abort(self) -> None:
        # NCCL stops its kernels at once, and then waits until the graphs are gone, which is for ``close`` to do.
        group = self._group  # another thread may close this meanwhile
        if group is not None:
            threading.Thread(target=_abort, args=(group,), daemon=True).start()

    def close(self) -> None:
        group, self._group = self._group, None
        if group is None:
            return
        if self._device.type == "cpu":
            group.shutdown()
            return
        self._wait_for_device()
        for graph in self._graphs:
            graph.reset()
        self._graphs.clear()
        # Not ``shutdown``: that waits for the other ranks, which may be gone.
        _abort(group)

    def _wait_for_device(self) -> None:
        """Until the last step is computed, but not for ever: it may wait for a rank that has gone in the middle."""
        with suppress(RuntimeError), torch.cuda.device(self._device):
            stream, end = torch.cuda.current_stream(), time.monotonic() + _TO_COMPUTE_S
            while not stream.query() and time.monotonic() < end:
                time.sleep(1e-3)


def _abort(group: Any) -> None:
    with suppress(RuntimeError):  # what has failed before may be told once more
        group.abort()


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Set environment variables that libraries read when something is made."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _c10d() -> Any:
    """torch's process groups, most of whose names have no types; a torch without them fails where they are needed."""
    import torch.distributed

    return torch.distributed


def embed(input_ids: Tensor, layer: Embedding, ranks: Ranks) -> Tensor:
    """Look up ids [T] -> [T, hidden] in a table whose rows are split over the ranks: each id is in one of them."""
    if not layer.gathers_ranks:
        return functional.embedding(input_ids, layer.weight)
    rows = input_ids - layer.first_id
    is_elsewhere = (rows < 0) | (rows >= layer.weight.shape[0])
    found = functional.embedding(rows.masked_fill(is_elsewhere, 0), layer.weight)
    return ranks.sum(found.masked_fill_(is_elsewhere[:, None], 0))


def add_up(out: Tensor, layer: Linear, ranks: Ranks) -> Tensor:
    """The outputs of a layer that each rank has a share of the inputs for: their sum, and the bias once."""
    out = ranks.sum(out)
    return out if layer.bias is None else out.add_(layer.bias)
