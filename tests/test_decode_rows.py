"""The layout of decode steps from memory equals the one made from scratch, whatever happens to the rows in between."""

from __future__ import annotations

import random

import pytest
import torch

from nvexplore.engine.batch import ScheduledBatch
from nvexplore.engine.sequence import Sequence
from nvexplore.runner.decode_rows import DecodeRows
from nvexplore.runner.forward_batch import build_forward_batch
from nvexplore.runner.packing import decode_shapes, unpack
from nvexplore.sampling_params import SamplingParams

SIZE = 4  # of a block
MOST = 7  # rows
WIDEST = 9  # blocks


def buffer(size: int) -> torch.Tensor:
    """What the memory held before: anything."""
    return torch.randint(-(2**31), 2**31 - 1, (size,), dtype=torch.int32)


def sequence(number: int, random: random.Random) -> Sequence:
    params = SamplingParams(
        temperature=random.choice([0.0, 0.5, 1.0]), seed=random.choice([None, None, 3]), n=random.choice([1, 2])
    )
    ids = [random.randrange(1000) for _ in range(random.randint(1, 12))]
    seq = Sequence(number, ids, params, request_id=str(number), sample_index=random.randrange(params.n))
    seq.num_computed_tokens = len(ids) - 1
    seq.block_table = random.sample(range(500), -(-len(ids) // SIZE))
    return seq


def rows_of(seqs: list[Sequence]) -> ScheduledBatch:
    batch = ScheduledBatch()
    batch.add_decodes(seqs)
    return batch


def change(seq: Sequence, random: random.Random) -> None:
    """One more token, or a step undone and done again, or a preemption and new blocks, or a block that grew too far."""
    what = random.randrange(6)
    if what == 0 and seq.num_computed_tokens > 0:  # undone
        seq.token_ids.pop()
        seq.num_computed_tokens -= 1
        del seq.block_table[-(-seq.num_tokens // SIZE) :]
    elif what == 1:  # preempted, and back elsewhere
        seq.block_table = random.sample(range(500), len(seq.block_table))
    elif what == 2 and len(seq.block_table) < WIDEST:
        seq.block_table.append(random.randrange(500, 600))
    elif what == 3:  # the same length, another last block
        seq.block_table[-1] = random.randrange(600, 700)
    elif seq.num_tokens < WIDEST * SIZE:
        seq.token_ids.append(random.randrange(1000))
        seq.num_computed_tokens += 1
        if len(seq.block_table) * SIZE < seq.num_tokens:
            seq.block_table.append(random.randrange(500))


@pytest.mark.parametrize("seed", range(30))
def test_equal_to_a_batch_from_scratch(seed: int) -> None:
    source = random.Random(seed)
    rows = DecodeRows(block_size=SIZE, seed=seed, max_rows=MOST, max_blocks=WIDEST)
    rows._lines = 16  # so that lines run out, and all are forgotten, again and again
    seqs = [sequence(number, source) for number in range(12)]
    for step in range(60):
        chosen = source.sample(seqs, source.randint(1, MOST))
        size = source.randint(len(chosen), MOST)
        batch = rows_of(chosen)
        found = rows.build(batch, size, buffer)
        expected = build_forward_batch(batch, SIZE, seed=seed, num_padding=size - len(chosen))
        assert found.packed.shape == expected.packed.shape
        fields = unpack(found.packed, decode_shapes(size, expected.block_tables.shape[1]))
        for row, seq in enumerate(chosen):  # blocks that no token has reached yet may be there or not
            fields["block_tables"][row, -(-seq.num_tokens // SIZE) :] = -1
        for name, field in fields.items():
            assert field.tolist() == getattr(expected, name).tolist(), f"{name} in step {step}"
        assert (found.size, found.num_rows) == (size, len(chosen))
        for seq in seqs:
            change(seq, source)
        if source.random() < 0.2:
            seqs[source.randrange(12)] = sequence(12 + step, source)


def test_a_table_that_is_too_short_is_named() -> None:
    rows = DecodeRows(block_size=SIZE, seed=0, max_rows=MOST, max_blocks=WIDEST)
    seqs = [sequence(number, random.Random(number)) for number in range(2)]
    del seqs[1].block_table[-1:]
    with pytest.raises(ValueError, match="request '1': its blocks do not hold the token of this step"):
        rows.build(rows_of(seqs), 2, buffer)


def test_memory_grows_with_the_rows_that_come() -> None:
    """What is set aside is for rows that came, not for all that may; more than it was made for are laid out as well."""
    source = random.Random(0)
    rows = DecodeRows(block_size=SIZE, seed=0, max_rows=2**20, max_blocks=WIDEST)
    assert rows._tables.nbytes < 2**20
    seqs = [sequence(number, source) for number in range(1300)]
    for count in (3, 512, 513, 1300, 7, 1300):
        batch = rows_of(seqs[:count])
        found = rows.build(batch, count, buffer)
        expected = build_forward_batch(batch, SIZE, seed=0)
        fields = unpack(found.packed, decode_shapes(count, expected.block_tables.shape[1]))
        for name, field in fields.items():
            assert field.tolist() == getattr(expected, name).tolist(), f"{name} with {count} rows"
        for seq in seqs:
            seq.token_ids.append(5)
            seq.num_computed_tokens += 1
            if len(seq.block_table) * SIZE < seq.num_tokens:
                seq.block_table.append(source.randrange(500))
