"""Public bug reports about whole engines: several at once, their birth and end, what a call returns.

The ids are this project's own numbering; each docstring names the public thread it comes from. More in
tests/test_llm.py.
"""

from __future__ import annotations

import gc
import importlib
import pkgutil
import shutil
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest

import nvexplore.engine
from nvexplore import SamplingParams
from nvexplore.models.decoder import CausalLM
from nvexplore.runner.model_runner import ModelRunner
from nvexplore.toy import make_toy
from tests.conftest import RunPython
from tests.fakes import run_to_end, toy_engine
from tests.reports.common import GREEDY, add, is_right, toy_llm


def test_n36_generate_of_nothing_returns_at_once(toy: Path) -> None:
    """MinivLLM#37, #62, #70: generate() never ended. Of no prompts it makes no step, even if others wait."""
    with toy_llm(toy) as llm:
        waiting = llm.add_request("by hand", GREEDY)
        assert llm.generate([], use_tqdm=False) == []
        assert llm.engine.next_step == 0 and waiting.num_completion_tokens == 0


def test_v15_an_empty_prompt_harms_nobody(toy: Path) -> None:
    """vllm#7283: an empty prompt kills the engine and all other requests."""
    with toy_llm(toy) as llm:
        living = llm.add_request("alive", GREEDY)
        nothing: tuple[str, list[int]] = ("", [])
        for empty in nothing:
            with pytest.raises(ValueError, match="prompt is empty"):
                llm.add_request(empty, GREEDY)
            with pytest.raises(ValueError, match="prompt is empty"):
                llm.generate([empty, "ok"], GREEDY, use_tqdm=False)
        list(llm.steps())
        assert living.num_completion_tokens == 6


@pytest.mark.parametrize(("length", "max_tokens"), [(15, 1), (12, 4), (1, 15)])
def test_v17_a_model_runs_to_its_last_position(toy: Path, length: int, max_tokens: int) -> None:
    """vllm#16445, the sibling with a model: max_model_len=16 has the tokens of a roomier one, in four blocks."""
    prompt, params = list(range(60, 60 + length)), SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    with toy_llm(toy, max_model_len=64) as roomy:
        expected = roomy.generate([prompt], params, use_tqdm=False)[0].token_ids
    with toy_llm(toy, max_model_len=16, num_kvcache_blocks=4) as llm:
        assert llm.generate([prompt], params, use_tqdm=False)[0].token_ids == expected
        with pytest.raises(ValueError, match="max_model_len=16"):
            llm.generate([[*prompt, 1]], params, use_tqdm=False)


def test_j09_two_engines_of_one_process(toy: Path, tmp_path: Path) -> None:
    """vllm#21073, #1908, #16543: class-level state was shared, and ``del llm`` freed nothing. The CPU's half."""
    other, ids = make_toy(tmp_path, "llama", seed=3), list(range(10))
    a, b = toy_llm(toy, block_size=4), toy_llm(other, block_size=8)
    alone = [llm.generate([ids], GREEDY, use_tqdm=False)[0].token_ids for llm in (a, b)]
    one, two = a.add_request(ids, GREEDY), b.add_request(ids, GREEDY)
    a.step()
    b.step()
    assert (len(one.block_table), len(two.block_table)) == (3, 2)
    a.step()
    while b.has_unfinished:
        b.step()
        a.step()
    assert [one.completion_token_ids, two.completion_token_ids] == alone != alone[::-1]
    assert a.runner is not None
    gone = [weakref.ref(thing) for thing in (a.engine, a.runner, a.runner.model, a.runner.kv_cache)]
    del a
    gc.collect()
    assert [ref() for ref in gone] == [None] * 4
    assert b.generate([ids], GREEDY, use_tqdm=False)[0].token_ids == alone[1]
    b.close()
    for call in (b.step, lambda: b.generate([ids]), lambda: b.add_request(ids), lambda: next(b.stream(ids))):
        with pytest.raises(RuntimeError, match="this LLM is closed; make a new one"):
            call()


