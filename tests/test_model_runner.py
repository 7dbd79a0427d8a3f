"""The runner as the engine sees it: sampling, errors, sizes, torch's global state, closing."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest
import torch

from nvexplore.engine.batch import Dispatch, Runner
from nvexplore.model_config import ModelConfig
from nvexplore.runner.dtype import resolve_dtype
from nvexplore.runner.model_runner import ModelRunner
from nvexplore.toy import make_toy
from tests.paged import Paged, token_ids


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return make_toy(tmp_path, "qwen3", seed=5)


def sampled(paged: Paged, count: int, temperature: float = 1.0, company: int = 0) -> list[int]:
    """Decode one sequence, beside ``company`` others; return its ids."""
    paged.reset(seed=company)
    seqs = [paged.seq(token_ids(6), temperature=temperature)]
    seqs += [paged.seq(token_ids(3 + i, seed=i + 1), temperature=i % 2) for i in range(company)]
    rows = [(seq, seq.num_prompt_tokens) for seq in seqs]
    paged.step(*rows[::-1])
    for _ in range(count - 1):
        paged.step(*((seq, 1) for seq in seqs))
    return seqs[0].completion_token_ids


def test_is_a_runner(path: Path) -> None:
    paged = Paged(path, block_size=8, num_blocks=10)
    runner: Runner = paged.runner
    assert (paged.runner.num_blocks, paged.runner.block_size, paged.runner.vocab_size) == (10, 8, 272)
    assert paged.runner.dtype == torch.float32
    a, b = paged.seq(token_ids(4)), paged.seq(token_ids(4))
    paged.step((a, 4))
    assert runner.dispatch(paged.batch((b, 4))) == Dispatch(None, None, "cpu", "torch", None)
    assert runner.dispatch(paged.batch((a, 1))) == Dispatch(None, None, "cpu", None, "torch")


def test_draws_depend_on_seed_sequence_and_position_only(path: Path) -> None:
    paged = Paged(path)
    ids = sampled(paged, 12)
    assert sampled(paged, 12) == ids
    assert sampled(paged, 12, company=4) == ids
    assert sampled(Paged(path, seed=1), 12) != ids
    assert len(set(ids)) > 2


def test_a_step_done_again_draws_the_same(path: Path) -> None:
    paged = Paged(path)
    seq = paged.seq(token_ids(6), temperature=1.5)
    batch = paged.batch((seq, 6))
    assert paged.runner.run(batch) == paged.runner.run(batch)
    others = [paged.seq(token_ids(6), temperature=1.5) for _ in range(8)]
    draws = paged.runner.run(paged.batch(*((seq, 6) for seq in others)))
    assert len(set(draws)) > 1


def test_tiny_temperature_is_greedy(path: Path) -> None:
    paged = Paged(path)
    assert sampled(paged, 8, temperature=1e-11) == sampled(paged, 8, temperature=0)


def test_a_row_of_nan_is_marked_and_the_others_go_on(path: Path) -> None:
    paged = Paged(path)
    a, b, c = (paged.seq(token_ids(5, seed=i)) for i in range(3))
    paged.step((a, 5), (b, 5), (c, 5))
    paged.runner.kv_cache.pool[:, :, b.block_table[0]] = torch.nan
    alone = [paged.runner.run(paged.batch((seq, 1))) for seq in (a, c)]
    assert paged.runner.run(paged.batch((a, 1), (b, 1), (c, 1))) == [*alone[0], -1, *alone[1]]


def test_torch_is_left_as_it_was(path: Path) -> None:
    torch.set_default_dtype(torch.bfloat16)
    state = (torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled())
    rng = torch.get_rng_state()
    try:
        paged = Paged(path)
        assert {p.dtype for p in paged.runner.model.parameters()} == {torch.float32}
        sampled(paged, 3)
        assert (torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled()) == state
        assert torch.empty(0).device.type == "cpu"
        assert torch.equal(torch.get_rng_state(), rng)
        assert not torch.is_inference_mode_enabled()
    finally:
        torch.set_default_dtype(torch.float32)


def test_two_runners_do_not_meet(path: Path, tmp_path: Path) -> None:
    other_path = make_toy(tmp_path / "other", "llama", head_dim=64, seed=9)
    first, second = Paged(path), Paged(other_path, block_size=2)
    alone = sampled(first, 6), sampled(second, 6)
    first.reset()
    second.reset()
    seqs = [paged.seq(token_ids(6), temperature=1.0) for paged in (first, second)]
    for count in (6, 1, 1, 1, 1, 1):
        for paged, seq in zip((first, second), seqs, strict=True):
            paged.step((seq, count))
    assert tuple(seq.completion_token_ids for seq in seqs) == alone
    first.runner.close()
    assert sampled(second, 6) == alone[1]


def test_close_frees_and_may_be_repeated(path: Path) -> None:
    paged = Paged(path)
    sampled(paged, 2)
    held = [weakref.ref(paged.runner.kv_cache.pool), weakref.ref(paged.runner.model.lm_head.weight)]
    batch = paged.batch((paged.seq(token_ids(2)), 2))
    paged.runner.close()
    paged.runner.close()
    gc.collect()
    assert [reference() for reference in held] == [None, None]
    for call in (paged.runner.run, paged.runner.forward_logits):
        with pytest.raises(RuntimeError, match="closed"):
            call(batch)


def test_automatic_pool_holds_the_largest_batch_and_no_more(path: Path) -> None:
    runner = ModelRunner(
        path,
        ModelConfig.from_path(path),
        device="cpu",
        block_size=16,
        max_num_batched_tokens=64,
        max_num_seqs=3,
        max_model_len=100,
    )
    assert runner.num_blocks == 3 * 7 == runner.kv_cache.pool.shape[2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_blocks": 0}, "num_kvcache_blocks=0"),
        ({"block_size": 0}, "block_size=0"),
        ({"max_model_len": 5000}, "max_model_len=5000: must be at most 4096"),
        ({"max_num_seqs": 0}, "max_num_seqs=0"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens=0"),
        ({"dtype": "int8"}, "dtype='int8'"),
        ({"device": "cuda"}, "device='cuda'"),
        ({"attention_backend": "triton"}, "attention_backend='triton'"),
    ],
)
def test_arguments_are_refused_by_name(path: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Paged(path, **options)  # type: ignore[arg-type]


def test_no_room_for_the_pool(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nvexplore.backends.cpu._free_memory", lambda: 100)
    with pytest.raises(ValueError, match=r"no room for the KV cache: .* 50 bytes are available"):
        Paged(path, num_blocks=None)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["float16", torch.float16])
def test_v23_float16_for_a_bfloat16_checkpoint_warns(tmp_path: Path, dtype: str | torch.dtype) -> None:
    config = ModelConfig.from_path(make_toy(tmp_path / "bfloat16", dtype="bfloat16"))
    with pytest.warns(UserWarning, match=r"dtype='float16' for a bfloat16 checkpoint: values above 65504"):
        assert resolve_dtype(dtype, config) == torch.float16
    for theirs in ("float16", "float32"):  # warnings are errors here
        config = ModelConfig.from_path(make_toy(tmp_path / theirs, dtype=theirs))
        assert resolve_dtype(dtype, config) == torch.float16


def test_progress_is_told_while_loading(path: Path) -> None:
    calls: list[tuple[int, int]] = []
    Paged(path, progress=lambda done, total: calls.append((done, total)))
    assert calls[0][0] == 0 and calls[-1][0] == calls[-1][1] > 0


def test_resolve_dtype(path: Path) -> None:
    config = ModelConfig.from_path(path)
    assert resolve_dtype("auto", config) == torch.float32
    assert resolve_dtype("bfloat16", config) == resolve_dtype(torch.bfloat16, config) == torch.bfloat16
    with pytest.raises(ValueError, match=r"dtype='float64' .* float32, bfloat16, float16"):
        resolve_dtype(torch.float64, config)
