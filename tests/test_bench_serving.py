"""Serving workloads: what they ask for, differences of whole calls, fair turns, and a real run on a toy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nvexplore.bench import serving
from nvexplore.bench.servers import make_server
from nvexplore.bench.serving import Figure, Serving
from nvexplore.bench.serving_compare import compare_servers, table
from nvexplore.model_config import ModelConfig
from nvexplore.random_model import SHAPES, write_random_model


class Clock:
    """Time that only servers move."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class FakeServer:
    """Takes a millisecond for each prompt token, 10 for a step of all prompts; notes what it is asked for."""

    load_seconds = 1.0

    def __init__(self, clock: Clock, name: str = "fake", lost: int = 0) -> None:
        self.name, self.clock, self.lost = name, clock, lost
        self.asked: list[tuple[list[list[int]], list[int]]] = []

    def generate(self, prompts: list[list[int]], max_tokens: list[int]) -> int:
        self.asked.append((prompts, max_tokens))
        self.clock.now += sum(map(len, prompts)) * 1e-3 + max(max_tokens) * 10e-3
        return sum(max_tokens) - self.lost

    def close(self) -> None: ...


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(serving.time, "perf_counter", clock)
    return clock


def test_what_the_workloads_ask_for(clock: Clock) -> None:
    server = FakeServer(clock)
    found = {each.name: each.measure(server, 7) for each in serving.workloads()}
    assert [figure.unit for figure in found.values()] == ["tokens/s", *["ms"] * 5, "prompt tokens/s", "s"]
    asked = server.asked
    prompts, counts = asked[0]
    assert len(prompts) == len(counts) == 256
    for sizes in ([len(prompt) for prompt in prompts], counts):
        assert 100 <= min(sizes) < 120 and 1000 < max(sizes) <= 1024
    assert found["throughput"].value == pytest.approx(sum(counts) / (sum(map(len, prompts)) / 1e3 + max(counts) / 100))
    for batch in (1, 8, 32, 64):
        assert found[f"step at batch {batch}"].value == pytest.approx(10)  # the prefill cancels out
    assert found["first token"].value == pytest.approx(74)
    assert found["prefill 8 x 8,192"].value == pytest.approx(65536 / 65.546)
    shared = asked[-1][0]
    assert {tuple(prompt[:2048]) for prompt in shared} == {tuple(shared[0][:2048])}
    assert len({tuple(prompt[2048:]) for prompt in shared}) == 256
    assert all(0 <= token < 10_000 for prompts, _ in asked for prompt in prompts for token in prompt)


def test_prompts_are_new_for_every_seed() -> None:
    assert serving.throughput_requests(1) == serving.throughput_requests(1) != serving.throughput_requests(2)


def test_tokens_that_did_not_come_are_an_error(clock: Clock) -> None:
    with pytest.raises(RuntimeError, match="fake gave 63 tokens, 64 were asked for"):
        serving.seconds(FakeServer(clock, lost=1), [[1]], [64])


def test_passes_alternate_and_ratios_are_of_the_same_pass(clock: Clock) -> None:
    log: list[str] = []
    values = {"a": iter([0, 0, 10.0, 30.0, 20.0]), "b": iter([0, 0, 20.0, 20.0, 20.0])}

    def measure(server: serving.Server, seed: int) -> Figure:
        log.append(f"{server.name}{seed}")
        return Figure(next(values[server.name]), "ms", False)

    servers = [FakeServer(clock, "a"), FakeServer(clock, "b")]
    (row,) = compare_servers(servers, [Serving("step", measure)], 3, lambda line: None)
    assert log == ["b-2", "a-2", "a-1", "b-1", "b0", "a0", "a1", "b1", "b2", "a2"]
    assert (row.median("a"), row.median("b")) == (20, 20)
    assert row.ratio() == pytest.approx(1)  # 2, 2/3 and 1 times better
    assert json.loads(json.dumps(row.as_dict()))["passes"]["a"] == [10, 30, 20]
    assert table([row]).splitlines()[1].split() == ["step", "20.00", "20.00", "ms", "1.00x"]


def test_one_engine_alone_has_no_ratio(clock: Clock) -> None:
    one = Serving("first", serving.first_token)
    (row,) = compare_servers([FakeServer(clock)], [one], 1, lambda line: None)
    assert row.ratio() is None and row.as_dict()["times_better"] is None
    assert "x" not in table([row])


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    small = {"num_hidden_layers": 1, "hidden_size": 32, "vocab_size": 10_016, "intermediate_size": 32, "head_dim": 16}
    small |= {"num_attention_heads": 2, "num_key_value_heads": 1, "eos_token_id": 1, "bos_token_id": 2}
    monkeypatch.setitem(SHAPES, "tiny", {**SHAPES["qwen3-0.6b"], **small})
    return write_random_model(tmp_path / "tiny", "tiny")


def test_a_real_server_gives_what_is_asked_for(tiny: Path) -> None:
    server = make_server("nvexplore", tiny, dtype="float32", max_model_len=64, memory=0.5)
    assert server.load_seconds > 0
    assert server.generate([[1, 2, 3], [4]], [5, 2]) == 7
    assert serving.throughput(server, 0, count=3, longest=8).value > 0
    server.close()


def test_a_random_model_is_written_once_and_whole(tiny: Path) -> None:
    weights = tiny / "model.safetensors"
    before = weights.stat().st_mtime_ns, weights.stat().st_size
    assert write_random_model(tiny, "tiny") == tiny
    assert (weights.stat().st_mtime_ns, weights.stat().st_size) == before
    assert not list(tiny.glob("*.part"))


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_shapes_are_configs_that_run(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SHAPES[name]), encoding="utf-8")
    config = ModelConfig.from_path(tmp_path)
    assert config.num_hidden_layers == SHAPES[name]["num_hidden_layers"]
    assert (config.moe is not None) == ("num_experts" in SHAPES[name])