def test_j09_closing_three_times_over_frees_three_times(toy: Path) -> None:
    """vllm#6544, #3281, the sibling: an engine after the other in one kernel, closed or left by ``with``."""
    dead: list[weakref.ref[Any]] = []
    for _ in range(3):
        with toy_llm(toy) as llm:
            llm.generate(["abc"], GREEDY, use_tqdm=False)
            assert llm.runner is not None
            dead += [weakref.ref(llm.runner.model), weakref.ref(llm.runner.kv_cache), weakref.ref(llm.engine)]
        gc.collect()
        assert [ref() for ref in dead if ref() is not None] == []
        assert llm.is_closed  # and somebody still holds the closed LLM


def test_j09_an_engine_changes_no_class_and_no_module() -> None:
    """nano-vllm kept the block size on its Sequence class, so a second engine changed the first one's block count."""
    names = [module.name for module in pkgutil.iter_modules(nvexplore.engine.__path__, "nvexplore.engine.")]
    modules = [importlib.import_module(name) for name in names]

    def state() -> dict[str, Any]:
        found: dict[str, Any] = {}
        for module in modules:
            for name, value in vars(module).items():
                is_data = isinstance(value, dict | list | set) and name != "__builtins__"
                found[f"{module.__name__}.{name}"] = value.copy() if is_data else id(value)
                if isinstance(value, type):
                    # What an abstract class remembers of its subclasses is Python's own affair.
                    attributes = {key: id(held) for key, held in vars(value).items() if not key.startswith("_abc_")}
                    found[f"{module.__name__}.{name}.*"] = attributes
        return found

    states = []
    for number, block_size in enumerate((4, 8, 3)):
        engine = toy_engine(
            16, block_size, max_num_batched_tokens=20 - number, policy=("mixed", "prefill_first")[number % 2]
        )
        seqs = [add(engine, list(range(10)), 4) for _ in range(number + 1)]
        run_to_end(engine)
        assert all(map(is_right, seqs))
        states.append(state())
    assert len(states[0]) > 100 and states[0] == states[1] == states[2]


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


@pytest.mark.parametrize("stage", ["weights", "pool", "warm-up"])
def test_j26_a_failed_constructor_keeps_nothing(toy: Path, tmp_path: Path, stage: str, monkeypatch: Any) -> None:
    """vllm-fork PR#1579, the sibling: what was made before the failure is freed, and the next engine works."""
    folder, made = shutil.copytree(toy, tmp_path / "broken"), []

    class Model(CausalLM):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            made.append(weakref.ref(self))

    def fail(runner: Any) -> None:
        raise ArithmeticError("warm-up")

    monkeypatch.setattr("nvexplore.runner.model_runner.CausalLM", Model)
    options: dict[str, Any] = {"pool": {"num_kvcache_blocks": 10**9}}.get(stage, {})
    if stage == "weights":
        (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-8])
    with monkeypatch.context() as patched:
        if stage == "warm-up":
            patched.setattr(ModelRunner, "_warm_up", fail)
        with pytest.raises((ValueError, RuntimeError, ArithmeticError)):
            toy_llm(folder, **options)
    gc.collect()
    assert [ref() for ref in made] == [None]
    with toy_llm(toy) as llm:
        assert len(llm.generate(["abc"], GREEDY, use_tqdm=False)[0].token_ids) == 6


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


def test_j27_threads_get_their_own_outputs_and_the_hand_added_request_stays(toy: Path) -> None:
    """vllm#1470, the sibling: three calls at once, duplicates among them, beside a request added by hand."""
    texts = [["one", "two"], ["two", "two", "three"], ["one"]]
    got: dict[int, list[list[int]]] = {}
    with toy_llm(toy, max_num_seqs=3) as llm:
        alone = {text: llm.generate([text], GREEDY, use_tqdm=False)[0].token_ids for text in ("one", "two", "three")}
        mine = llm.add_request("by hand", SamplingParams(temperature=0, max_tokens=60, ignore_eos=True))

        def work(number: int) -> None:
            got[number] = [o.token_ids for o in llm.generate(texts[number], GREEDY, use_tqdm=False)]

        threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert got == {number: [alone[text] for text in batch] for number, batch in enumerate(texts)}
        assert list(llm.engine.live) == [mine.request_id]
        list(llm.steps())
        assert mine.finish_reason == "length" and mine.num_completion_tokens == 60
