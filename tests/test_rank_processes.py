"""What becomes of an engine over several processes when one of them, or the user, ends something."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import time
import weakref
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from nvexplore.backends.ranks import ProcessRanks
from nvexplore.engine.engine import Engine
from nvexplore.engine.events import Snapshot
from nvexplore.llm import LLM
from nvexplore.runner.model_runner import ModelRunner
from nvexplore.runner.rank_error import RankError
from nvexplore.runner.rank_processes import RankProcesses
from nvexplore.runner.tensor_parallel import Leader, interrupts_held
from nvexplore.sampling_params import SamplingParams
from nvexplore.toy import make_toy

OPTIONS: dict[str, Any] = {"device": "cpu", "dtype": "float32", "block_size": 4, "max_model_len": 64}
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
PROMPT = list(range(40, 50))
# A program that says which processes it has, and then waits for its end.
SCRIPT = """
    import os, signal, sys, time
    from nvexplore import LLM, SamplingParams
    from nvexplore.runner.tensor_parallel import Leader

    llm = LLM(sys.argv[1], tensor_parallel_size=2, device="cpu", dtype="float32", block_size=4, max_model_len=64)
    greedy = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    processes = llm.runner.execution._processes
    print(processes._processes[0].popen.pid, processes._folder, flush=True)
"""


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_toy(tmp_path_factory.mktemp("toy"), "qwen3")


@pytest.fixture(scope="module")
def expected(toy: Path) -> list[int]:
    with LLM(toy, **OPTIONS) as llm:
        return llm.generate(PROMPT, GREEDY, use_tqdm=False)[0].token_ids


def processes_of(llm: LLM) -> RankProcesses:
    assert llm.runner is not None and isinstance(llm.runner.execution, Leader)
    return llm.runner.execution._processes


def state_of(llm: LLM) -> Snapshot:
    return msgspec.structs.replace(llm.engine.snapshot(), time=0)


def is_alive(pid: int) -> bool:
    """A process that has ended, and that nobody has asked about yet, is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for_end(pid: int, seconds: float = 15) -> None:
    end = time.monotonic() + seconds
    while is_alive(pid):
        assert time.monotonic() < end, f"process {pid} lives on"
        time.sleep(0.05)


def start(script: str, toy: Path) -> tuple[subprocess.Popen[str], int, Path]:
    """Run SCRIPT and more in a process group of its own: (it, its rank 1, their folder)."""
    program = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT) + textwrap.dedent(script), str(toy)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert program.stdout is not None
    pid, folder = program.stdout.readline().split()
    return program, int(pid), Path(folder)


def test_a_rank_that_is_killed_ends_the_engine_and_no_more(toy: Path, expected: list[int]) -> None:
    with LLM(toy, tensor_parallel_size=2, **OPTIONS) as llm:
        processes = processes_of(llm)
        first = llm.add_request(PROMPT, GREEDY)
        llm.step()
        before = state_of(llm)
        processes._processes[0].popen.kill()
        said = r"rank 1 of 2 is gone \(killed by signal 9\)\. The engine cannot go on: close it and make a new one"
        for _ in range(2):
            with pytest.raises(RankError, match=said):
                llm.step()
        assert state_of(llm) == before and len(first.completion_token_ids) == 1
        with LLM(toy, tensor_parallel_size=2, **OPTIONS) as other:
            assert other.generate(PROMPT, GREEDY, use_tqdm=False)[0].token_ids == expected
    assert not processes._folder.exists()


def test_what_a_rank_fails_with_is_told(toy: Path) -> None:
    with LLM(toy, tensor_parallel_size=2, **OPTIONS) as llm:
        processes = processes_of(llm)
        llm.generate(PROMPT, GREEDY, use_tqdm=False)
        processes.channel.send(b"no order", torch.empty(0, dtype=torch.int32), processes.check)
        with pytest.raises(RankError, match=r"rank 1 of 2 failed: UnpicklingError: .* \(orders\.py:\d+\)\. The engine"):
            llm.generate(PROMPT, GREEDY, use_tqdm=False)
        pid = processes._processes[0].popen.pid
    wait_for_end(pid)


