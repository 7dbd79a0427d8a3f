"""LLM: text in, text out, one step at a time, several at once, and what it refuses."""

from __future__ import annotations

import gc
import json
import threading
import weakref
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from nvexplore import LLM, SamplingParams, Sequence
from nvexplore.engine.policy import Policy
from nvexplore.progress import progress_bar
from nvexplore.toy import make_toy
from tests.conftest import RunPython

GREEDY = SamplingParams(temperature=0, max_tokens=8)


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_toy(tmp_path_factory.mktemp("toys") / "qwen3", "qwen3")


@pytest.fixture(scope="module")
def llm(toy: Path) -> LLM:
    torch.set_num_threads(1)
    return LLM(toy, num_kvcache_blocks=64, max_num_batched_tokens=32)


def test_generate_keeps_order_and_duplicates(llm: LLM) -> None:
    outputs = llm.generate(["abc", "xyz xyz xyz", "abc"], GREEDY, use_tqdm=False)
    assert [o.prompt_token_ids for o in outputs] == [llm.encode(t) for t in ("abc", "xyz xyz xyz", "abc")]
    assert outputs[0].token_ids == outputs[2].token_ids != outputs[1].token_ids
    assert [o.text for o in outputs] == [llm.decode(o.token_ids) for o in outputs]
    assert {o.finish_reason for o in outputs} <= {"stop", "length"}


def test_generate_of_nothing_is_nothing(llm: LLM) -> None:
    assert llm.generate([], use_tqdm=False) == []


def test_one_prompt_may_stand_alone(llm: LLM) -> None:
    (text,) = llm.generate("abc", GREEDY, use_tqdm=False)
    (ids,) = llm.generate(llm.encode("abc"), GREEDY, use_tqdm=False)
    assert text.token_ids == ids.token_ids and len(ids.token_ids) == 8


def test_each_prompt_may_have_its_own_params(llm: LLM) -> None:
    params = [SamplingParams(temperature=0, max_tokens=n) for n in (1, 5)]
    assert [len(o.token_ids) for o in llm.generate(["ab", "cd"], params, use_tqdm=False)] == [1, 5]
    with pytest.raises(ValueError, match="1 given for 2 prompts"):
        llm.generate(["ab", "cd"], params[:1], use_tqdm=False)


