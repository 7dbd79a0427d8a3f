"""Engines on the GPU's backend, interpreted, with the flash-attn packages' stand-ins: graphs, padding, records."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from nvexplore.backends import attention
from nvexplore.backends.attention import PagedAttention, create_attention
from nvexplore.backends.attention.by_phase import AttentionByPhase
from nvexplore.backends.attention.flash_attn import FlashAttention2, FlashAttention4
from nvexplore.backends.attention.triton_paged import TritonPagedAttention
from nvexplore.backends.kernels.spread_tables import spread_tables
from nvexplore.engine.batch import Dispatch
from nvexplore.llm import LLM
from nvexplore.runner import model_runner
from nvexplore.sampling_params import SamplingParams
from nvexplore.toy import make_toy
from tests.fake_flash_attn import Calls, install
from tests.kernels.backends import CPU, Interpreted
from tests.kernels.fake_graphs import use_fake_graphs

PROMPTS = [[*range(40, 47)], [70, 71], [*range(80, 90)]]


@pytest.fixture(autouse=True)
def interpreted() -> None:
    from nvexplore.backends.kernels.launch import IS_INTERPRETED

    if not IS_INTERPRETED:
        pytest.skip("a GPU runs the kernels here")


def triton() -> TritonPagedAttention:
    return TritonPagedAttention(2)


def run(path: Path, made: PagedAttention, block_size: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """The tokens of three greedy requests, of which one ends early, and how each step was planned."""

    def create(device: torch.device, dtype: torch.dtype, *args: Any, **options: Any) -> Interpreted:
        backend = Interpreted(dtype)
        backend._attention = made
        return backend

    with monkeypatch.context() as patch:
        patch.setattr(model_runner, "create_backend", create)
        use_fake_graphs(patch)
        options: dict[str, Any] = {"max_num_seqs": 4, "max_num_batched_tokens": 32, "num_kvcache_blocks": 24}
        with LLM(
            path, device="cpu", dtype="float16", max_model_len=24, block_size=block_size, policy="mixed", **options
        ) as llm:
            seqs = [
                llm.add_request(prompt, SamplingParams(temperature=0, max_tokens=limit, ignore_eos=True))
                for prompt, limit in zip(PROMPTS[:2], (3, 4), strict=True)
            ]
            planned = [llm.step().planned]
            seqs.append(llm.add_request(PROMPTS[2], SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)))
            planned += [record.planned for record in llm.steps()]
            return [seq.completion_token_ids for seq in seqs], planned


@cache
def tokens_of_triton(path: Path, block_size: int) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        return run(path, triton(), block_size, patch)[0]


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_toy(tmp_path_factory.mktemp("flash_attn"), "qwen3", num_layers=1)


@pytest.mark.parametrize(
    ("prefill", "decode", "block_size"),
    [
        (FlashAttention4, FlashAttention4, 4),
        (FlashAttention2, FlashAttention2, 256),
        (FlashAttention4, None, 4),
        (None, FlashAttention4, 4),
    ],
)
def test_tokens_are_those_of_triton_and_records_name_each_phase(
    prefill: Any, decode: Any, block_size: int, toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """V24: graphs with rows of padding and tables of several widths; no -1 of theirs reaches a package."""
    calls = Calls()
    install(monkeypatch, calls)
    made: PagedAttention = (
        decode() if prefill is decode else AttentionByPhase(*((p or triton)() for p in (prefill, decode)))
    )
    found, planned = run(toy, made, block_size, monkeypatch)
    assert found == tokens_of_triton(toy, block_size) and [len(ids) for ids in found] == [3, 4, 3]
    names = ["triton" if each is None else "flash_attn" for each in (prefill, decode)]
    mixed, graphs = 0, 0
    for step in planned:
        if any(step.is_prefill):
            is_mixed = not all(step.is_prefill)
            mixed += is_mixed
            assert (step.prefill_backend, step.decode_backend) == (names[0], names[0] if is_mixed else None)
        else:
            graphs += step.graph_size == 4 and step.padding == 1
            assert (step.prefill_backend, step.decode_backend) == (None, names[1])
    assert mixed and graphs
    used = {FlashAttention2: "with_kvcache", FlashAttention4: "cute", None: None}[decode]
    assert (used in calls.names) == (decode is not None)


def test_dispatch_names_what_runs() -> None:
    backend = Interpreted(torch.float16)
    backend._attention = AttentionByPhase(backend._attention, FakeName("other"))
    assert backend.dispatch(2, 0) == Dispatch(None, None, "prefill", "triton", None)
    assert backend.dispatch(2, 3) == Dispatch(None, None, "prefill", "triton", "triton")
    assert backend.dispatch(0, 3) == Dispatch(None, None, "enforce_eager", None, "other")


class FakeName(TritonPagedAttention):
    def __init__(self, name: str) -> None:
        super().__init__(2)
        self.name = name


def test_spread_tables_write_block_0_where_there_is_none() -> None:
    source = torch.tensor([3, -1, -1, 5, 6, -1], dtype=torch.int32)
    out = torch.full((2, 4), 9, dtype=torch.int32)
    spread_tables(source, torch.tensor([3], dtype=torch.int32), out)
    assert out.tolist() == [[3, 0, 0, 9], [5, 6, 0, 9]]


def test_create_attention_makes_one_for_each_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Calls())

    class Hopper:
        multi_processor_count = 132
        major = 9

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Hopper)
    monkeypatch.setattr(attention, "installed_packages", lambda: frozenset({"flash_attn_2"}))

    def made(name: str, **asked: Any) -> Any:
        return create_attention(name, torch.device("cuda", 0), torch.bfloat16, block_size=256, head_dim=64, **asked)

    both = made("flash_attn", prefill="triton")
    assert (type(both.prefill), type(both.decode)) == (TritonPagedAttention, FlashAttention2)
    both = made("triton", prefill="flash_attn")
    assert (type(both.prefill), type(both.decode)) == (FlashAttention2, TritonPagedAttention)
    assert type(made("auto")) is type(made("flash_attn", prefill="auto", decode="triton")) is TritonPagedAttention
    assert create_attention("auto", CPU, torch.float32).name == "torch"
