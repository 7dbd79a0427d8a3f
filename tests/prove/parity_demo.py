"""The demo model in fp32, greedy: 8 prompts of mixed lengths x 64 tokens equal transformers' generate.

Batched, block size 16, a token budget smaller than the longest prompt, prefix cache on. Seed 0 is a short one, three
prompts x 12; then all of them: seed 1 has room for all, seed 2 runs in 96 blocks with less budget, seed 3 in the fewest
blocks that hold the longest request.
"""

from transformers import AutoTokenizer

from nvexplore.demo import demo_model_path
from tests.parity import engine_tokens, one_thread, reference_tokens
from tests.prove import Figures, Proof, combine

STEM = (
    "You are a helpful assistant for a city library. It opens at nine and closes at seven. It lends books, "
    "maps and musical instruments. Answer the reader's question in one short paragraph. Question: "
)
TEXTS = [
    "The capital of France is",
    "Once upon a time",
    "def fibonacci(n):\n    ",
    "Water boils at 100 degrees Celsius because",
    STEM + "may I borrow a violin?",
    STEM + "when do you open on Monday, and may I bring my dog along?",
    "List three reasons to learn Python:\n1.",
    (
        "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness, "
        "it was the epoch of belief, it was the epoch of incredulity, it was the season of Light, it was the season of "
        "Darkness, it was the spring of hope, it was the winter of despair, we had everything before us, we had "
        "nothing before us,"
    ),
]
OPTIONS = [
    {"max_num_batched_tokens": 32},
    {"max_num_batched_tokens": 48},
    {"max_num_batched_tokens": 16, "num_kvcache_blocks": 96},
    {"max_num_batched_tokens": 32, "num_kvcache_blocks": 14},
]
MAX_TOKENS = 64
SHORT, SHORT_TOKENS = TEXTS[3:6], 12
_expected: list[list[int]] = []  # the reference takes most of the time and is the same for each seed


def run_case(seed: int) -> Figures:
    path = demo_model_path(quiet=True)
    tokenizer = AutoTokenizer.from_pretrained(path)
    texts, max_tokens = (TEXTS, MAX_TOKENS) if seed else (SHORT, SHORT_TOKENS)
    prompts = [tokenizer.encode(text) for text in texts]
    options = OPTIONS[seed]
    assert max(map(len, prompts)) > options["max_num_batched_tokens"]
    if seed and not _expected:
        _expected.extend(reference_tokens(path, prompts, MAX_TOKENS))
    expected = _expected if seed else reference_tokens(path, prompts, max_tokens)
    got, figures = engine_tokens(path, prompts, max_tokens, block_size=16, **options)
    for text, ours, theirs in zip(texts, got, expected, strict=True):
        assert ours == theirs, f"{text[-40:]!r}: {ours} instead of {theirs}"
    assert figures["chunked_prefills"] > 0 and figures["hit_tokens"] > 0, figures
    assert seed < 3 or figures["preemptions"] > 0, figures
    return {"prompts": len(prompts), "tokens": sum(map(len, got)), **figures}


def run_chunk(seeds: range) -> Figures:
    """See the module."""
    with one_thread():
        return combine(run_case(seed) for seed in seeds)


PROOF = Proof("parity_demo", "Demo model: greedy tokens equal transformers'", len(OPTIONS), 1, run_chunk, chunk=1)
