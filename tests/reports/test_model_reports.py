"""Public bug reports about runners, loaders, configs and text, each as the small input that shows it.

Scheduling alone is in test_engine_reports.py, the notebook side in test_notebook_reports.py. Longer tables of inputs
stand in the unit tests of the part (test_weights.py, test_rotary.py, test_sampler.py ...).
"""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from nvexplore import LLM, SamplingParams
from nvexplore.engine.batch import ScheduledBatch
from nvexplore.model_config import ModelConfig
from nvexplore.runner.model_runner import ModelRunner
from nvexplore.toy import make_toy
from tests.conftest import RunPython

GREEDY = SamplingParams(temperature=0, max_tokens=6)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_toy(tmp_path_factory.mktemp("reports") / "toy", "qwen3")


def toy_llm(path: Path, **options: Any) -> LLM:
    return LLM(path, **{"block_size": 4, "num_kvcache_blocks": 32, **options})


def reference_logits(path: Path, token_ids: list[int]) -> torch.Tensor:
    """transformers' fp32 logits [len(token_ids), vocab], with no cache at all."""
    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor([token_ids]), use_cache=False).logits[0]
    return logits


class Spy:
    """Keeps what the runner was given and what logits it made, step by step."""

    def __init__(self, llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
        self.positions: list[list[int]] = []
        self.key_lengths: list[list[int]] = []
        self.logits: list[torch.Tensor] = []
        runner = llm.runner
        assert runner is not None
        run = runner.run

        def spied(batch: ScheduledBatch) -> list[int]:
            rows = list(zip(batch.starts, batch.counts, strict=True))
            self.positions.append([p for start, count in rows for p in range(start, start + count)])
            self.key_lengths.append([start + count for start, count in rows])
            self.logits.append(runner.forward_logits(batch))
            return run(batch)

        monkeypatch.setattr(runner, "run", spied)


def test_n06_a_chunk_attends_to_what_is_written_only(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """nano-vllm#212: the key length of a chunk was that of the whole prompt, so slots not yet written were read."""
    prompt = list(range(40, 52))
    with toy_llm(toy, max_num_batched_tokens=8) as llm:
        llm.runner.kv_cache.pool.fill_(float("nan"))  # type: ignore[union-attr]
        spy = Spy(llm, monkeypatch)
        seq = llm.add_request(prompt, GREEDY)
        list(llm.steps())
        assert spy.key_lengths[:2] == [[8], [12]] and spy.positions[:2] == [list(range(8)), list(range(8, 12))]
        for logits in spy.logits:
            assert torch.isfinite(logits).all()
        expected = reference_logits(toy, prompt)[-1]
        assert (spy.logits[1][0] - expected).abs().max() < 1e-4
    with toy_llm(toy) as whole:
        assert whole.generate([prompt], GREEDY, use_tqdm=False)[0].token_ids == seq.completion_token_ids


@pytest.mark.parametrize("name", ["Lfm2ForCausalLM", "GPT2LMHeadModel", "Gemma3ForCausalLM", "MambaForCausalLM"])
def test_n18_an_unsupported_architecture_is_refused_by_name(
    toy: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nano-vllm#126: a wholly different architecture fails obscurely, deep in the loader."""
    folder = shutil.copytree(toy, tmp_path / "other")
    config = json.loads((folder / "config.json").read_text())
    config["architectures"], config["model_type"] = [name], name.split("For")[0].lower()
    (folder / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr(torch, "empty", None)  # nothing is allocated on the way to the refusal
    monkeypatch.setattr(torch, "full", None)
    with pytest.raises(ValueError, match=rf"{name}.*LlamaForCausalLM.*Qwen3ForCausalLM"):
        LLM(folder)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_theta": 1e6, "rope_scaling": None},
        {"rope_scaling": {"rope_theta": 1e6, "rope_type": "default"}},
        {"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}},
        {"rope_theta": 1e6},
    ],
    ids=["old", "scaling", "parameters", "bare"],
)
def test_n19_every_spelling_of_default_rope_is_the_same(toy: Path, rope: dict[str, Any]) -> None:
    """nano-vllm#167, #189: a dict of rope parameters is unhashable, or taken for an unsupported scaling."""
    config = json.loads((toy / "config.json").read_text())
    for key in ("rope_theta", "rope_scaling", "rope_parameters"):
        config.pop(key, None)
    parsed = ModelConfig.from_dict({**config, **rope})
    assert parsed.rope_theta == 1e6
    assert parsed.rope == ModelConfig.from_dict({**config, "rope_theta": 1e6}).rope
    hash(parsed.rope)


def test_n19_an_unknown_rope_type_is_refused_by_name(toy: Path) -> None:
    """The sibling: what is not understood must not be ignored."""
    config = json.loads((toy / "config.json").read_text())
    with pytest.raises(ValueError, match="extended"):
        ModelConfig.from_dict({**config, "rope_parameters": {"rope_type": "extended", "rope_theta": 1e4}})


def test_n21_temperature_zero_is_greedy(toy: Path) -> None:
    """nano-vllm PR#249: greedy was refused by an assert."""
    with toy_llm(toy) as llm:
        prompts = ["first prompt", "second", "third one", "4"]
        greedy = llm.generate(prompts, GREEDY, use_tqdm=False)
        mixed = [SamplingParams(temperature=t, max_tokens=6) for t in (0, 0.7, 0, 1e-11)]
        outputs = llm.generate(prompts, mixed, use_tqdm=False)
        for row in (0, 2, 3):
            assert outputs[row].token_ids == greedy[row].token_ids
    for bad in (-0.1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="temperature"):
            SamplingParams(temperature=bad)


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
        assert (logits[0] - expected[length - 1 + i]).abs().max() < 1e-4


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


def test_v15_an_empty_prompt_harms_nobody(toy: Path) -> None:
    """vllm#7283: an empty prompt kills the engine and all other requests."""
    with toy_llm(toy) as llm:
        living = llm.add_request("alive", GREEDY)
        for empty in ("", []):
            with pytest.raises(ValueError, match="prompt is empty"):
                llm.add_request(empty, GREEDY)
            with pytest.raises(ValueError, match="prompt is empty"):
                llm.generate([empty, "ok"], GREEDY, use_tqdm=False)
        list(llm.steps())
        assert living.num_completion_tokens == 6


@pytest.mark.parametrize("order", [1, -1])
def test_v20_the_index_decides_tensor_by_tensor(tmp_path: Path, order: int) -> None:
    """vllm PR#54230: extra safetensors files, or stale copies in another shard, overwrite the right values."""
    path = make_toy(tmp_path / "sharded", "llama", num_shards=2, tied=False)
    with toy_llm(path) as llm:
        expected = llm.generate(["abc"], GREEDY, use_tqdm=False)[0].token_ids
    index = json.loads((path / "model.safetensors.index.json").read_text())
    first, second = sorted(set(index["weight_map"].values()))[::order]
    stale = next(name for name, file in index["weight_map"].items() if file == first)
    tensors = load_file(path / second)
    tensors[stale] = torch.full_like(load_file(path / first)[stale], 9.0)
    save_file(tensors, path / second, metadata={"format": "pt"})
    save_file({n: torch.zeros(3) for n in index["weight_map"]}, path / "consolidated.safetensors")
    with toy_llm(path) as llm:
        assert llm.generate(["abc"], GREEDY, use_tqdm=False)[0].token_ids == expected


@pytest.mark.parametrize(
    ("config_eos", "generation_eos", "expected"),
    [(5, [5, 7], {5, 7}), ([2, 3], None, {2, 3}), (None, 9, {9}), (0, None, {0}), (None, None, set())],
)
def test_v26_every_end_of_sequence_id_counts(
    toy: Path, tmp_path: Path, config_eos: Any, generation_eos: Any, expected: set[int]
) -> None:
    """vllm#4180: only the tokenizer's id stops, though generation_config.json lists several. Id 0 is an id."""
    folder = shutil.copytree(toy, tmp_path / "eos")
    config = {**json.loads((folder / "config.json").read_text()), "eos_token_id": config_eos}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": generation_eos}))
    assert ModelConfig.from_path(folder).eos_token_ids == expected


def test_v26_generation_stops_at_any_of_them_unless_told_not_to(toy: Path, tmp_path: Path) -> None:
    """The sibling, end to end: the third greedy token becomes an end-of-sequence id."""
    with toy_llm(toy) as llm:
        tokens = llm.generate(["hello"], GREEDY, use_tqdm=False)[0].token_ids
    folder = shutil.copytree(toy, tmp_path / "eos")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, tokens[2]]}))
    first = tokens.index(tokens[2])
    with toy_llm(folder) as llm:
        stopped = llm.generate(["hello"], GREEDY, use_tqdm=False)[0]
        assert (stopped.token_ids, stopped.finish_reason) == (tokens[: first + 1], "stop")
        ignoring = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
        assert llm.generate(["hello"], ignoring, use_tqdm=False)[0].token_ids == tokens


