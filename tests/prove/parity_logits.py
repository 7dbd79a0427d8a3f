"""Logits equal transformers' in fp32 at every position, for each architecture with each rope type: 1e-4 at most.

A case runs a prompt whole; cut into uneven chunks; behind a prefix hit, beside other rows; and token by token as a
decode row, evicted half-way and computed again. Then the engine decodes greedily, in a pool so small that there are
chunks, hits and preemptions, and every token must be transformers' choice.

The difference is that of two orders of summing the same numbers in fp32. The toys of the unit tests amplify it, so
that greedy text is varied: scores of attention reach 30, where rounding them shows, and every decoded token reads keys
that carry the noise of all steps before. Here the weights behind that are smaller (``SOFTER``), and each case shows
that the comparison still notices: with the rope type ignored, or another theta, logits differ by 100 times the limit.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from nvexplore.engine.sequence import Sequence
from nvexplore.layers.rotary import RotaryTable
from nvexplore.rope_config import RopeConfig
from nvexplore.toy import make_toy
from tests.paged import Paged, difference, reference_logits
from tests.parity import engine_tokens, one_thread, reference_tokens
from tests.prove import Figures, Proof, combine

TOLERANCE = 1e-4
LENGTH = 200  # tokens a prompt: beyond the ORIGINAL length of the stretching rope types
ORIGINAL = 64
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    # Dense and sparse layers in one model; experts that most tokens do not choose.
    "qwen3_moe": {"num_layers": 3, "num_experts": 8, "mlp_only_layers": [1]},
}
STRETCHED = {"factor": 8.0, "original_max_position_embeddings": ORIGINAL}
ROPES: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 4.0},
    "llama3": {"low_freq_factor": 1.0, "high_freq_factor": 4.0, **STRETCHED},
    "yarn": {"beta_fast": 16.0, "mscale": 1.0, "mscale_all_dim": 0.5, **STRETCHED},
    # These two change beyond the original length, which is therefore longer than the prompt.
    "dynamic": {"factor": 4.0},
    "longrope": {"original_max_position_embeddings": 256},
}
SOFTER = {  # what weights are divided by
    ("q_proj.weight", "k_proj.weight", "q_proj.bias", "k_proj.bias", "q_norm.weight", "k_norm.weight"): 3,
    ("o_proj.weight", "down_proj.weight"): 2,
}
HEAD_DIMS = (16, 64, 128)
CASES = len(ARCHITECTURES) * len(ROPES)


def case_of(seed: int) -> tuple[str, str, int]:
    """Name architecture, rope type and head_dim: 6 seeds in a row have all of the first two, CASES all pairs."""
    architecture = list(ARCHITECTURES)[(seed + seed // 12) % len(ARCHITECTURES)]
    return architecture, list(ROPES)[seed % len(ROPES)], HEAD_DIMS[seed // CASES % len(HEAD_DIMS)]


def write_toy(folder: Path, seed: int) -> Path:
    architecture, rope_type, head_dim = case_of(seed)
    rope = {"rope_type": rope_type, "rope_theta": 10_000.0, **ROPES[rope_type]}
    if rope_type == "longrope":
        pairs = head_dim // 2
        rope |= {"short_factor": [1 + i / head_dim for i in range(pairs)], "long_factor": [8.0] * pairs}
    path = make_toy(
        folder,
        architecture,
        seed=seed,
        head_dim=head_dim,
        tied=seed % 2 == 0,
        max_position_embeddings=512,
        rope_parameters=rope,
        norm_topk_prob=seed % 8 < 4,
        **ARCHITECTURES[architecture],
    )
    tensors = load_file(path / "model.safetensors")
    for name, tensor in tensors.items():
        for suffixes, divisor in SOFTER.items():
            if name.endswith(suffixes):
                tensor /= divisor
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    return path


def run_logits(path: Path, rope_type: str, rng: random.Random) -> Figures:
    """Return the greatest difference of each way to cut the work up, and how many positions were compared."""
    paged = Paged(path, block_size=rng.choice((4, 8, 16)), num_blocks=256, max_model_len=240)
    ids = [rng.randrange(256) for _ in range(LENGTH)]
    expected = reference_logits(path, ids)

    whole = paged.seq(ids)
    figures = {"max_whole": difference(paged.logits((whole, LENGTH))[0], expected)}

    seq, parts = paged.seq(ids), []
    while seq.num_computed_tokens < LENGTH:
        count = min(rng.randint(1, 50), LENGTH - seq.num_computed_tokens)
        parts += paged.logits((seq, count))
    figures["max_chunks"] = difference(torch.cat(parts), expected)

    other = [*ids[:120], *(rng.randrange(256) for _ in range(30))]
    hit, beside = paged.seq(other, prefix=whole), paged.seq(ids[50:80])
    assert hit.num_cached_tokens >= 100
    behind, alone = paged.logits((hit, len(other) - hit.num_cached_tokens), (beside, 30))
    figures["max_hit"] = max(
        difference(behind, reference_logits(path, other)[hit.num_cached_tokens :]),
        difference(alone, reference_logits(path, ids[50:80])),
    )
    figures["max_decode"] = difference(decode(paged, ids, hit), expected[20:])

    table = next(paged.runner.model.decoder_layers()).self_attn.rotary.cos_sin
    theta = 11_000.0 if rope_type in ("default", "dynamic") else 10_000.0
    wrong = RotaryTable(RopeConfig(theta=theta), table.shape[1], table.shape[0], table.device)
    table.copy_(wrong.cos_sin)
    figures["min_wrong_rope"] = difference(paged.logits((paged.seq(ids), LENGTH))[0], expected)
    paged.runner.close()
    return {**figures, "positions": 2 * LENGTH + len(behind) + 30 + LENGTH - 20}


def decode(paged: Paged, ids: list[int], beside: Sequence) -> Tensor:
    """Return the logits of ids[20:], one token a step beside another row; preempted once on the way."""
    seq, parts = paged.seq(ids), []
    paged.logits((seq, 20))
    while seq.num_computed_tokens < LENGTH:
        if seq.num_computed_tokens == 110:  # its blocks are taken away: all is computed again, in two chunks
            paged.free[:0] = seq.block_table
            seq.block_table, seq.num_computed_tokens = [], 0
            paged.logits((seq, 70))
            paged.logits((seq, 40))
        if len(beside.token_ids) < 235:
            beside.token_ids.append(ids[seq.num_computed_tokens])
            parts.append(paged.logits((seq, 1), (beside, 1))[0])
        else:
            parts.append(paged.logits((seq, 1))[0])
    return torch.cat(parts)


def run_greedy(path: Path, rng: random.Random) -> Figures:
    stem = [rng.randrange(32, 127) for _ in range(40)]
    prompts = [[rng.randrange(32, 127) for _ in range(n)] for n in (3, 17, 90)]
    prompts += [stem + [rng.randrange(32, 127) for _ in range(n)] for n in (1, 8, 20)]
    limits = {"max_num_batched_tokens": 24, "max_num_seqs": 6, "num_kvcache_blocks": 18, "max_model_len": 200}
    got, figures = engine_tokens(path, prompts, 40, block_size=16, **limits)
    assert got == reference_tokens(path, prompts, 40)
    assert figures["chunked_prefills"] > 0 and figures["hit_tokens"] > 0 and figures["preemptions"] > 0, figures
    return {"tokens": sum(map(len, got)), **figures}


def run_case(seed: int) -> Figures:
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        path = write_toy(Path(folder), seed)
        figures = run_logits(path, case_of(seed)[1], rng)
        for name, value in figures.items():
            assert not name.startswith("max_") or value <= TOLERANCE, (case_of(seed), name, value)
        assert figures["min_wrong_rope"] >= 100 * TOLERANCE, case_of(seed)
        return {**figures, **run_greedy(path, rng)}


def run_chunk(seeds: range) -> Figures:
    """See the module."""
    with one_thread():
        return combine(run_case(seed) for seed in seeds)


PROOF = Proof(
    "parity_logits",
    "Logits of every architecture and rope type equal transformers'",
    volume=CASES * len(HEAD_DIMS),
    quick=6,
    run_chunk=run_chunk,
    chunk=6,
)
