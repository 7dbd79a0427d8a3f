"""What an output tells of the prefix cache: prompt tokens of the first admission, whatever preemptions do later."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from nvexplore import LLM, SamplingParams
from nvexplore.bench.servers import Nvexplore
from nvexplore.engine.events import StepRecord
from nvexplore.explore.recorder import Recorder
from nvexplore.generation import output_of
from nvexplore.toy import make_toy
from tests.drive import run_workload
from tests.faults import Faults
from tests.workloads import make_workload

LONG = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return make_toy(tmp_path_factory.mktemp("toy") / "qwen3", "qwen3")


def first_admissions(records: list[StepRecord]) -> dict[int, int]:
    found: dict[int, int] = {}
    for record in records:
        admitted = record.planned.admitted
        for seq_id, count in zip(admitted.seq_id, admitted.num_cached_tokens, strict=True):
            found.setdefault(seq_id, count)
    return found


@pytest.mark.parametrize("overlap", [False, True])
def test_completion_tokens_that_come_back_are_no_hits_on_the_prompt(toy: Path, overlap: bool) -> None:
    """Two requests of 5 tokens in a pool for little more than one: what gave way finds its own blocks again."""
    with LLM(toy, block_size=4, num_kvcache_blocks=8, max_model_len=32, overlap=overlap) as llm:
        recorder = Recorder()
        llm.engine.subscribe(recorder)
        outputs = llm.generate([[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]], LONG, use_tqdm=False)
        counts = [count for record in recorder.records for count in record.planned.admitted.num_cached_tokens]
        assert max(counts) > 5  # or nothing is tested: an admission that had more than the prompt
        assert [output.num_cached_tokens for output in outputs] == [0, 0]


def test_hits_of_the_first_admission_are_not_forgotten(toy: Path) -> None:
    """A prefix that was hit, and is not in the cache when the request comes back from a preemption."""
    with LLM(toy, block_size=4, num_kvcache_blocks=12, max_model_len=48) as llm:
        shared = list(range(1, 9))
        llm.generate([[*shared, 50]], SamplingParams(temperature=0, max_tokens=1), use_tqdm=False)
        params = SamplingParams(temperature=0, max_tokens=28, ignore_eos=True)
        _, last = (llm.add_request(prompt, params) for prompt in ([60, 61], [*shared, 51]))
        while not last.num_preemptions:
            llm.step()
        llm.engine.reset_prefix_cache()
        list(llm.steps())
        assert last.num_cached_tokens == 0
        assert output_of(last, llm.decode).num_cached_tokens == 8


@pytest.mark.parametrize("seed", range(60))
def test_outputs_tell_what_records_tell_of_first_admissions(seed: int) -> None:
    """Of random runs: chunks, samples, salts, preemptions, all policies; with interrupts or steps that overlap."""
    faults = Faults() if seed % 3 else Faults(seed, ("runner",))
    work, recorder = make_workload(seed, faults=faults, overlap=seed % 3 == 1), Recorder(max_steps=100_000)
    work.engine.subscribe(recorder)
    run_workload(work)
    expected = first_admissions(recorder.records)
    for prompt, seq in work.started:
        told = output_of(seq, lambda ids: "").num_cached_tokens
        assert told == expected.get(seq.seq_id, 0) and told < len(prompt)


def test_an_interrupted_admission_leaves_no_count(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with LLM(toy, block_size=4, num_kvcache_blocks=12, max_model_len=48) as llm:
        shared = list(range(1, 9))
        llm.generate([[*shared, 50]], SamplingParams(temperature=0, max_tokens=1), use_tqdm=False)
        seq = llm.add_request([*shared, 51], LONG)

        def interrupted(*args: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(llm.runner, "run", interrupted)
            with pytest.raises(KeyboardInterrupt):
                llm.step()
        llm.engine.reset_prefix_cache()
        list(llm.steps())
        assert output_of(seq, llm.decode).num_cached_tokens == 0


def test_the_hit_rate_of_the_benchmark_is_of_prompts(toy: Path) -> None:
    server = Nvexplore(
        toy, dtype="float32", max_model_len=32, memory=0.9, block_size=4, num_kvcache_blocks=8, overlap=False
    )
    server.generate([[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]], [16, 16])
    assert server.num_cached_tokens == 0
    server.generate([[6, 7, 8, 9, 10]], [2])
    assert server.num_cached_tokens == 4
    server.close()
