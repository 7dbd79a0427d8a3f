"""The peers of the serving benchmark: transformers for real, nano-vLLM and vLLM as modules that do as theirs do."""

from __future__ import annotations

import sys
from collections import deque
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from nvexplore.bench.servers import SERVERS, PeerError, find_peer, make_server
from nvexplore.bench.serving import Arrival, CountsHits, StreamingServer
from nvexplore.model_config import ModelConfig
from nvexplore.toy import make_toy

PROMPTS, MAX_TOKENS = [[1, 2, 3], [4], [5, 6]], [4, 1, 3]
ARRIVALS = [Arrival(0.0, [1, 2, 3], 4), Arrival(0.001, [4], 1), Arrival(0.002, [5, 6], 3)]


class Params(SimpleNamespace):
    """Sampling parameters of either: they take what they are given."""


class FakeNano:
    """nano-vLLM's LLM as far as it is used: one prompt prefilled a step, else all that run decode."""

    log: list[str]

    def __init__(self, model: str, **options: Any) -> None:
        self.options = options
        self.scheduler = SimpleNamespace(waiting=deque(), running=[])

    def generate(self, prompts: list[list[int]], params: list[Params], use_tqdm: bool) -> list[dict[str, Any]]:
        assert not use_tqdm
        return [{"token_ids": [0] * each.max_tokens} for each in params]

    def add_request(self, prompt: list[int], params: Params) -> None:
        seq = SimpleNamespace(num_completion_tokens=0, is_finished=False, max_tokens=params.max_tokens)
        self.scheduler.waiting.append(seq)

    def step(self) -> None:
        assert self.scheduler.waiting or self.scheduler.running
        seqs = [self.scheduler.waiting.popleft()] if self.scheduler.waiting else self.scheduler.running
        for seq in seqs:
            seq.num_completion_tokens += 1
            seq.is_finished = seq.num_completion_tokens == seq.max_tokens
        both = {id(seq): seq for seq in (*self.scheduler.running, *seqs)}
        self.scheduler.running = [seq for seq in both.values() if not seq.is_finished]

    def exit(self) -> None:
        self.log.append("exit")


class FakeVllm:
    """vLLM's LLM as far as it is used, its LLMEngine within: outputs carry the ids so far, and hits of 2 a prompt."""

    def __init__(self, model: str, **options: Any) -> None:
        self.options, self.llm_engine = options, self
        self.running: dict[str, tuple[int, int]] = {}

    def generate(self, inputs: list[dict[str, Any]], params: list[Params], use_tqdm: bool) -> list[Any]:
        assert [list(each) for each in inputs] == [["prompt_token_ids"]] * len(inputs) and not use_tqdm
        return [self.output("-", each.max_tokens, True) for each in params]

    def add_request(self, request_id: str, prompt: dict[str, list[int]], params: Params) -> None:
        assert prompt["prompt_token_ids"]
        self.running[request_id] = 0, params.max_tokens

    def step(self) -> list[Any]:
        assert self.running
        self.running = {name: (count + 1, most) for name, (count, most) in self.running.items()}
        outputs = [self.output(name, count, count == most) for name, (count, most) in self.running.items()]
        self.running = {name: each for name, each in self.running.items() if each[0] < each[1]}
        return outputs

    @staticmethod
    def output(request_id: str, count: int, finished: bool) -> Any:
        outputs = [SimpleNamespace(token_ids=[0] * count)]
        return SimpleNamespace(request_id=request_id, outputs=outputs, finished=finished, num_cached_tokens=2)