def test_v33_a_parameter_that_no_file_fills_is_named(tmp_path: Path) -> None:
    """vllm PR#1490: memory that was never written gives NaN in some runs only."""
    path = make_toy(tmp_path / "hole", "llama")
    tensors = load_file(path / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"model\.layers\.1\.mlp\.(up_proj|gate_up_proj)"):
        LLM(path)


def test_v33_a_nan_weight_is_an_error_not_token_zero(tmp_path: Path) -> None:
    """The sibling: NaN in the file itself shows at load time or in the first step, never as quiet ids."""
    path = make_toy(tmp_path / "nan", "llama")
    tensors = load_file(path / "model.safetensors")
    tensors["model.norm.weight"][0] = float("nan")
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises((ValueError, RuntimeError, ArithmeticError)):
        LLM(path).generate(["abc"], GREEDY, use_tqdm=False)


@pytest.mark.parametrize("stage", ["config", "weights", "pool", "tokenizer"])
def test_j26_a_failed_constructor_says_one_thing(toy: Path, tmp_path: Path, stage: str, run_python: RunPython) -> None:
    """abetlen/llama-cpp-python#2104: a destructor's second error hides the first."""
    folder = shutil.copytree(toy, tmp_path / "broken")
    broken = {"config": "config.json", "weights": "model.safetensors", "tokenizer": "tokenizer.json"}
    if stage in broken:
        (folder / broken[stage]).write_text("{")
    options = ", num_kvcache_blocks=10**9" if stage == "pool" else ""
    code = (
        "from nvexplore import LLM\n"
        f"try: LLM({str(folder)!r}{options})\n"
        "except Exception as error: print(type(error).__name__, error)\n"
        "else: print('nothing')\n"
    )
    out = run_python(f"import sys\nsys.stderr = sys.stdout\n{code}")
    assert "nothing" not in out and "Exception ignored" not in out and "Traceback" not in out, out


