"""Decode steps as CUDA graphs: every batch size, rows of padding, what records tell, and nothing that waits."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from nvexplore.backends.cuda_graphs import ladder
from nvexplore.explore.recorder import Recorder
from nvexplore.llm import LLM
from nvexplore.sampling_params import SamplingParams
from nvexplore.toy import make_toy
from tests.gpu.engines import check_written, greedy, make_llm, poison_last_block, prompts, run, tokens

pytestmark = pytest.mark.gpu


def test_n12_every_batch_size_has_a_graph_and_the_tokens_of_no_graph(toy: Path) -> None:
    """nano-vllm PR#216: batches beyond the last multiple of 16 failed. 37 rows, of which one ends in each step."""
    largest = 37
    asked = [(prompt, greedy(2 + n)) for n, prompt in enumerate(prompts(*[5] * largest))]
    limits = {"max_num_seqs": largest}
    with make_llm(toy, enforce_eager=True, **limits) as llm:
        seqs, records = run(llm, asked)
        expected = [seq.completion_token_ids for seq in seqs]
        assert {record.planned.eager_reason for record in records[1:]} == {"enforce_eager"}
        assert {record.planned.graph_size for record in records} == {None}
    with make_llm(toy, **limits) as llm:
        seqs, records = run(llm, asked)
        assert [seq.completion_token_ids for seq in seqs] == expected
    sizes, seen = ladder(largest), []
    for planned in (record.planned for record in records):
        count = len(planned.seq_id)
        if any(planned.is_prefill):
            assert (planned.graph_size, planned.padding, planned.eager_reason) == (None, None, "prefill")
            assert planned.prefill_backend == "triton"
            continue
        size = min(size for size in sizes if size >= count)
        assert (planned.graph_size, planned.padding, planned.eager_reason) == (size, size - count, None)
        assert planned.decode_backend == "triton" and planned.prefill_backend is None
        seen.append(count)
    assert sorted(seen) == list(range(1, largest + 1))


@pytest.mark.parametrize("max_num_seqs", [1, 3, 12, 17])
def test_n12_any_limit(max_num_seqs: int, toy: Path) -> None:
    asked = [(prompt, greedy(4)) for prompt in prompts(*[6] * (max_num_seqs + 2))]
    with make_llm(toy, "cpu", max_num_seqs=max_num_seqs) as llm:
        expected = tokens(llm, asked)
    with make_llm(toy, max_num_seqs=max_num_seqs) as llm:
        assert tokens(llm, asked) == expected


@pytest.mark.parametrize("count", [3, 5, 9])
def test_v24_rows_of_padding_write_nothing(count: int, toy: Path) -> None:
    """vllm#43810: slot -1 as an index is the pool's last one. That block is full of NaN here and stays so."""
    asked = [(prompt, greedy(9)) for prompt in prompts(*range(4, 4 + count))]
    with make_llm(toy, "cpu") as llm:
        expected = tokens(llm, asked)
    with make_llm(toy, block_size=4, num_kvcache_blocks=64) as llm:
        poison_last_block(llm)
        seqs, records = run(llm, asked)
        padding = [record.planned.padding for record in records if record.planned.graph_size]
        assert padding and min(padding) > 0
        assert [seq.completion_token_ids for seq in seqs] == expected
        check_written(llm, records)


def test_what_ran_before_in_a_graph_leaves_no_trace(toy: Path) -> None:
    """V24: long block tables, then short ones, in the same graph, whose rows of padding were real ones before."""
    long, short = [(p, greedy(5)) for p in prompts(150, 180, 120, 90)], [(p, greedy(5)) for p in prompts(3, 9, 2)]
    with make_llm(toy) as llm:
        expected = tokens(llm, short)
    with make_llm(toy) as llm:
        tokens(llm, long)
        assert tokens(llm, short) == expected


def set_mode(mode: str | int) -> None:
    """What torch does where the host waits for the device; it warns that this is a prototype of theirs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode(mode)


@contextmanager
def errors_where_the_host_waits() -> Iterator[None]:
    """Everything that waits for the device raises; but for an event, which is what the engine waits for."""
    try:
        set_mode("error")
        yield
    finally:
        set_mode("default")


@pytest.mark.parametrize("overlap", [False, True], ids=["single", "overlapped"])
@pytest.mark.parametrize("enforce_eager", [True, False], ids=["eager", "graphs"])
@pytest.mark.parametrize(
    ("architecture", "dtype"), [("llama", "float32"), ("qwen3_moe", "bfloat16"), ("qwen3_moe", "float16")]
)
def test_recorded_steps_wait_for_nothing_but_their_tokens(
    architecture: str, dtype: str, enforce_eager: bool, overlap: bool, tmp_path: Path
) -> None:
    """Prompts, chunks, decodes and mixtures of them; drawn and greedy; with a recorder, which device times reach."""
    path = make_toy(tmp_path, architecture, head_dim=64)
    asked = [
        (p, SamplingParams(temperature=n % 2, max_tokens=6, ignore_eos=True)) for n, p in enumerate(prompts(40, 9))
    ]
    limits: dict[str, Any] = {"policy": "mixed", "max_num_batched_tokens": 16, "enforce_eager": enforce_eager}
    with make_llm(path, dtype=dtype, overlap=overlap, **limits) as llm:
        tokens(llm, asked)  # kernels are compiled
        recorder = Recorder()
        llm.engine.subscribe(recorder)
        seqs = [llm.add_request(prompt[::-1], params) for prompt, params in asked]
        with errors_where_the_host_waits():
            while llm.has_unfinished:
                llm.advance()
        records = recorder.records
        assert len(records) >= 6 and all(seq.num_completion_tokens == 6 for seq in seqs)
        assert sum(record.planned.is_ahead for record in records) >= (4 if overlap else 0)
        assert overlap or not any(record.planned.is_ahead for record in records)
        assert all(record.committed.device_ns and record.committed.device_ns > 0 for record in records)


def test_waiting_would_be_noticed() -> None:
    found = torch.ones(3, device="cuda")
    with errors_where_the_host_waits(), pytest.raises(RuntimeError, match="synchroniz"):
        found.nonzero()


def records_of(llm: LLM, params: SamplingParams) -> list[Any]:
    return [record.planned for record in run(llm, [(prompts(5)[0], params)])[1]]


def test_a_step_that_tells_log_probabilities_says_how_it_ran(toy: Path) -> None:
    """They are worked out beside the graphs: no record may name a graph that was not replayed."""
    with make_llm(toy) as llm:
        assert {planned.graph_size for planned in records_of(llm, greedy(4))[1:]} == {1}
        for planned in records_of(llm, greedy(4, logprobs=1)):
            assert planned.graph_size is None and planned.eager_reason