@pytest.mark.parametrize("bad", ["", [], [-1], [10_000], [1.5], [True]], ids=repr)
def test_a_bad_prompt_is_refused_before_any_is_queued(llm: LLM, bad: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        llm.generate(["fine", bad], GREEDY, use_tqdm=False)  # type: ignore[list-item]
    assert not llm.has_unfinished
    assert len(llm.generate(["fine"], GREEDY, use_tqdm=False)) == 1


def test_steps_yield_one_record_each(llm: LLM) -> None:
    seq = llm.add_request("hello", GREEDY, request_id="mine")
    planned = llm.plan()
    records = list(llm.steps())
    assert planned.count == records[0].planned.count == [5]
    assert [t for r in records for t in r.committed.token_id] == seq.completion_token_ids
    assert records[0].before.added.request_id == ["mine"]
    assert llm.step().is_empty


def test_generate_leaves_requests_of_others_alone(llm: LLM) -> None:
    mine = llm.add_request("by hand", SamplingParams(temperature=0, max_tokens=40))
    (output,) = llm.generate(["other"], GREEDY, use_tqdm=False)
    assert output.prompt_token_ids == llm.encode("other")
    assert not mine.is_finished and mine.num_completion_tokens > 0
    assert llm.abort(mine.request_id)
    assert mine.finish_reason == "abort"


def test_generate_in_two_threads(llm: LLM) -> None:
    alone = {text: llm.generate([text], GREEDY, use_tqdm=False)[0].token_ids for text in ("one", "two")}
    got: dict[str, list[int]] = {}

    def work(text: str) -> None:
        got[text] = llm.generate([text], GREEDY, use_tqdm=False)[0].token_ids

    threads = [threading.Thread(target=work, args=(text,)) for text in alone]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert got == alone


def test_interrupted_generate_ends_its_own_requests(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = llm.add_request("kept", GREEDY)
    run, calls = llm.runner.run, 0  # type: ignore[union-attr]

    def interrupted(batch: object) -> list[int]:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return run(batch)  # type: ignore[arg-type]

    monkeypatch.setattr(llm.runner, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["a", "b"], GREEDY, use_tqdm=False)
    assert list(llm.engine.live) == [kept.request_id]
    list(llm.steps())
    assert kept.completion_token_ids == llm.generate(["kept"], GREEDY, use_tqdm=False)[0].token_ids
    assert len(llm.engine.blocks.free) == 64


def test_chat_uses_the_template(llm: LLM) -> None:
    messages = [{"role": "user", "content": "hi"}]
    prompt = llm.chat_prompt(messages)
    output = llm.chat(messages, GREEDY)
    assert output.prompt_token_ids == prompt and "hi" in llm.tokenizer.decode(prompt)
    template, llm.tokenizer.chat_template = llm.tokenizer.chat_template, None
    try:
        with pytest.raises(ValueError, match="no chat template"):
            llm.chat(messages)
    finally:
        llm.tokenizer.chat_template = template


def test_two_engines_at_once(toy: Path, tmp_path: Path) -> None:
    other = make_toy(tmp_path / "llama", "llama", seed=3)
    with LLM(toy, block_size=4, num_kvcache_blocks=40) as a, LLM(other, block_size=8, num_kvcache_blocks=20) as b:
        alone = [x.generate(["same prompt"], GREEDY, use_tqdm=False)[0].token_ids for x in (a, b)]
        assert alone[0] != alone[1]
        one, two = a.add_request("same prompt", GREEDY), b.add_request("same prompt", GREEDY)
        while a.has_unfinished or b.has_unfinished:
            a.step()
            b.step()
        assert [one.completion_token_ids, two.completion_token_ids] == alone


def test_close_frees_and_refuses(toy: Path) -> None:
    llm = LLM(toy, num_kvcache_blocks=8)
    pool = weakref.ref(llm.runner.kv_cache)  # type: ignore[union-attr]
    llm.close()
    llm.close()
    gc.collect()
    assert llm.is_closed and pool() is None
    for call in (llm.step, llm.plan, lambda: llm.generate(["x"]), lambda: llm.add_request("x")):
        with pytest.raises(RuntimeError, match="this LLM is closed"):
            call()


def test_torch_settings_are_left_alone(toy: Path) -> None:
    before = (torch.get_default_dtype(), torch.get_num_threads(), torch.is_inference_mode_enabled())
    state = torch.get_rng_state()
    with LLM(toy, dtype="bfloat16", num_kvcache_blocks=8) as llm:
        llm.generate(["x"], SamplingParams(max_tokens=3), use_tqdm=False)
    assert before == (torch.get_default_dtype(), torch.get_num_threads(), torch.is_inference_mode_enabled())
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"blocksize": 4}, TypeError, "unknown option 'blocksize'; did you mean 'block_size'"),
        ({"xyz": 4}, TypeError, "unknown option 'xyz'; the options are max_num_seqs"),
        ({"block_size": 0}, ValueError, "block_size=0: input should be greater than or equal to 1"),
        ({"max_num_seqs": "3"}, ValueError, "max_num_seqs='3': input should be a valid integer"),
        ({"max_model_len": 10**9}, ValueError, "max_model_len=1000000000: must be at most"),
        ({"policy": "fair"}, ValueError, "policy='fair': must be one of 'prefill_first', 'mixed'"),
        ({"policy": 3}, ValueError, "policy=3"),
        ({"dtype": "int8"}, ValueError, "dtype='int8'"),
    ],
)
def test_bad_options(toy: Path, options: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message.replace("(", r"\(")):
        LLM(toy, **options)


@pytest.mark.parametrize("model", ["/no/such/folder", "./nowhere", "a/b/c", "plain-name", ""])
def test_unknown_model(model: str) -> None:
    with pytest.raises((FileNotFoundError, ValueError)):
        LLM(model)


