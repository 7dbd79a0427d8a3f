"""Logits of toy checkpoints against transformers, float32, at every position, however the work is cut up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from nvexplore.runner.forward_batch import build_forward_batch
from nvexplore.toy import make_toy
from tests.paged import Paged, difference, reference_logits, token_ids

TOLERANCE = 1e-4
TOYS = [(architecture, head_dim) for architecture in ("llama", "qwen3") for head_dim in (16, 64, 128)]
TOYS += [("qwen2", 64), ("qwen3_moe", 16)]


@pytest.fixture(scope="module", params=TOYS, ids=lambda toy: f"{toy[0]}-{toy[1]}")
def toy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Paged]:
    architecture, head_dim = request.param
    path = make_toy(tmp_path_factory.mktemp("toy"), architecture, head_dim=head_dim, seed=3)
    return path, Paged(path)


@pytest.fixture
def paged(toy: tuple[Path, Paged]) -> Paged:
    toy[1].reset()
    return toy[1]


@pytest.fixture
def path(toy: tuple[Path, Paged]) -> Path:
    return toy[0]


@pytest.mark.parametrize("length", [1, 4, 5, 37])
def test_whole_prompt(path: Path, paged: Paged, length: int) -> None:
    ids = token_ids(length)
    (logits,) = paged.logits((paged.seq(ids), length))
    assert difference(logits, reference_logits(path, ids)) <= TOLERANCE


@pytest.mark.parametrize("chunks", [[8, 4], [1] * 12, [3, 4, 5], [11, 1], [4, 4, 4]])
def test_n06_chunks_see_their_context_and_not_the_prompt(path: Path, paged: Paged, chunks: list[int]) -> None:
    ids = token_ids(12)
    seq = paged.seq(ids)
    done, logits = 0, []
    for count in chunks:
        batch = build_forward_batch(paged.batch((seq, count)), paged.block_size)
        done += count
        assert batch.context_lens.tolist() == [done]
        assert (batch.max_seqlen_q, batch.max_seqlen_k) == (count, done)
        logits += paged.logits((seq, count))
    assert difference(torch.cat(logits), reference_logits(path, ids)) <= TOLERANCE


def test_n34_cached_prefix_is_read_from_the_pool(path: Path, paged: Paged) -> None:
    ids = token_ids(9)
    first = paged.seq(ids)
    paged.logits((first, 9))
    longer = [*ids, 7]
    for again in (ids, longer):
        seq = paged.seq(again, prefix=first)
        assert seq.num_cached_tokens == 8
        rest = len(again) - 8
        batch = build_forward_batch(paged.batch((seq, rest)), paged.block_size)
        assert batch.positions.tolist() == list(range(8, len(again)))
        (logits,) = paged.logits((seq, rest))
        assert difference(logits, reference_logits(path, again)[8:]) <= TOLERANCE


def test_prefix_hit_of_a_long_tail(path: Path, paged: Paged) -> None:
    first = paged.seq(token_ids(30))
    paged.logits((first, 30))
    ids = [*first.token_ids[:16], *token_ids(25, seed=5)]
    seq = paged.seq(ids, prefix=first)
    assert seq.num_cached_tokens == 16
    logits = [*paged.logits((seq, 10)), *paged.logits((seq, 15))]
    assert difference(torch.cat(logits), reference_logits(path, ids)[16:]) <= TOLERANCE


def test_ragged_batch_gives_what_each_gives_alone(path: Path, paged: Paged) -> None:
    prompts = [token_ids(length, seed=length) for length in (1, 23, 4, 9, 40, 2)]
    seqs = [paged.seq(ids) for ids in prompts]
    together = paged.logits(*((seq, len(seq.token_ids)) for seq in seqs))
    paged.reset(seed=1)
    for ids, logits in zip(prompts, together, strict=True):
        (alone,) = paged.logits((paged.seq(ids), len(ids)))
        assert difference(logits, alone) <= TOLERANCE
        assert difference(logits, reference_logits(path, ids)) <= TOLERANCE


def test_n25_decode_equals_a_pass_without_cache(path: Path, paged: Paged) -> None:
    """Positions n, n+1, n+2 and logits of the 1st, 2nd and 3rd generated token; two rows, very different lengths."""
    short, long = paged.seq(token_ids(7)), paged.seq(token_ids(50, seed=1))
    paged.step((short, 7), (long, 50))
    for step in range(6):
        scheduled = paged.batch((short, 1), (long, 1))
        assert build_forward_batch(scheduled, paged.block_size).positions.tolist() == [7 + step, 50 + step]
        logits = paged.logits((short, 1), (long, 1))
        for seq, row in zip((short, long), logits, strict=True):
            expected = reference_logits(path, seq.token_ids)[-1:]
            assert difference(row, expected) <= TOLERANCE
            seq.token_ids.append(int(expected.argmax()))


def test_mixed_batch_of_decodes_and_chunks_in_any_order(path: Path, paged: Paged) -> None:
    a, b, c, d = (paged.seq(token_ids(n, seed=n)) for n in (6, 33, 20, 17))
    paged.step((a, 6), (b, 33))
    paged.logits((c, 8))
    rows = ((c, 7), (a, 1), (d, 17), (b, 1))
    starts = [seq.num_computed_tokens for seq, _ in rows]
    batch = build_forward_batch(paged.batch(*rows), paged.block_size)
    assert (batch.num_prefill, batch.num_decode) == (2, 2)
    for (seq, count), start, logits in zip(rows, starts, paged.logits(*rows), strict=True):
        expected = reference_logits(path, seq.token_ids)[start : start + count]
        assert difference(logits, expected) <= TOLERANCE


def test_only_rows_that_sample_get_logits(path: Path, paged: Paged) -> None:
    whole, half = paged.seq(token_ids(5)), paged.seq(token_ids(9, seed=2))
    batch = paged.batch((half, 4), (whole, 5))
    logits = paged.runner.forward_logits(batch)
    assert difference(logits, reference_logits(path, whole.token_ids)[-1:]) <= TOLERANCE
    assert paged.runner.run(batch) == [int(logits.argmax())]
    assert paged.runner.run(paged.batch((half, 4))) == []
    assert paged.runner.run(paged.batch()) == []


def test_greedy_tokens_equal_transformers(path: Path, paged: Paged) -> None:
    seqs = [paged.seq(token_ids(n, seed=n)) for n in (3, 12, 29)]
    paged.step(*((seq, seq.num_prompt_tokens) for seq in seqs))
    for _ in range(11):
        paged.step(*((seq, 1) for seq in seqs))
    for seq in seqs:
        ids = seq.prompt_token_ids
        while len(ids) < len(seq.token_ids):
            ids.append(int(reference_logits(path, ids)[-1].argmax()))
        assert seq.token_ids == ids


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "qwen3-attention-bias": ("qwen3", {"attention_bias": True}),
    "llama-untied": ("llama", {"tied": False}),
    "llama-mha": ("llama", {"num_key_value_heads": 4}),
    "llama-three-heads-a-kv-head": (
        "llama",
        {"hidden_size": 144, "num_attention_heads": 9, "num_key_value_heads": 3},
    ),
    "qwen3-one-kv-head": ("qwen3", {"num_key_value_heads": 1, "head_dim": 32}),
    "qwen3-eps-theta": ("qwen3", {"rms_norm_eps": 1e-2, "rope_parameters": {"rope_theta": 1e6}}),
    "llama-linear": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}},
    ),
    "qwen2-untied": ("qwen2", {"tied": False, "head_dim": 32}),
    "qwen3-moe-attention-bias": ("qwen3_moe", {"attention_bias": True, "norm_topk_prob": False}),
    "qwen3-moe-some-dense": ("qwen3_moe", {"num_layers": 4, "decoder_sparse_step": 2, "mlp_only_layers": [3]}),
    "llama-llama3": (
        "llama",
        {
            "head_dim": 64,
            "rope_scaling": {
                "type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
    ),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants(tmp_path: Path, variant: str) -> None:
    architecture, options = VARIANTS[variant]
    path = make_toy(tmp_path, architecture, seed=1, **options)
    paged = Paged(path)
    ids = token_ids(61)
    seq = paged.seq(ids)
    logits = [*paged.logits((seq, 30)), *paged.logits((seq, 1)), *paged.logits((seq, 30))]
    assert difference(torch.cat(logits), reference_logits(path, ids)) <= TOLERANCE


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "qwen3_moe"])
def test_16_bit_is_as_near_to_float32_as_transformers(tmp_path: Path, architecture: str, dtype: str) -> None:
    path = make_toy(tmp_path, architecture, head_dim=64, seed=1, dtype=dtype)
    paged = Paged(path, dtype="auto")
    assert paged.runner.dtype == getattr(torch, dtype) == paged.runner.kv_cache.pool.dtype
    ids = token_ids(40)
    seq = paged.seq(ids)
    logits = torch.cat([*paged.logits((seq, 39)), *paged.logits((seq, 1))])
    exact = reference_logits(path, ids)
    theirs = (reference_logits(path, ids, getattr(torch, dtype)) - exact).abs().mean()
    assert (logits - exact).abs().mean() <= 1.5 * theirs
