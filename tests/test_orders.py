"""Orders from rank 0 to the others: what they say, and the memory that carries them."""

from __future__ import annotations

import os
import pickle
import threading
from dataclasses import fields
from pathlib import Path
from typing import IO, Any

import pytest
import torch

from nvexplore.engine.batch import ScheduledBatch
from nvexplore.engine.sequence import Sequence
from nvexplore.layers.controls import Controls
from nvexplore.runner.decode_rows import DecodeBatch, DecodeRows
from nvexplore.runner.execution import Execution
from nvexplore.runner.forward_batch import ForwardBatch, build_forward_batch
from nvexplore.runner.order_channel import OrderChannel
from nvexplore.runner.orders import Order
from nvexplore.runner.packing import FIELDS
from nvexplore.runner.tensor_parallel import _longest_order
from nvexplore.sampling_params import SamplingParams

CONTROLS = Controls(*[torch.ones(3)] * len(fields(Controls)))


def batch_of(*rows: tuple[int, int], is_prefill: bool = True) -> ScheduledBatch:
    """A row for each (start, count), on blocks of 4 tokens."""
    batch = ScheduledBatch()
    for number, (start, count) in enumerate(rows):
        seq = Sequence(number, list(range(start + count)), SamplingParams(), request_id=str(number))
        seq.num_computed_tokens, seq.block_table = start, list(range(7 * number, 7 * number + -(-(start + count) // 4)))
        batch.add(seq, count, is_prefill=is_prefill)
    return batch


def zeros(size: int) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.int32)


class Noted(Execution):
    """Notes what is called."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def run(self, laid: Any, size: int | None, *, is_fed: bool) -> Any:
        self.calls.append(("run", laid, size, is_fed))

    def forward(self, laid: Any) -> Any:
        self.calls.append(("forward", laid))

    def logits(self, rows: Any) -> Any:
        self.calls.append(("logits", rows))


def carried(order: Order) -> tuple[tuple[Any, ...], list[int]]:
    """(the call that an order makes elsewhere, the sizes of staging memory that were asked for)."""
    asked: list[int] = []

    def staging(size: int) -> torch.Tensor:
        asked.append(size)
        return torch.full((size,), -7, dtype=torch.int32)

    told, numbers = order.packed()
    found = Order.unpacked(told, numbers.clone(), staging)
    execution = Noted()
    found.follow(execution)
    (call,) = execution.calls
    return call, asked


@pytest.mark.parametrize(("what", "size"), [("run", None), ("run", 32), ("forward", None)])
@pytest.mark.parametrize("controls", [None, CONTROLS])
def test_steps_with_prompts(what: Any, size: int | None, controls: Controls | None) -> None:
    laid = build_forward_batch(batch_of((0, 9), (4, 3), (8, 1)), 4, controls=controls)
    call, asked = carried(Order(what, laid, size, is_fed=what == "run"))
    assert call[0] == what and call[2:] == ((size, True) if what == "run" else ())
    found = call[1]
    assert isinstance(found, ForwardBatch) and found.packed.data_ptr() != laid.packed.data_ptr()
    for name in FIELDS:
        assert torch.equal(getattr(found, name), getattr(laid, name)), name
    for field in fields(ForwardBatch):
        if field.name not in (*FIELDS, "packed", "controls"):
            assert getattr(found, field.name) == getattr(laid, field.name), field.name
    assert (found.controls is None) is (controls is None), "that there are some, not which"
    assert asked == ([laid.packed.shape[0]] if what == "run" and size is None else [])


@pytest.mark.parametrize("controls", [None, CONTROLS])
def test_decode_steps(controls: Controls | None) -> None:
    rows = DecodeRows(block_size=4, seed=0, max_rows=8, max_blocks=16)
    laid = rows.build(batch_of((5, 1), (8, 1), (2, 1), is_prefill=False), 4, zeros, controls)
    (what, found, size, is_fed), asked = carried(Order("run", laid, 4))
    assert (what, size, is_fed) == ("run", 4, False) and isinstance(found, DecodeBatch)
    assert torch.equal(found.packed, laid.packed) and asked == [laid.packed.shape[0]]
    assert (found.size, found.num_rows, found.controls is None) == (4, 3, controls is None)


@pytest.mark.parametrize("rows", ["all", "sampled", [3, 1, 4]])
def test_logits(rows: Any) -> None:
    assert carried(Order("logits", rows=rows)) == (("logits", rows), [])


def test_no_sequence_travels() -> None:
    told, _ = Order("run", build_forward_batch(batch_of((0, 9)), 4), None).packed()
    assert b"Sequence" not in told and len(told) < 1000


def test_the_largest_steps_fit() -> None:
    """Rows of one token each, and rows of many, with tables as wide as they get."""
    max_tokens, max_seqs, max_blocks = 40, 12, 7
    room = _longest_order(max_tokens, max_seqs, max_blocks)
    for rows in ([(27, 1)] * 12, [(0, 28), (16, 12)], [(24, 4)] * 10, [(25, 3)] * 12):
        assert build_forward_batch(batch_of(*rows), 4).packed.shape[0] <= room
    rows = DecodeRows(block_size=4, seed=0, max_rows=12, max_blocks=7)
    laid = rows.build(batch_of(*[(27, 1)] * 12, is_prefill=False), 12, zeros)
    assert laid.packed.shape[0] <= room


@pytest.fixture
def pipe() -> tuple[int, IO[bytes]]:
    reads, writes = os.pipe()
    return writes, os.fdopen(reads, "rb")


def test_orders_arrive_in_their_order_and_wait_for_room(pipe: tuple[int, IO[bytes]]) -> None:
    """Rank 0 never overwrites what has not been read, however slow a rank is."""
    bell, end = pipe
    first = OrderChannel(2, 5)
    other = OrderChannel(2, 5, rank=1, file=first.file)
    first.add(bell)
    waited: list[int] = []

    def send() -> None:
        for n in range(40):
            numbers = torch.arange(n % 6, dtype=torch.int32) + n
            first.send(pickle.dumps(n), numbers, lambda n=n: waited.append(n))  # type: ignore[misc]
        os.close(bell)

    thread = threading.Thread(target=send)
    thread.start()
    thread.join(0.2)
    assert set(waited) == {2}, "two are on their way"
    for n in range(40):
        found = other.receive(end)
        assert found is not None
        assert pickle.loads(found[0]) == n and found[1].tolist() == [n + i for i in range(n % 6)]
    assert other.receive(end) is None
    thread.join()
    first.close()
    end.close()


def test_what_is_too_long_and_who_is_gone(pipe: tuple[int, IO[bytes]]) -> None:
    bell, end = pipe
    channel = OrderChannel(2, 5)
    channel.add(bell)
    with pytest.raises(ValueError, match=r"an order of 1 bytes and 6 numbers: there is room for 65,536 and 5"):
        channel.send(b"x", torch.zeros(6, dtype=torch.int32), lambda: None)
    end.close()
    with pytest.raises(BrokenPipeError):
        channel.send(b"x", torch.zeros(5, dtype=torch.int32), lambda: None)
    os.close(bell)
    channel.close()


def test_the_memory_has_no_name() -> None:
    before = set(Path("/dev/shm").iterdir())
    channel = OrderChannel(2, 1 << 20)
    assert set(Path("/dev/shm").iterdir()) == before
    channel.close()
