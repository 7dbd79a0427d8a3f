"""Serving workloads: what they ask for and tell, requests that arrive, loading, and a real run on a toy."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path

import pytest

from nvexplore.bench import serving_workloads
from nvexplore.bench.servers import Nvexplore, grouped, make_server
from nvexplore.bench.serving import WORKLOADS, Arrival, Source, seconds
from nvexplore.bench.serving_arrivals import Progress, mixed_arrivals, serve
from nvexplore.bench.serving_startup import Startup, lines, start
from nvexplore.bench.serving_workloads import Sizes, workloads
from nvexplore.model_config import ModelConfig
from nvexplore.random_model import SHAPES, write_random_model
from tests.serving_fakes import Clock, FakeServer, FakeStreaming, by_case


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("time.perf_counter", clock)
    monkeypatch.setattr("time.sleep", clock.sleep)
    return clock


# ---------------------------------------------------------------- what is asked for, and what is told


def test_what_the_workloads_ask_for_at_full_size(clock: Clock) -> None:
    server = FakeServer(clock)
    chosen = [each for each in workloads(WORKLOADS, Sizes()) if not each.is_streaming]
    figures = [figure for each in chosen for figure in each.measure(server, 7)]
    found = by_case(figures)
    assert [figure.unit for figure in figures] == ["tokens/s", *["ms"] * 5, "prompt tokens/s", "s"]
    asked = server.asked
    prompts, counts = asked[0]
    assert len(prompts) == len(counts) == 256
    for sizes in ([len(prompt) for prompt in prompts], counts):
        assert 100 <= min(sizes) < 120 and 1000 < max(sizes) <= 1024
    assert found["output", ""] == pytest.approx(sum(counts) / (sum(map(len, prompts)) / 1e3 + max(counts) / 100))
    for batch in (1, 8, 32, 64):
        assert found["decode step", f"batch {batch}"] == pytest.approx(10)  # the prefill cancels out
    assert found["time to first token", "64 ids"] == pytest.approx(74)
    assert found["prefill", "8 x 8,192 ids"] == pytest.approx(65536 / 65.546)
    shared = asked[-1][0]
    assert {tuple(prompt[:2048]) for prompt in shared} == {tuple(shared[0][:2048])}
    assert len({tuple(prompt[2048:]) for prompt in shared}) == 256
    assert all(0 <= token < 10_000 for prompts, _ in asked for prompt in prompts for token in prompt)


def test_no_two_measurements_begin_with_the_same_ids(clock: Clock) -> None:
    """A warm-up (its number is negative) or another workload would put them into the prefix cache."""
    server, seen = FakeStreaming(clock), set[tuple[int, ...]]()
    for each in workloads(WORKLOADS, Sizes(scale=1 / 16)):
        for seed in range(-2, 3):
            before = len(server.asked)
            each.measure(server, seed)
            begins = {tuple(prompt[:4]) for prompts, _ in server.asked[before:] for prompt in prompts}
            if each.is_streaming:
                begins |= {tuple(arrival.prompt[:4]) for arrival in server.arrivals}
            assert begins and not begins & seen, (each.name, seed)
            seen |= begins


def test_the_same_seed_gives_the_same_requests() -> None:
    assert [Source("a", seed, 10_000).prompt(5) for seed in (1, 1)] == [Source("a", 1, 10_000).prompt(5)] * 2
    assert len({tuple(Source(name, seed, 10_000).prompt(5)) for name in "ab" for seed in (-1, 0, 1)}) == 6


@pytest.mark.parametrize("scale", [1e-6, 1 / 64, 0.3, 1, 1.5])
@pytest.mark.parametrize("max_model_len", [256, 4096])
def test_any_scale_fits_the_model(clock: Clock, scale: float, max_model_len: int) -> None:
    server = FakeStreaming(clock)
    for each in workloads(WORKLOADS, Sizes(scale, ids=7, max_model_len=max_model_len)):
        server.asked.clear()
        assert all(math.isfinite(figure.value) and figure.value > 0 for figure in each.measure(server, 0))
        lengths = [(len(prompt), new) for asked in server.asked for prompt, new in zip(*asked, strict=True)]
        if each.is_streaming:
            lengths = [(len(arrival.prompt), arrival.max_tokens) for arrival in server.arrivals]
        assert min(map(min, lengths)) >= 1 and max(map(sum, lengths)) <= each.longest <= max_model_len


def test_only_the_workloads_that_are_asked_for() -> None:
    names = [each.name for each in workloads(("prefill", "step"), Sizes())]
    assert names == ["step"] * 4 + ["prefill"]
    assert [each.name for each in workloads(["step"], Sizes(scale=1 / 16))] == ["step"] * 3  # batch 1, 2, 4


def test_tokens_that_did_not_come_are_an_error(clock: Clock) -> None:
    with pytest.raises(RuntimeError, match="fake gave 63 tokens, 64 were asked for"):
        seconds(FakeServer(clock, lost=1), [[1]], [64])


def test_hits_are_told_by_those_who_count_them(clock: Clock) -> None:
    run = partial(serving_workloads.shared_prefix, seed=0, ids=100, count=3, shared=6, own=2, new=1)
    assert [figure.quantity for figure in run(FakeServer(clock))] == ["all requests"]
    hits = run(FakeStreaming(clock))[1]
    assert (hits.quantity, hits.value, hits.unit, hits.more_is_better) == ("hit rate", 50, "%", None)


def test_the_share_of_the_floor_is_of_the_very_requests_of_the_pass(clock: Clock) -> None:
    server = FakeServer(clock)
    (workload,) = workloads(["throughput"], Sizes(scale=1 / 64), lambda prompts, new: (sum(prompts) + sum(new)) * 1e-4)
    figures = workload.measure(server, 3)
    prompts, counts = server.asked[0]
    took = sum(map(len, prompts)) * 1e-3 + max(counts) * 10e-3
    expected = 100 * (sum(map(len, prompts)) + sum(counts)) * 1e-4 / took
    assert by_case(figures)["share of the floor's speed", ""] == pytest.approx(expected)


@pytest.mark.parametrize(("name", "times"), [("nvexplore", 1), ("recorded", 1), ("vllm", 2), ("nano-vllm", 2)])
def test_peers_are_held_against_a_floor_without_nvexplores_options(name: str, times: int, clock: Clock) -> None:
    server, shares = FakeServer(clock, name), []
    for floors in ([lambda prompts, new: 1e-3], [lambda prompts, new: 1e-3, lambda prompts, new: 2e-3]):
        (workload,) = workloads(["throughput"], Sizes(scale=1 / 64), *floors)
        shares.append(by_case(workload.measure(server, 3))["share of the floor's speed", ""])
    assert shares[1] == pytest.approx(times * shares[0])


# ---------------------------------------------------------------- requests that arrive


def test_requests_join_between_steps_and_an_idle_engine_waits(clock: Clock) -> None:
    server = FakeStreaming(clock)
    arrivals = [Arrival(0.5, [1], 1), Arrival(0.0, [1], 3), Arrival(0.015, [1], 1)]
    times = server.serve(arrivals)
    assert times[1] == pytest.approx([0.01, 0.02, 0.03])
    assert times[2] == pytest.approx([0.03])  # it came in the midst of the second step
    assert times[0] == pytest.approx([0.51])  # nothing ran before it
    assert clock.now == pytest.approx(0.51)


def test_an_engine_may_tell_several_tokens_at_once_or_none(clock: Clock) -> None:
    class Bursts:
        steps = iter([[], [Progress(0, 2, False)], [Progress(0, 2, False)], [Progress(0, 5, True)]])

        def add(self, number: int, arrival: Arrival) -> None: ...

        def step(self) -> list[Progress]:
            clock.now += 1
            return next(self.steps)

    assert serve(Bursts(), [Arrival(0, [1], 5)]) == [[2, 2, 4, 4, 4]]


def test_what_users_notice_of_mixed_arrivals(clock: Clock) -> None:
    server = FakeStreaming(clock)
    run = partial(mixed_arrivals, ids=100, count=40, longest=20, new=8, rate=20.0)
    figures = run(server, 5)
    found = by_case(figures)
    assert found["inter-token latency", "median"] == found["inter-token latency", "p95"] == pytest.approx(10)
    # A request waits for the step that runs when it comes, and then for its own.
    assert 10 <= found["time to first token", "median"] < found["time to first token", "p95"] <= 20
    assert {(figure.unit, figure.more_is_better) for figure in figures} == {("ms", False)}
    times = [arrival.seconds for arrival in server.arrivals]
    assert times[0] == 0 and times == sorted(times) and 1 < times[-1] < 4  # some 39 / 20 s
    assert all(2 <= len(a.prompt) <= 20 and 2 <= a.max_tokens <= 8 for a in server.arrivals)
    with pytest.raises(RuntimeError, match=r"fake gave \d tokens for request 0, \d were asked for"):
        run(FakeStreaming(clock, lost=1), 5)


# ---------------------------------------------------------------- loading


def test_a_start_is_timed_cold_and_warm(clock: Clock) -> None:
    server = FakeServer(clock)
    found = start(server, ids=100, longest=30)
    assert (found.load, found.first_token, found.warm_first_token) == pytest.approx((1, 0.039, 0.039))
    assert server.asked[0] != server.asked[1] and found.parts() == {"load": 1, "first call": found.first_token}
    told = Startup("a", 3.0, 0.5, 0.1, grouped({"weights": 1, "memory": 0.5, "warm_up": 0.25, "capture": 1}, 3.0))
    assert told.parts() == {
        "weights": 1, "compile and warm-up": 0.75, "graph capture": 1, "other": 0.25, "first call": 0.5
    }  # fmt: skip
    assert sum(told.parts().values()) == told.to_first_token == told.as_dict()["to_first_token"] == 3.5
    assert lines([told])[0].startswith("a: 3.50 s to the first token (weights 1.00, ")
    assert grouped({}, 3.0) == {}


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    small = {"num_hidden_layers": 1, "hidden_size": 32, "vocab_size": 10_016, "intermediate_size": 32, "head_dim": 16}
    small |= {"num_attention_heads": 2, "num_key_value_heads": 1, "eos_token_id": 1, "bos_token_id": 2}
    monkeypatch.setitem(SHAPES, "tiny", {**SHAPES["qwen3-0.6b"], **small})
    return write_random_model(tmp_path / "tiny", "tiny")


def test_a_real_server_gives_what_is_asked_for(tiny: Path) -> None:
    server = make_server("nvexplore", tiny, dtype="float32", max_model_len=64, memory=0.5)
    assert isinstance(server, Nvexplore) and server.load_seconds > 0
    assert server.generate([[1, 2, 3], [4]], [5, 2]) == 7 and server.num_cached_tokens == 0
    head = list(range(5, 37))
    assert server.generate([[*head, 1]], [1]) == server.generate([[*head, 2]], [1]) == 1
    assert server.num_cached_tokens == 32
    times = server.serve([Arrival(0.0, [1, 2, 3], 6), Arrival(0.001, [4], 3)])
    assert [len(each) for each in times] == [6, 3]
    assert all(each == sorted(each) for each in times) and times[1][0] > 0.001
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