def test_hub_name_without_network_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError, match="the Hub did not give it"):
        LLM("nvexplore-tests/no-such-model")


def test_folder_without_config(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no config\.json"):
        LLM(tmp_path)


def test_progress_bar_counts_tokens_and_closes(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate(["x"], GREEDY, use_tqdm=False)
    assert capsys.readouterr().err == ""
    llm.generate(["x"], GREEDY)
    assert "8/8" in capsys.readouterr().err


def test_llm_without_torch_says_what_to_install(run_python: RunPython) -> None:
    out = run_python(
        "import sys; sys.modules['torch'] = None\n"
        "import nvexplore\n"
        "try: nvexplore.LLM('demo')\n"
        "except ImportError as error: print(error)\n"
    )
    assert 'pip install "nvexplore[run]"' in out


class Closed(Policy):
    """Lets nobody in."""

    name = "closed"

    def admission_order(self, waiting: SequenceOf[Sequence]) -> Iterable[Sequence]:
        return ()


def test_a_policy_that_admits_nobody_is_named(toy: Path) -> None:
    """N36: an engine that can do nothing must not be asked again and again."""
    with LLM(toy, policy=Closed(), num_kvcache_blocks=8, max_model_len=64) as llm:
        for run in (lambda: llm.generate(["ab", "c"], GREEDY, use_tqdm=False), lambda: list(llm.stream("ab", GREEDY))):
            with pytest.raises(RuntimeError, match=r"policy 'closed' admits none of [12] unfinished requests"):
                run()
            assert not llm.has_unfinished
        llm.add_request("ab", GREEDY)
        assert llm.step().is_empty  # asked for by hand, it tells that nothing was done
        with pytest.raises(RuntimeError, match="policy 'closed' admits none of 1 unfinished"):
            list(llm.steps())


def test_a_bar_ends_full_though_completions_end_early(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """J19: a notebook shows a bar that is closed before its end in red."""
    bars = []

    def kept(*args: Any, **options: Any) -> Any:
        bars.append(progress_bar(*args, **options))
        return bars[-1]

    monkeypatch.setattr("nvexplore.generation.progress_bar", kept)
    with LLM(toy, num_kvcache_blocks=8, max_model_len=64) as llm:
        (free,) = llm.generate(["ab"], GREEDY, use_tqdm=False)
        stop = free.token_ids[2]
        came = free.token_ids.index(stop) + 1
        params = SamplingParams(temperature=0, max_tokens=8, stop_token_ids=[stop])
        (output,) = llm.generate(["ab"], params, use_tqdm=True)
    assert output.finish_reason == "stop"
    assert (bars[-1].n, bars[-1].total) == (came, came)


def test_v26_the_tokenizers_own_end_of_sequence_ends_too(tmp_path: Path) -> None:
    """vllm#4180: a fine-tune may name its end of sequence in the tokenizer alone."""
    path = make_toy(tmp_path)
    with LLM(path, num_kvcache_blocks=8, max_model_len=64) as llm:
        (free,) = llm.generate([[1, 2, 3]], GREEDY, use_tqdm=False)
        stop = free.token_ids[3]
        assert stop not in llm.model_config.eos_token_ids
    config = json.loads((path / "tokenizer_config.json").read_text(encoding="utf-8"))
    tokenizer = AutoTokenizer.from_pretrained(path)
    config["eos_token"] = tokenizer.convert_ids_to_tokens(stop)
    (path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    with LLM(path, num_kvcache_blocks=8, max_model_len=64) as llm:
        assert llm.tokenizer.eos_token_id == stop
        (output,) = llm.generate([[1, 2, 3]], GREEDY, use_tqdm=False)
        assert (output.finish_reason, output.token_ids[-1]) == ("stop", stop)
        params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
        (output,) = llm.generate([[1, 2, 3]], params, use_tqdm=False)
        assert output.token_ids == free.token_ids
