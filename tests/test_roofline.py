"""The roofline: a workload's floor against one counted step by step, and rates from times that are given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from nvexplore.bench.roofline import Bandwidth, Floor, measured_matmul, nano_vllm_lengths, throughput_floor
from nvexplore.layers.parameter import Placement
from nvexplore.model_config import ModelConfig
from nvexplore.models.decoder import CausalLM
from nvexplore.random_model import SHAPES

RATES = Bandwidth(copy_bytes_per_s=1.0, read_bytes_per_s=4.2e12)


def small(tied: bool) -> ModelConfig:
    shape = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2}
    shape |= {"head_dim": 10, "intermediate_size": 40, "vocab_size": 50, "eos_token_id": 1, "bos_token_id": 2}
    return ModelConfig.from_dict({**SHAPES["qwen3-0.6b"], **shape, "tie_word_embeddings": tied})


def matrices(config: ModelConfig, num_ranks: int = 1) -> tuple[int, int]:
    """Values in all matrices but the embedding, as a rank's model has them; of these, the output layer's."""
    model = CausalLM(config, max_positions=1, placement=Placement(torch.float32, torch.device("meta"), 0, num_ranks))
    head = model.lm_head.weight.numel()
    layers = sum(
        weight.numel() for name, weight in model.named_parameters() if weight.dim() == 2 and ".layers." in name
    )
    return layers + head, head


def test_nano_vllms_benchmark() -> None:
    """Its 133,966 new tokens, 13.85 TB of keys and values, and 1.19 GB of weights in each of 1,023 steps."""
    config, requests = ModelConfig.from_dict(SHAPES["qwen3-0.6b"]), nano_vllm_lengths()
    floor = throughput_floor(config, requests, RATES, dtype_bytes=2)
    assert [len(lengths) for lengths in requests] == [256, 256]
    assert (floor.num_tokens, floor.num_steps) == (133_966, 1023)
    assert floor.kv_bytes / 1e12 == pytest.approx(13.85, abs=0.01)
    assert floor.weight_bytes / floor.num_steps / 1e9 == pytest.approx(1.19, abs=0.01)
    assert floor.prefill_seconds is None and 3.5 < floor.seconds < 3.7
    whole = throughput_floor(config, requests, RATES, dtype_bytes=2, matmul_flops_per_s=700e12)
    assert 3.7 < whole.seconds < 4.0 and 33_000 < whole.tokens_per_s < 36_500


@pytest.mark.parametrize("tied", [False, True])
def test_the_floor_of_a_few_requests_counted_step_by_step(tied: bool) -> None:
    config, prompts, outputs = small(tied), [5, 1, 12], [4, 1, 9]
    floor = throughput_floor(config, (prompts, outputs), RATES, dtype_bytes=4, matmul_flops_per_s=1e12)
    contexts, made, steps, read = list(prompts), [1, 1, 1], 0, 0
    while unfinished := [row for row in range(3) if made[row] < outputs[row]]:
        steps += 1
        for row in unfinished:
            contexts[row] += 1  # the newest token is stored before it is attended to
            made[row] += 1
            read += contexts[row]
    every, head = matrices(config)
    assert floor.num_steps == steps == 8
    assert floor.kv_bytes == read * 3 * 2 * (2 * 10) * 4
    assert floor.weight_bytes == steps * every * 4
    flops = 0
    for prompt in prompts:
        flops += 2 * head  # its last token's logits
        for position in range(prompt):
            flops += 2 * (every - head) + 3 * 6 * (position + 1) * 4 * 10
    assert floor.prefill_flops == flops
    assert floor.num_tokens == 14
    assert floor.kv_seconds == floor.kv_bytes / 4.2e12 and floor.weight_seconds == floor.weight_bytes / 4.2e12
    assert floor.prefill_seconds == flops / 1e12
    assert floor.seconds == pytest.approx(floor.kv_seconds + floor.weight_seconds + floor.prefill_seconds)


@pytest.mark.parametrize(("kv_heads", "num_ranks", "kv_heads_each"), [(2, 1, 2), (2, 2, 1), (1, 2, 1), (6, 2, 3)])
@pytest.mark.parametrize("kv_dtype_bytes", [None, 1, 2])
def test_the_floor_of_a_rank_is_that_of_what_it_holds(
    kv_heads: int, num_ranks: int, kv_heads_each: int, kv_dtype_bytes: int | None
) -> None:
    """Shares of weights, heads and the vocabulary; of fewer KV heads than ranks copies. Keys and values of 8 bits."""
    config, prompts, outputs = replace(small(False), num_key_value_heads=kv_heads), [5, 12], [4, 9]
    floor = throughput_floor(
        config,
        (prompts, outputs),
        RATES,
        dtype_bytes=2,
        kv_dtype_bytes=kv_dtype_bytes,
        num_ranks=num_ranks,
        matmul_flops_per_s=1e12,
    )
    every, head = matrices(config, num_ranks)
    contexts = sum(range(6, 9)) + sum(range(13, 21))
    assert floor.weight_bytes == 8 * every * 2
    assert floor.kv_bytes == contexts * 3 * 2 * kv_heads_each * 10 * (kv_dtype_bytes or 2)
    flops = 2 * sum(prompts) * (every - head) + 2 * 2 * head
    scores = sum(sum(range(1, prompt + 1)) for prompt in prompts)
    assert floor.prefill_flops == flops + 3 * (6 // num_ranks) * scores * 4 * 10


def test_one_new_token_each_is_a_prefill_alone() -> None:
    floor = throughput_floor(small(True), ([3, 4], [1, 1]), RATES, dtype_bytes=2, matmul_flops_per_s=1e6)
    assert (floor.num_steps, floor.kv_bytes, floor.weight_bytes) == (0, 0, 0)
    assert floor.seconds == floor.prefill_flops / 1e6
    assert floor.as_dict()["tokens_per_s"] == 2 / floor.seconds


@pytest.mark.parametrize(
    ("prompts", "outputs", "why"),
    [
        ([], [], "of one request or more"),
        ([3], [1, 2], "1 prompt lengths but 2 output lengths"),
        ([3, 0], [1, 1], "must be at least 1"),
        ([3, 1], [1, 0], "must be at least 1"),
    ],
)
def test_lengths_that_make_no_workload(prompts: list[int], outputs: list[int], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        throughput_floor(small(True), (prompts, outputs), RATES, dtype_bytes=2)


def test_models_with_experts_are_refused() -> None:
    moe = ModelConfig.from_dict(SHAPES["qwen3-moe-4-layers"])
    with pytest.raises(ValueError, match="Qwen3MoeForCausalLM: no floor is known for a model with experts"):
        throughput_floor(moe, ([1], [1]), RATES, dtype_bytes=2)
    assert isinstance(throughput_floor(replace(moe, moe=None), ([1], [1]), RATES, dtype_bytes=2), Floor)


def test_a_matrix_product_counts_two_flops_a_multiply_add() -> None:
    def timer(calls: Sequence[Callable[[], Any]]) -> float:
        assert all(call().shape == (6, 6) for call in calls)
        return 2e-3

    assert measured_matmul(torch.device("cpu"), torch.float32, timer, size=6) == pytest.approx(432 / 2e-3)
