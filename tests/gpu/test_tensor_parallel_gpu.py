"""A model split over two GPUs says what it says on one, with graphs and without, overlapped or not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from nvexplore.explore.recorder import Recorder
from nvexplore.llm import LLM
from nvexplore.runner.rank_error import RankError
from nvexplore.runner.tensor_parallel import Leader
from nvexplore.sampling_params import SamplingParams
from nvexplore.toy import make_toy
from tests.gpu.engines import greedy, make_llm, prompts, tokens

pytestmark = pytest.mark.gpu

ASKED = [(prompt, greedy(14)) for prompt in prompts(30, 9, 1, 17, 60, 22)]

PROGRAM = """
import gc, sys, time
from tests.gpu.engines import greedy, make_llm
path, how = sys.argv[1:]
llm = make_llm(path, tensor_parallel_size=2)
llm.generate([[1, 2, 3]], greedy(20), use_tqdm=False)
begin = time.monotonic()
if how == "close":
    llm.close()
elif how == "forget":
    del llm
    gc.collect()
else:
    llm.add_request([1, 2, 3], greedy(200))
    for _ in range(5):
        llm.advance()
print(time.monotonic() - begin)
"""


@pytest.fixture(autouse=True)
def two_gpus() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("a second GPU is needed")


@pytest.mark.parametrize("enforce_eager", [True, False], ids=["eager", "graphs"])
@pytest.mark.parametrize(
    ("architecture", "head_dim"), [("llama", 64), ("qwen2", 64), ("qwen3", 128), ("qwen3_moe", 64)]
)
def test_greedy_tokens_of_one_gpu(architecture: str, head_dim: int, enforce_eager: bool, tmp_path: Path) -> None:
    """In float32, with chunks and mixed steps; one by one, and overlapped."""
    path = make_toy(tmp_path, architecture, head_dim=head_dim)
    options: dict[str, Any] = {"max_num_batched_tokens": 40, "policy": "mixed", "enforce_eager": enforce_eager}
    with make_llm(path, **options) as llm:
        expected = tokens(llm, ASKED)
    with make_llm(path, tensor_parallel_size=2, **options) as llm:
        assert tokens(llm, ASKED) == expected
        recorder = Recorder()
        with llm.engine.subscribe(recorder):
            outputs = llm.generate([ids for ids, _ in ASKED], [params for _, params in ASKED], use_tqdm=False)
        assert [output.token_ids for output in outputs] == expected
        planned = [record.planned for record in recorder.records]
        assert any(plan.is_ahead for plan in planned)
        assert any(plan.graph_size is not None for plan in planned) is not enforce_eager


def test_drawn_tokens_and_log_probabilities(toy: Path) -> None:
    """Draws with filters run after a graph; log probabilities are of logits that no token is drawn from."""
    for params in (
        SamplingParams(temperature=0.8, top_k=9, top_p=0.9, seed=3, max_tokens=9, ignore_eos=True),
        SamplingParams(temperature=0, max_tokens=4, logprobs=2, prompt_logprobs=1, ignore_eos=True),
    ):
        asked = [ids for ids, _ in ASKED]
        with make_llm(toy) as llm:
            expected = [output.token_ids for output in llm.generate(asked, params, use_tqdm=False)]
        with make_llm(toy, tensor_parallel_size=2) as llm:
            assert [output.token_ids for output in llm.generate(asked, params, use_tqdm=False)] == expected


def test_memory_is_measured_on_both_and_given_back(toy: Path) -> None:
    """The pool is as large as both have room for; afterwards neither holds anything."""
    before = [torch.cuda.mem_get_info(device)[0] for device in (0, 1)]
    with make_llm(toy, tensor_parallel_size=2, num_kvcache_blocks=None, gpu_memory_utilization=0.3) as llm:
        assert tokens(llm, ASKED[:2])
        held = [free - torch.cuda.mem_get_info(device)[0] for device, free in enumerate(before)]
        assert all(size > llm.memory.pool > 0 for size in held)
    left = [free - torch.cuda.mem_get_info(device)[0] for device, free in enumerate(before)]
    assert max(left) < 1 << 30, left  # the contexts of this process and of NCCL


@pytest.mark.parametrize("enforce_eager", [True, False], ids=["eager", "graphs"])
def test_a_rank_that_is_killed(toy: Path, enforce_eager: bool) -> None:
    """Kernels of rank 0 would wait for it for ever."""
    with make_llm(toy, tensor_parallel_size=2, enforce_eager=enforce_eager) as llm:
        tokens(llm, ASKED[:1])
        assert llm.runner is not None and isinstance(llm.runner.execution, Leader)
        llm.add_request(ASKED[0][0], greedy(200))
        llm.step()
        llm.runner.execution._processes._processes[0].popen.kill()
        with pytest.raises(RankError, match="rank 1 of 2 is gone"):
            run_on(llm)
    with make_llm(toy, tensor_parallel_size=2) as llm:
        assert tokens(llm, ASKED[:1])


@pytest.mark.parametrize("how", ["close", "forget", "step"])
def test_the_end_of_a_program(how: str, tmp_path: Path) -> None:
    """NCCL waits for graphs that hold its calls: closed, forgotten, or left in the middle, the program ends."""
    path = make_toy(tmp_path, "qwen3")
    told = subprocess.run([sys.executable, "-c", PROGRAM, path, how], timeout=90, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    assert float(told.stdout.split()[-1]) < 5, told.stdout


def run_on(llm: LLM) -> None:
    while llm.has_unfinished:
        llm.advance()