@pytest.fixture(autouse=True)
def modules(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    FakeNano.log = []
    monkeypatch.setenv("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    for name, llm in (("nanovllm", FakeNano), ("vllm", FakeVllm)):
        module = ModuleType(name)
        module.LLM, module.SamplingParams = llm, Params  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, module)
    return FakeNano.log


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_toy(tmp_path_factory.mktemp("peers") / "toy", "qwen3")


@pytest.mark.parametrize("name", ["nano-vllm", "vllm"])
def test_what_is_asked_of_a_peer_comes_whole_and_as_it_arrives(name: str, toy: Path) -> None:
    server = make_server(name, toy, dtype="float32", max_model_len=64, memory=0.45)
    assert server.name == name and server.load_seconds >= 0 and server.stages == {}
    assert server.generate(PROMPTS, MAX_TOKENS) == 8
    assert isinstance(server, StreamingServer)
    for _ in range(2):
        times = server.serve(ARRIVALS)
        assert [len(each) for each in times] == MAX_TOKENS
        assert all(each == sorted(each) for each in times) and times[2][0] > 0.002
    options = server._llm.options  # type: ignore[attr-defined]
    assert (options["max_model_len"], options["gpu_memory_utilization"]) == (64, 0.45)
    if name == "vllm":
        assert isinstance(server, CountsHits) and server.num_cached_tokens == 6
        assert options["dtype"] == "float32"
    server.close()


def test_nano_vllm_is_ended_once(toy: Path, modules: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It registers its own end with atexit, and a second one fails."""
    gone: list[Any] = []
    monkeypatch.setattr("atexit.unregister", gone.append)
    server = make_server("nano-vllm", toy, dtype="float32", max_model_len=64, memory=0.45)
    ends = server._llm.exit  # type: ignore[attr-defined]
    server.close()
    assert modules == ["exit"] and gone == [ends]


def test_transformers_pads_on_the_left_and_counts_what_was_asked_for(
    toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SERVERS["transformers"], "batch_size", 2)
    server = make_server("transformers", toy, dtype="float32", max_model_len=64, memory=0.45)
    assert not isinstance(server, StreamingServer) and not isinstance(server, CountsHits)
    model, asked = server._model, list[tuple[Any, ...]]()  # type: ignore[attr-defined]
    generate = model.generate

    def spied(ids: torch.Tensor, *, attention_mask: torch.Tensor, max_new_tokens: int) -> torch.Tensor:
        out: torch.Tensor = generate(ids, attention_mask=attention_mask, max_new_tokens=max_new_tokens)
        asked.append((ids.tolist(), attention_mask.tolist(), max_new_tokens, out.shape))
        return out

    model.generate = spied
    assert server.generate(PROMPTS, MAX_TOKENS) == 8
    assert asked[0] == ([[1, 2, 3], [0, 0, 4]], [[1, 1, 1], [0, 0, 1]], 4, (2, 7))  # past any end-of-sequence id
    assert asked[1] == ([[5, 6]], [[1, 1]], 3, (1, 5))
    config = model.generation_config
    assert (config.do_sample, config.temperature, config.top_k, config.top_p) == (True, 0.6, 0, 1.0)
    server.close()


def test_a_peer_is_found_where_it_is_said_to_be(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delitem(sys.modules, "nanovllm")
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(
        PeerError, match=r"--peer nano-vllm: nanovllm is not installed; give a checkout of github\.com/"
    ):
        find_peer("nano-vllm", None)
    with pytest.raises(PeerError, match=r"nanovllm is not in .*; give a checkout"):
        find_peer("nano-vllm", tmp_path)
    with pytest.raises(PeerError, match="nowhere: no such folder"):
        find_peer("nano-vllm", tmp_path / "nowhere")
    (tmp_path / "checkout" / "nanovllm").mkdir(parents=True)
    source = tmp_path / "checkout" / "nanovllm" / "__init__.py"
    source.write_text("import flash_attn_of_no_kind\n", encoding="utf-8")
    find_peer("nano-vllm", tmp_path / "checkout")
    find_peer("nano-vllm", tmp_path / "checkout")
    assert sys.path.count(str(tmp_path / "checkout")) == 1
    with pytest.raises(PeerError, match="nano-vllm cannot be imported: No module named 'flash_attn_of_no_kind'"):
        make_server("nano-vllm", tmp_path, dtype="float32", max_model_len=64, memory=0.45)
    for name, how in (("vllm", "pip install vllm"), ("transformers", "pip install")):
        monkeypatch.setattr("importlib.util.find_spec", lambda module: None)
        with pytest.raises(PeerError, match=f"--peer {name}: {name} is not installed; {how}"):
            find_peer(name, None)


def test_what_nano_vllm_cannot_run_is_known_before_it_is_loaded(toy: Path, tmp_path: Path) -> None:
    nano, config = SERVERS["nano-vllm"], ModelConfig.from_path(toy)
    llama = ModelConfig.from_path(make_toy(tmp_path / "llama", "llama"))
    assert nano.refusal(config, "float32", has_gpu=True) is None
    assert nano.refusal(config, "float32", has_gpu=False) == "runs on a GPU only, and torch sees none here"
    assert "in its own dtype, float32, not in bfloat16" in nano.refusal(config, "bfloat16", has_gpu=True)
    assert "runs Qwen3ForCausalLM only, not LlamaForCausalLM" in nano.refusal(llama, "float32", has_gpu=True)
    assert SERVERS["vllm"].refusal(llama, "bfloat16", has_gpu=False) is None
