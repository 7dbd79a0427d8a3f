"""What a failure leaves: no weights and no pool, though a notebook keeps the error, and with it all that it saw."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from nvexplore import llm as llm_module
from nvexplore.backends.cpu import CpuBackend
from nvexplore.half_made import closed_if_it_fails
from nvexplore.layers import embedding, linear, norm
from nvexplore.layers.parameter import new_parameter
from nvexplore.llm import LLM
from nvexplore.runner import model_runner, weights
from nvexplore.runner.kv_cache import KVCache
from nvexplore.runner.model_runner import ModelRunner
from nvexplore.sampling_params import SamplingParams
from nvexplore.toy import make_toy

OPTIONS: dict[str, Any] = {"device": "cpu", "dtype": "float32", "block_size": 4, "max_model_len": 64}


def fail(*given: Any, **named: Any) -> Any:
    kept = given, named  # as a frame has it in a traceback
    raise ArithmeticError(f"{len(kept)}")


def fail_after(call: Any) -> Any:
    def failing(*given: Any, **named: Any) -> Any:
        kept = call(*given, **named)
        raise ArithmeticError(f"{type(kept)}")

    return failing


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[StorageWeakRef]:
    """The memory of every weight and every pool that is made."""
    found: list[StorageWeakRef] = []
    make_pool = KVCache.__init__

    def parameter(*given: Any) -> torch.nn.Parameter:
        value = new_parameter(*given)
        found.append(StorageWeakRef(value.untyped_storage()))
        return value

    def pool(self: KVCache, *given: Any, **named: Any) -> None:
        make_pool(self, *given, **named)
        found.append(StorageWeakRef(self.pool.untyped_storage()))

    for module in (embedding, linear, norm):
        monkeypatch.setattr(module, "new_parameter", parameter)
    monkeypatch.setattr(KVCache, "__init__", pool)
    return found


def alive(made: list[StorageWeakRef]) -> int:
    gc.collect()
    return sum(not each.expired() for each in made)


FAILURES: dict[str, tuple[Any, str, Any]] = {
    "weights": (weights, "_check_finite", fail),
    "packing": (CpuBackend, "prepare_weights", fail_after(CpuBackend.prepare_weights)),
    "memory": (CpuBackend, "available_memory", fail),
    "pool": (KVCache, "bind", fail),
    "step": (CpuBackend, "silu_mul", fail),
    "warm-up": (ModelRunner, "_warm_up", fail),
    "capture": (CpuBackend, "capture", fail),
    "ledger": (model_runner, "ledger_of", fail),
    "engine": (llm_module, "StopFinder", fail),
}


@pytest.mark.parametrize("stage", FAILURES)
def test_a_model_that_was_not_made_is_gone_while_its_error_lives(
    stage: str, made: list[StorageWeakRef], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy, closed = make_toy(tmp_path, "qwen3", num_layers=1), []
    owner, name, failing = FAILURES[stage]
    monkeypatch.setattr(owner, name, failing)
    close, release = CpuBackend.close, CpuBackend.release
    monkeypatch.setattr(CpuBackend, "close", lambda self: (closed.append("close"), close(self)))
    monkeypatch.setattr(CpuBackend, "release", lambda self: (closed.append("release"), release(self)))
    with pytest.raises(ArithmeticError) as kept:
        LLM(toy, **OPTIONS)
    assert kept.value.__traceback__ is not None and made
    assert alive(made) == 0
    assert closed == ["close", "release"]


def test_an_error_within_another_ones_handling() -> None:
    """The variables of what the caller handles are the caller's; an error that led to ours is ours."""
    closed: list[str] = []

    def deep(name: str, cause: bool) -> None:
        mark = name  # looked for below
        if cause:
            try:
                deep(f"{mark} cause", False)
            except ValueError:
                raise KeyError(mark) from None
        raise ValueError(mark)

    def marks(error: BaseException | None) -> list[str]:
        found = []
        while error is not None:
            at = error.__traceback__
            while at is not None:
                found += [at.tb_frame.f_locals["mark"]] if "mark" in at.tb_frame.f_locals else []
                at = at.tb_next
            error = error.__context__
        return found

    def handle() -> None:
        try:
            deep("outer", False)
        except ValueError:
            with closed_if_it_fails(lambda: closed.append("closed")):
                deep("inner", True)

    with pytest.raises(KeyError) as caught:
        handle()
    assert marks(caught.value) == ["outer"] and closed == ["closed"]
    with closed_if_it_fails(lambda: closed.append("twice")):
        pass
    assert closed == ["closed"]


@pytest.mark.parametrize("overlap", [False, True])
def test_closing_with_a_step_in_the_air(overlap: bool, made: list[StorageWeakRef], tmp_path: Path) -> None:
    """A step that was never waited for holds no model, whoever holds the engine."""
    llm = LLM(make_toy(tmp_path, "llama", num_layers=1), overlap=overlap, **OPTIONS)
    llm.add_request([40, 41, 42], SamplingParams(temperature=0, max_tokens=8, ignore_eos=True))
    llm.advance()
    engine = llm.engine
    assert bool(engine._steps.flights) is overlap
    llm.close()
    assert alive(made) == 0 and engine is not None