def test_an_error_of_rank_0_ends_the_others(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have left them waiting in the middle of a step."""
    with LLM(toy, tensor_parallel_size=2, **OPTIONS) as llm:
        assert llm.runner is not None
        pid = processes_of(llm)._processes[0].popen.pid
        with monkeypatch.context() as patch:
            patch.setattr(llm.runner.backend, "silu_mul", lambda x: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                llm.generate(PROMPT, GREEDY, use_tqdm=False)
        with pytest.raises(RankError, match=r"rank 0 of 2 failed: ZeroDivisionError: division by zero\. The engine"):
            llm.generate(PROMPT, GREEDY, use_tqdm=False)
        wait_for_end(pid)


def test_a_rank_that_cannot_begin(tmp_path: Path) -> None:
    toy = broken_on_rank_1(tmp_path)
    with pytest.raises(RankError, match=r"rank 1 of 2 failed: WeightsError: .*gate_up_proj.* is not finite"):
        LLM(toy, tensor_parallel_size=2, **OPTIONS)


def broken_on_rank_1(folder: Path) -> Path:
    """A toy whose share for rank 1 has a NaN, of which rank 0 does not know."""
    import numpy as np
    from safetensors.numpy import load_file, save_file

    toy = make_toy(folder, "llama")
    file = toy / "model.safetensors"
    weights = load_file(file)
    weights["model.layers.0.mlp.gate_proj.weight"][-1, 0] = np.nan
    save_file(weights, file)
    return toy


@pytest.mark.parametrize("blocks", [None, 20])
def test_nobody_is_waited_for_who_may_not_come(
    blocks: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NCCL connects at the first sum, and waits there for ever for a rank that is gone: all must have loaded by then.

    gloo, which runs here, would tell; so what is asked is whether rank 0 has begun.
    """
    begun: list[str] = []
    real = {name: getattr(ProcessRanks, name) for name in ("sum", "gather", "share", "least")}
    for name in real:

        def call(self: ProcessRanks, x: Any, name: str = name) -> Any:
            begun.append(name)
            return real[name](self, x)

        monkeypatch.setattr(ProcessRanks, name, call)
    with pytest.raises(RankError, match=r"rank 1 of 2 failed: WeightsError: .*gate_up_proj.* is not finite"):
        LLM(broken_on_rank_1(tmp_path / "broken"), tensor_parallel_size=2, num_kvcache_blocks=blocks, **OPTIONS)
    assert begun == []
    with LLM(make_toy(tmp_path / "whole"), tensor_parallel_size=2, num_kvcache_blocks=blocks, **OPTIONS):
        assert begun[0] == "least", "ranks meet before anything is computed, while all are known to be alive"


def test_a_rank_that_is_killed_while_it_loads(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has said that it is here, and says nothing any more."""
    wait = RankProcesses.wait_loaded

    def killed(self: RankProcesses) -> None:
        self._processes[0].is_loaded = False
        self._processes[0].popen.kill()
        wait(self)

    monkeypatch.setattr(RankProcesses, "wait_loaded", killed)
    with pytest.raises(RankError, match=r"rank 1 of 2 is gone \(killed by signal 9\)"):
        LLM(toy, tensor_parallel_size=2, **OPTIONS)


def test_rank_0_that_cannot_begin_frees_what_it_has(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All have loaded, and one more is waited for in vain: weights and pool go, though the error is kept."""
    made: list[Any] = []
    real = ModelRunner.__init__

    def noted(self: ModelRunner, *given: Any, **named: Any) -> None:
        real(self, *given, **named)
        made.append(weakref.ref(self.model.lm_head.weight))
        made.append(weakref.ref(self.kv_cache.pool))

    def fail(self: RankProcesses) -> None:
        raise RankError("rank 1 of 2 failed: never mind")

    monkeypatch.setattr(ModelRunner, "__init__", noted)
    monkeypatch.setattr(RankProcesses, "wait_ready", fail)
    with pytest.raises(RankError, match="never mind") as kept:
        LLM(toy, tensor_parallel_size=2, **OPTIONS)
    gc.collect()
    assert len(made) == 2 and [each() for each in made] == [None, None] and kept.value.__traceback__ is not None


def test_a_bad_request_harms_nobody(toy: Path, expected: list[int]) -> None:
    with LLM(toy, tensor_parallel_size=2, **OPTIONS) as llm:
        for bad, message in (([9999], "9999"), (PROMPT * 10, "max_model_len")):
            with pytest.raises(ValueError, match=message):
                llm.generate(bad, GREEDY, use_tqdm=False)
        assert llm.generate(PROMPT, GREEDY, use_tqdm=False)[0].token_ids == expected


def test_closing_ends_the_processes(toy: Path) -> None:
    with LLM(toy, tensor_parallel_size=2, **OPTIONS) as llm:
        processes = processes_of(llm)
        runner = llm.runner
        assert runner is not None
    assert processes._processes[0].popen.returncode == 0 and not processes._folder.exists()
    llm.close()
    with pytest.raises(RuntimeError, match="closed"):
        runner.forward_logits(None)  # type: ignore[arg-type]


def test_an_engine_that_is_forgotten_ends_them_too(toy: Path) -> None:
    llm = LLM(toy, tensor_parallel_size=2, **OPTIONS)
    pid = processes_of(llm)._processes[0].popen.pid
    assert is_alive(pid) and isinstance(llm.engine, Engine)
    del llm
    gc.collect()
    wait_for_end(pid)


def test_an_interrupt_waits_for_the_step(toy: Path, expected: list[int]) -> None:
    """Ctrl-C reaches the whole group of a terminal, in the middle of a layer; then the engine goes on."""
    program, pid, folder = start(
        f"""
        silu_mul, sent = llm.runner.backend.silu_mul, []
        def interrupted(x):
            if not sent:
                sent.append(os.killpg(0, signal.SIGINT))
                time.sleep(0.2)
            return silu_mul(x)
        llm.runner.backend.silu_mul = interrupted
        try:
            llm.generate({PROMPT}, greedy, use_tqdm=False)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        print(llm.generate({PROMPT}, greedy, use_tqdm=False)[0].token_ids, flush=True)
        llm.close()
        """,
        toy,
    )
    out, _ = program.communicate(timeout=60)
    assert out.splitlines() == ["interrupted", str(expected)] and program.returncode == 0
    assert not is_alive(pid) and not folder.exists()


@pytest.mark.parametrize("ending", ["killed", "left open"])
def test_no_process_outlives_rank_0(ending: str, toy: Path) -> None:
    """A kernel that is killed cleans up nothing; one whose program just ends closes nothing."""
    program, pid, folder = start("time.sleep(60)" if ending == "killed" else "", toy)
    assert is_alive(pid) or ending == "left open"
    if ending == "killed":
        os.killpg(program.pid, signal.SIGKILL)
    program.communicate(timeout=30)
    wait_for_end(pid)
    assert not folder.exists()


def test_interrupts_held() -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - where it is raised is what is tested
        with interrupts_held():
            signal.raise_signal(signal.SIGINT)
            done.append("inside")
        done.append("after")
    assert done == ["inside"]
    before = signal.getsignal(signal.SIGINT)
    with interrupts_held():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before
