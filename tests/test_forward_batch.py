"""From a scheduled batch to flat tensors: slots, positions, lengths, padding, one buffer."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
import torch

from nvexplore.engine.batch import ScheduledBatch
from nvexplore.engine.sequence import Sequence
from nvexplore.runner.block_tables import BlockTables
from nvexplore.runner.forward_batch import ForwardBatch, build_forward_batch
from nvexplore.runner.sample_keys import sample_key
from nvexplore.runner.slots import slots_of
from nvexplore.sampling_params import SamplingParams


def sequence(seq_id: int, ids: list[int], table: list[int], computed: int = 0, temperature: float = 0.0) -> Sequence:
    params = SamplingParams(temperature=temperature)
    seq = Sequence(seq_id, ids, params, request_id=f"r{seq_id}")
    seq.block_table, seq.num_computed_tokens = table, computed
    return seq


def scheduled(*rows: tuple[Sequence, int, bool]) -> ScheduledBatch:
    batch = ScheduledBatch()
    for seq, count, is_prefill in rows:
        batch.add(seq, count, is_prefill=is_prefill)
    return batch


def test_slots_of_a_scattered_block_table() -> None:
    expected = [*range(33, 40), *range(40, 48), *range(72, 80), *range(24, 32), *range(88, 94)]
    assert slots_of([4, 5, 9, 3, 11], 8, 1, 38) == expected
    seq = sequence(0, list(range(38)), [4, 5, 9, 3, 11], computed=1)
    batch = build_forward_batch(scheduled((seq, 37, True)), 8)
    assert batch.slot_mapping.tolist() == expected
    assert batch.positions.tolist() == list(range(1, 38))


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (4, 3), (0, 17)])
def test_slots_outside_the_table(start: int, stop: int) -> None:
    with pytest.raises(ValueError, match=r"the block table holds 16 tokens \(2 blocks of 8\)"):
        slots_of([1, 0], 8, start, stop)


def test_slots_equal_the_plain_function_on_random_batches() -> None:
    rng = random.Random(0)
    for _ in range(200):
        block_size = rng.randint(1, 5)
        rows, expected = [], []
        for seq_id in range(rng.randint(1, 5)):
            computed, count = rng.randint(0, 12), rng.randint(1, 9)
            table = rng.sample(range(99), -(-(computed + count) // block_size) + rng.randint(0, 2))
            ids = [rng.randrange(1000) for _ in range(computed + count + rng.randint(0, 3))]
            rows.append((sequence(seq_id, ids, table, computed), count, rng.random() < 0.5))
            expected += slots_of(table, block_size, computed, computed + count)
        batch = build_forward_batch(scheduled(*rows), block_size)
        assert batch.slot_mapping.tolist() == expected
        assert len(set(expected)) <= batch.num_tokens == sum(count for _, count, _ in rows)


def mixed() -> ScheduledBatch:
    return scheduled(
        (sequence(7, [10, 11, 12, 13, 14], [3], 4, 0.5), 1, False),  # a decode row
        (sequence(8, list(range(20, 29)), [1, 5, 2], 4), 3, True),  # a chunk that leaves 2 tokens for later
        (sequence(9, [30, 31], [0], 0, 2.0), 2, True),  # a whole prompt
    )


def test_fields_of_a_mixed_batch() -> None:
    batch = build_forward_batch(mixed(), 8, seed=5)
    assert batch.input_ids.tolist() == [14, 24, 25, 26, 30, 31]
    assert batch.positions.tolist() == [4, 4, 5, 6, 0, 1]
    assert batch.slot_mapping.tolist() == [28, 12, 13, 14, 0, 1]
    assert batch.cu_seqlens_q.tolist() == [0, 1, 4, 6]
    assert batch.cu_seqlens_k.tolist() == [0, 5, 12, 14]
    assert batch.context_lens.tolist() == [5, 7, 2]
    assert batch.block_tables.tolist() == [[3], [1], [0]]  # as many blocks as the context takes
    assert batch.logits_rows.tolist() == [0, 5]
    assert batch.temperatures.tolist() == [0.5, 2.0]
    assert batch.sample_keys.tolist() == [sample_key(5, 7, 5), sample_key(5, 9, 2)]
    assert (batch.num_seqs, batch.num_tokens, batch.num_samples) == (3, 6, 2)
    assert (batch.num_prefill, batch.num_decode, batch.num_padding) == (2, 1, 0)
    assert (batch.max_seqlen_q, batch.max_seqlen_k, batch.block_size) == (3, 7, 8)


def test_tables_are_padded_with_minus_one() -> None:
    batch = build_forward_batch(mixed(), 5)
    assert batch.block_tables.tolist() == [[3, -1], [1, 5], [0, -1]]


def tensors(batch: ForwardBatch) -> dict[str, torch.Tensor]:
    names = ForwardBatch.__slots__
    return {name: getattr(batch, name) for name in names if isinstance(getattr(batch, name), torch.Tensor)}


def test_everything_lies_in_one_buffer_and_moves_with_it() -> None:
    batch = build_forward_batch(mixed(), 8)
    fields = tensors(batch)
    dtypes = {name: field.dtype for name, field in fields.items() if field.dtype != torch.int32}
    assert dtypes == {"sample_keys": torch.int64, "temperatures": torch.float32}
    base = batch.packed.untyped_storage().data_ptr()
    assert {field.untyped_storage().data_ptr() for field in fields.values()} == {base}
    places = sorted((f.storage_offset() * f.itemsize, f.nbytes) for name, f in fields.items() if name != "packed")
    assert all(begin % 16 == 0 for begin, _ in places), "a kernel counts on 16 bytes"
    for (begin, size), (after, _) in pairwise(places):
        assert begin + size <= after < begin + size + 16, "an overlap or a gap"
    assert batch.packed.nbytes == sum(places[-1])
    moved = batch.to(torch.device("meta"))
    assert {name: (f.shape, f.dtype) for name, f in tensors(moved).items()} == {
        name: (f.shape, f.dtype) for name, f in fields.items()
    }
    assert all(field.device.type == "meta" for field in tensors(moved).values())
    assert moved.max_seqlen_k == batch.max_seqlen_k


def test_v24_padding_rows_stand_for_nothing() -> None:
    decode = scheduled((sequence(0, [1, 2, 3], [2], 2), 1, False))
    batch = build_forward_batch(decode, 4, num_padding=2)
    assert batch.slot_mapping.tolist() == [10, -1, -1]
    assert batch.context_lens.tolist() == [3, 0, 0]
    assert batch.block_tables.tolist() == [[2], [-1], [-1]]
    assert batch.cu_seqlens_q.tolist() == [0, 1, 2, 3]
    assert batch.cu_seqlens_k.tolist() == [0, 3, 3, 3]
    assert batch.logits_rows.tolist() == [0, 1, 2]
    assert batch.temperatures.tolist() == [0, 0, 0]
    assert (batch.num_decode, batch.num_padding, batch.num_seqs) == (1, 2, 3)


def test_empty_batch() -> None:
    batch = build_forward_batch(ScheduledBatch(), 4)
    assert (batch.num_tokens, batch.num_seqs, batch.num_samples, batch.max_seqlen_k) == (0, 0, 0, 0)
    assert batch.cu_seqlens_q.tolist() == [0]


def test_a_table_that_is_too_short_names_the_request() -> None:
    batch = scheduled((sequence(3, [1, 2, 3, 4, 5], [7], 0), 5, True))
    with pytest.raises(ValueError, match=r"request 'r3': 1 blocks of 4 do not hold the 5 tokens"):
        build_forward_batch(batch, 4)


def test_block_tables_are_remembered_and_never_wrong() -> None:
    """Tables that grow, shrink, are changed in place or replaced, with rows that come, go and change places."""
    rng = random.Random(1)
    tables = BlockTables()
    seqs = [sequence(i, list(range(60)), [rng.randrange(99) for _ in range(15)]) for i in range(6)]
    for _ in range(300):
        seq = rng.choice(seqs)
        change = rng.randrange(4)
        if change == 0:
            seq.block_table[rng.randrange(15)] = rng.randrange(99)
        elif change == 1:
            seq.block_table = [rng.randrange(99) for _ in range(15)]
        elif change == 2:
            seq.num_computed_tokens = rng.randrange(59)
        rows = [
            (seq, rng.randint(1, 60 - seq.num_computed_tokens), True) for seq in rng.sample(seqs, rng.randint(0, 6))
        ]
        padding = rng.randrange(3)
        fresh = build_forward_batch(scheduled(*rows), 4, num_padding=padding)
        kept = build_forward_batch(scheduled(*rows), 4, num_padding=padding, tables=tables)
        for name, field in tensors(fresh).items():
            assert name == "packed" or torch.equal(field, tensors(kept)[name]), name
        for (each, count, _), row in zip(rows, kept.block_tables.tolist(), strict=False):
            used = -(-(each.num_computed_tokens + count) // 4)
            assert row == each.block_table[:used] + [-1] * (len(row) - used)


def test_what_is_remembered_is_bounded() -> None:
    tables = BlockTables()
    for seq_id in range(10_000):
        assert tables.rows([seq_id], [[seq_id]], 0).tolist() == [[seq_id]]
    assert len(tables._known) <= 4097
    assert tables.rows([], [], 2).tolist() == [[-1], [-1]]
    assert tables.rows([], [], 0).shape == (0, 1)


def test_greedy_rows_need_no_random_bits() -> None:
    rows = [(sequence(i, [1, 2, 3], [i], 2, temperature), 1, False) for i, temperature in enumerate((0.0, 0.5, 0.0))]
    assert build_forward_batch(scheduled(*rows), 4).sample_keys.tolist() == [0, sample_key(0, 1, 3), 0]


def test_building_changes_no_sequence() -> None:
    batch = mixed()
    before = [(list(seq.token_ids), list(seq.block_table), seq.num_computed_tokens) for seq in batch.seqs]
    build_forward_batch(batch, 8)
    assert before == [(seq.token_ids, seq.block_table, seq.num_computed_tokens) for seq in batch.seqs]


def test_sample_keys_depend_on_seed_sequence_and_position_alone() -> None:
    assert sample_key(0, 0, 0) == sample_key(0, 0, 0) != 0
    assert sample_key(-1, 2, 3) == sample_key(2**64 - 1, 2, 3)
    keys = {sample_key(s, q, p) for s in range(5) for q in range(20) for p in range(50)}
    assert len(keys) == 5000
    assert all(-(2**63) <= key < 2**63 for key in keys)
