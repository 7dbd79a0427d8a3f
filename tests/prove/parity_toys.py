"""Toy Qwen3 and Llama in fp32, greedy: token for token what transformers gives, with chunks, hits and preemption."""

import random
import tempfile
from pathlib import Path

from nvexplore.toy import make_toy
from tests.parity import engine_tokens, one_thread, reference_tokens
from tests.prove import Figures, Proof, combine

CASES = [(architecture, head_dim) for architecture in ("qwen3", "llama") for head_dim in (16, 64, 128)]
MAX_TOKENS = 64


def run_case(architecture: str, head_dim: int, seed: int) -> Figures:
    """Eight prompts of 3 to 90 tokens, three of them with a common beginning, in a pool too small for all."""
    rng = random.Random(seed)
    stem = [rng.randrange(32, 127) for _ in range(40)]
    lengths = (3, 9, 17, 33, 90)
    prompts = [[rng.randrange(32, 127) for _ in range(n)] for n in lengths]
    prompts += [stem + [rng.randrange(32, 127) for _ in range(n)] for n in (1, 8, 20)]
    with tempfile.TemporaryDirectory() as folder:
        path = make_toy(Path(folder) / "toy", architecture, head_dim=head_dim, seed=seed)
        expected = reference_tokens(path, prompts, MAX_TOKENS)
        options = {"block_size": 16, "max_num_batched_tokens": 24, "max_num_seqs": 8, "num_kvcache_blocks": 24}
        got, figures = engine_tokens(path, prompts, MAX_TOKENS, **options)
    for prompt, ours, theirs in zip(prompts, got, expected, strict=True):
        assert ours == theirs, f"{architecture}, head_dim {head_dim}, prompt of {len(prompt)} tokens"
    assert figures["chunked_prefills"] > 0 and figures["hit_tokens"] > 0 and figures["preemptions"] > 0, figures
    return {"prompts": len(prompts), "tokens": sum(map(len, got)), **figures}


def run_chunk(seeds: range) -> Figures:
    """Seed s is case s modulo the cases, with other weights each time round."""
    with one_thread():
        return combine(run_case(*CASES[seed % len(CASES)], seed) for seed in seeds)


PROOF = Proof("parity_toys", "Toy models: greedy tokens equal transformers'", 24, 6, run_chunk, chunk=6)
