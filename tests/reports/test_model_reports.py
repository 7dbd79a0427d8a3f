"""Public bug reports about what a runner feeds a model and reads from the pool, each as the small input that shows it.

The ids are this project's own numbering; each docstring names the public thread it comes from. Logits at every
position, however the work is cut up, are compared in tests/test_models.py.
"""

from __future__ import annotations

import socket
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from nvexplore import LLM
from nvexplore.backends import create_backend
from nvexplore.engine.batch import Sampled, ScheduledBatch
from nvexplore.engine.sequence import Sequence
from nvexplore.model_config import ModelConfig
from nvexplore.runner.forward_batch import build_forward_batch
from nvexplore.runner.model_runner import ModelRunner
from nvexplore.sampling_params import SamplingParams
from nvexplore.toy import make_toy
from tests.conftest import RunPython
from tests.paged import difference, reference_logits
from tests.reports.common import GREEDY, toy_llm
from tests.test_cpu_backend import attention_layer


class Spy:
    """Keeps what the runner was given and what logits it made, step by step."""

    def __init__(self, llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
        self.positions: list[list[int]] = []
        self.key_lengths: list[list[int]] = []
        self.logits: list[torch.Tensor] = []
        runner = llm.runner
        assert runner is not None
        run = runner.run

        def spied(batch: ScheduledBatch) -> list[int] | Sampled:
            rows = list(zip(batch.starts, batch.counts, strict=True))
            self.positions.append([p for start, count in rows for p in range(start, start + count)])
            self.key_lengths.append([start + count for start, count in rows])
            self.logits.append(runner.forward_logits(batch))
            return run(batch)

        monkeypatch.setattr(runner, "run", spied)


@pytest.mark.parametrize(("length", "budget"), [(12, 8), (12, 5), (9, 4), (8, 8)])
def test_n06_a_chunk_attends_to_what_is_written_only(
    toy: Path, length: int, budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nano-vllm#212: the key length of a chunk was that of the whole prompt, so slots not yet written were read."""
    prompt = list(range(40, 40 + length))
    ends = [*range(budget, length, budget), length]
    with toy_llm(toy, max_num_batched_tokens=budget) as llm:
        llm.runner.kv_cache.pool.fill_(float("nan"))  # type: ignore[union-attr]
        spy = Spy(llm, monkeypatch)
        seq = llm.add_request(prompt, GREEDY)
        list(llm.steps())
        assert spy.key_lengths[: len(ends)] == [[end] for end in ends]
        for start, end, positions in zip([0, *ends], ends, spy.positions, strict=False):
            assert positions == list(range(start, end))
        for logits in spy.logits:
            assert torch.isfinite(logits).all()
        assert difference(spy.logits[len(ends) - 1][0], reference_logits(toy, prompt)[-1]) < 1e-4
    with toy_llm(toy) as whole:
        assert whole.generate([prompt], GREEDY, use_tqdm=False)[0].token_ids == seq.completion_token_ids


@pytest.mark.parametrize("length", [1, 3, 4, 9])
def test_n25_decode_positions_continue_the_prompt(toy: Path, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """nano-vllm PR#67: the position of a decoded token was one too high; output only slightly worse."""
    prompt = list(range(60, 60 + length))
    with toy_llm(toy) as llm:
        spy = Spy(llm, monkeypatch)
        seq = llm.add_request(prompt, GREEDY)
        list(llm.steps())
    assert spy.positions == [list(range(length)), *([length + i] for i in range(5))]
    expected = reference_logits(toy, seq.token_ids)
    for i, logits in enumerate(spy.logits):
        assert difference(logits[0], expected[length - 1 + i]) < 1e-4


def test_n27_runs_without_gpu_packages(toy: Path, run_python: RunPython) -> None:
    """nano-vllm#135: pinned memory, cuda(), flash-attn and NCCL at import or in the constructor."""
    out = run_python(
        "import sys\n"
        "for name in ('triton', 'flash_attn', 'ipywidgets', 'IPython', 'anywidget'): sys.modules[name] = None\n"
        "import torch, torch.distributed\n"
        "from nvexplore import LLM, SamplingParams\n"
        f"with LLM({str(toy)!r}, num_kvcache_blocks=16) as llm:\n"
        "    print(len(llm.generate(['abc'], SamplingParams(max_tokens=4), use_tqdm=False)[0].token_ids))\n"
        "    print(torch.distributed.is_initialized(), torch.cuda.is_initialized())\n"
    )
    assert out.split() == ["4", "False", "False"]


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3_moe"])
def test_n27_every_architecture_runs_on_the_cpu_with_no_accelerator_asked_for(
    tmp_path: Path, architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nano-vllm#135, the sibling: no tensor is pinned or sent to a GPU on the way, and cuda is never woken."""

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a GPU was asked for")

    for owner, name in ((torch.Tensor, "cuda"), (torch.Tensor, "pin_memory"), (torch.cuda, "_lazy_init")):
        monkeypatch.setattr(owner, name, refuse)
    with toy_llm(make_toy(tmp_path, architecture)) as llm:
        (output,) = llm.generate(["abc"], GREEDY, use_tqdm=False)
        assert len(output.token_ids) == 6 and not torch.distributed.is_initialized()


def test_n30_single_rank_engines_open_no_port(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """vllm#43206: a second engine on the host fails on a port that a single-rank engine never needed."""

    def refuse(*arguments: Any) -> None:
        raise AssertionError("a socket was bound")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    with toy_llm(toy) as one, toy_llm(toy) as two:
        outputs = [llm.generate(["abc"], GREEDY, use_tqdm=False)[0].token_ids for llm in (one, two)]
    assert outputs[0] == outputs[1]


def test_n30_a_taken_port_and_an_engine_in_another_process_do_not_matter(toy: Path, run_python: RunPython) -> None:
    """verl#6677, the sibling: nano-vllm's port 2333 is in use, and another process runs an engine at the same time."""
    code = (
        "import torch.distributed\n"
        "from nvexplore import LLM, SamplingParams\n"
        f"llm = LLM({str(toy)!r}, block_size=4, num_kvcache_blocks=16)\n"
        "print(llm.generate(['abc'], SamplingParams(temperature=0, max_tokens=6), use_tqdm=False)[0].token_ids)\n"
        "print(torch.distributed.is_initialized())\n"
    )
    with ExitStack() as open_things:
        with suppress(OSError):  # somebody has it already: just as well
            open_things.enter_context(socket.create_server(("127.0.0.1", 2333)))
        llm = open_things.enter_context(toy_llm(toy))
        llm.add_request("abc", GREEDY, request_id="here")
        llm.step()
        shown = run_python(code)
        here = llm.engine.live["here"]
        list(llm.steps())
    assert shown == f"{here.completion_token_ids}\nFalse\n"


def test_n34_cached_keys_are_read_and_positions_go_on(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MinivLLM PR#98: after a prefix hit attention saw only the new keys, at positions from 0 on."""
    prompt = list(range(70, 79))
    with toy_llm(toy) as llm:
        cold = llm.generate([prompt], GREEDY, use_tqdm=False)[0]
        spy = Spy(llm, monkeypatch)
        warm = llm.generate([prompt, [*prompt, 90]], GREEDY, use_tqdm=False)
        assert spy.positions[0] == [8, 8, 9] and spy.key_lengths[0] == [9, 10]
        assert [o.num_cached_tokens for o in warm] == [8, 8]
        assert warm[0].token_ids == cold.token_ids
    with toy_llm(toy, enable_prefix_caching=False) as other:
        assert other.generate([[*prompt, 90]], GREEDY, use_tqdm=False)[0].token_ids == warm[1].token_ids


@pytest.mark.parametrize("length", [5, 9, 12])
@pytest.mark.parametrize("budget", [512, 8])
def test_n34_both_copies_in_one_call_are_as_without_a_cache(toy: Path, length: int, budget: int) -> None:
    """MinivLLM PR#88: generate([P, P]): copy 1 matched the control, copy 2 did not. Also P and a longer one."""
    prompt = list(range(70, 70 + length))
    with toy_llm(toy, enable_prefix_caching=False) as control:
        expected = [o.token_ids for o in control.generate([prompt, prompt, [*prompt, 90]], GREEDY, use_tqdm=False)]
    with toy_llm(toy, max_num_batched_tokens=budget) as llm:
        outputs = llm.generate([prompt, prompt, [*prompt, 90]], GREEDY, use_tqdm=False)
    assert [o.token_ids for o in outputs] == expected
    assert [o.num_cached_tokens for o in outputs] == [0, (length - 1) // 4 * 4, length // 4 * 4]


@pytest.mark.parametrize("num_padding", [1, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_v24_padded_rows_leave_the_last_block_of_the_pool_alone(num_padding: int, dtype: torch.dtype) -> None:
    """vllm#43810, PR#43869: slot -1 of a padded row is the last live slot if it is used as an index. The CPU's half."""
    tables, computed = [[1], [3, 0], [2, 4]], [1, 4, 7]  # the last row's token goes to slot 3 of block 4, the last one
    batch = ScheduledBatch()
    for seq_id, (table, count) in enumerate(zip(tables, computed, strict=True)):
        seq = Sequence(seq_id, [0] * (count + 1), SamplingParams(), request_id=str(seq_id))
        seq.block_table, seq.num_computed_tokens = table, count
        batch.add(seq, 1, is_prefill=False)
    layer, backend = attention_layer("LlamaForCausalLM", 4, 2, 16), create_backend("cpu", dtype)
    torch.manual_seed(0)
    pool, qkv = torch.randn(2, 5, 4, 2, 16).to(dtype), torch.randn(3 + num_padding, 8 * 16).to(dtype)
    results = []
    with torch.inference_mode():
        for padding in (0, num_padding):
            layer.k_cache, layer.v_cache = pool.clone()
            begun = backend.begin(build_forward_batch(batch, 4, num_padding=padding))
            assert begun.slot_mapping.tolist() == [5, 0, 19] + [-1] * padding
            q = backend.qk_norm_rope_store(qkv[: 3 + padding].clone(), layer, begun)
            out = backend.attention(q, layer, begun)
            assert out.isfinite().all()
            results.append((out[:3], layer.k_cache, layer.v_cache))
    assert all(torch.equal(alone, padded) for alone, padded in zip(*results, strict=True))
    stored = {5, 0, 19}
    for before, after in zip(pool, results[1][1:], strict=True):
        changed = (before != after).flatten(0, 1).flatten(1).any(dim=1).nonzero().flatten().tolist()
        assert set(changed) == stored


def test_runner_needs_no_llm(toy: Path) -> None:
    """The runner is passed in: the engine's contract is all that it knows."""
    config = ModelConfig.from_path(toy)
    runner = ModelRunner(
        toy,
        config,
        device="cpu",
        block_size=4,
        num_kvcache_blocks=8,
        max_num_batched_tokens=8,
        max_num_seqs=2,
        max_model_len=16,
    )
    assert (runner.num_blocks, runner.block_size) == (8, 4)
    runner.close()