def test_j26_a_live_engine_at_exit_is_silent(toy: Path, run_python: RunPython) -> None:
    """Interpreter exit with an engine that nobody closed, half-way through a request."""
    code = (
        "from nvexplore import LLM\n"
        f"llm = LLM({str(toy)!r}, num_kvcache_blocks=16)\n"
        "llm.add_request('abc'); llm.step(); print('end')\n"
    )
    assert run_python(f"import sys\nsys.stderr = sys.stdout\n{code}").strip() == "end"


def test_n30_single_rank_engines_open_no_port(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """vllm#43206: a second engine on the host fails on a port that a single-rank engine never needed."""

    def refuse(*arguments: Any) -> None:
        raise AssertionError("a socket was bound")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    with toy_llm(toy) as one, toy_llm(toy) as two:
        outputs = [llm.generate(["abc"], GREEDY, use_tqdm=False)[0].token_ids for llm in (one, two)]
    assert outputs[0] == outputs[1]


def test_j27_generate_returns_its_own_prompts_in_order(toy: Path) -> None:
    """vllm#1470: outputs of other queued requests come back, or the order is that of a global id."""
    with toy_llm(toy, max_num_seqs=2) as llm:
        mine = llm.add_request("by hand", SamplingParams(temperature=0, max_tokens=30))
        texts = ["one", "a much longer second prompt", "one", "z"]
        outputs = llm.generate(texts, GREEDY, use_tqdm=False)
        assert [o.prompt_token_ids for o in outputs] == [llm.encode(t) for t in texts]
        assert outputs[0].token_ids == outputs[2].token_ids
        list(llm.steps())
        assert mine.num_completion_tokens == 30 and mine.finish_reason == "length"


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
