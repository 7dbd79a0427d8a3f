"""LLM.stream, n completions and stop strings over the toy model: the same text as generate, step by step."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from nvexplore import LLM, SamplingParams, TextDelta
from nvexplore.toy import make_toy

WARM = SamplingParams(temperature=1.0, seed=3, max_tokens=40)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    torch.set_num_threads(1)
    path = make_toy(tmp_path_factory.mktemp("stream") / "toy", "qwen3")
    with LLM(path, num_kvcache_blocks=64, max_num_batched_tokens=32) as llm:
        yield llm


@pytest.fixture(autouse=True)
def nothing_is_left(llm: LLM) -> Iterator[None]:
    yield
    assert not llm.has_unfinished and len(llm.engine.blocks.free) == 64


def joined(deltas: list[TextDelta], index: int = 0) -> tuple[str, list[int]]:
    mine = [delta for delta in deltas if delta.index == index]
    assert [delta.finish_reason is None for delta in mine] == [True] * (len(mine) - 1) + [False]
    return "".join(delta.text for delta in mine), [t for delta in mine for t in delta.token_ids]


@pytest.mark.parametrize("seed", range(8))
def test_joined_deltas_are_what_generate_gives(llm: LLM, seed: int) -> None:
    """Half of a random toy's tokens are no whole characters."""
    params = SamplingParams(temperature=2.0, seed=seed, max_tokens=60)
    (whole,) = llm.generate(["abc"], params, use_tqdm=False)
    deltas = list(llm.stream("abc", params))
    assert joined(deltas) == (whole.text, whole.token_ids)
    assert whole.text == llm.decode(whole.token_ids)
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == (whole.finish_reason, whole.stop_reason)
    assert all(delta.text for delta in deltas[:-1])
    assert len(deltas) > 10


def test_a_stop_string_across_tokens(llm: LLM) -> None:
    """Every three characters that the model says, one after the other, as the stop string."""
    (free,) = llm.generate(["abc"], WARM, use_tqdm=False)
    text = free.text
    for start in range(len(text) - 3):
        stop = text[start : start + 3]
        params = SamplingParams(temperature=1.0, seed=3, max_tokens=40, stop=[stop, "never said"])
        (output,) = llm.generate(["abc"], params, use_tqdm=False)
        assert output.text == text[: text.index(stop)]
        assert (output.finish_reason, output.stop_reason) == ("stop", stop)
        assert output.token_ids == free.token_ids[: len(output.token_ids)]
        assert stop in llm.decode(output.token_ids)
        if "\N{REPLACEMENT CHARACTER}" not in stop:  # which is sure only when something else follows
            assert stop not in llm.decode(output.token_ids[:-1])
        if start % 5 == 0:
            assert joined(list(llm.stream("abc", params))) == (output.text, output.token_ids)


def test_a_stop_token_is_not_shown(llm: LLM) -> None:
    (free,) = llm.generate(["abc"], WARM, use_tqdm=False)
    token_id = free.token_ids[5]
    params = SamplingParams(temperature=1.0, seed=3, max_tokens=40, stop_token_ids=[token_id])
    (output,) = llm.generate(["abc"], params, use_tqdm=False)
    assert output.token_ids[-1] == output.stop_reason == token_id
    assert output.text == llm.decode(output.token_ids[:-1])
    assert joined(list(llm.stream("abc", params))) == (output.text, output.token_ids)


def test_n_completions(llm: LLM) -> None:
    params = SamplingParams(temperature=1.5, seed=7, max_tokens=20, n=3, stop="e")
    (output,) = llm.generate(["abc"], params, use_tqdm=False)
    assert output.outputs == (output, *output.others) and len(output.others) == 2
    assert len({tuple(each.token_ids) for each in output.outputs}) == 3
    assert [each.request_id for each in output.outputs] == [output.request_id + end for end in ("", "#1", "#2")]
    deltas = list(llm.stream("abc", params))
    for index, each in enumerate(output.outputs):
        assert joined(deltas, index) == (each.text, each.token_ids)
    (single,) = llm.generate(["abc"], SamplingParams(temperature=1.5, seed=7, max_tokens=20, stop="e"), use_tqdm=False)
    assert single.token_ids == output.token_ids and single.others == ()


def test_logprobs_come_with_their_tokens(llm: LLM) -> None:
    params = SamplingParams(temperature=2.0, seed=1, max_tokens=20, logprobs=1)
    deltas = list(llm.stream("abc", params))
    for delta in deltas:
        assert [token_id in each for token_id, each in zip(delta.token_ids, delta.logprobs or (), strict=True)]
    (output,) = llm.generate(["abc"], params, use_tqdm=False)
    assert [each for delta in deltas for each in delta.logprobs or ()] == output.logprobs


@pytest.mark.parametrize("how", ["close", "del"])
def test_closing_early_aborts(llm: LLM, how: str) -> None:
    stream = llm.stream("abc", SamplingParams(temperature=1.0, max_tokens=40, ignore_eos=True, n=2))
    next(stream)
    assert len(llm.engine.live) == 2
    if how == "close":
        stream.close()  # type: ignore[attr-defined]
    del stream
    gc.collect()
    assert not llm.has_unfinished


def test_an_interrupt_aborts(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = llm.stream("abc", SamplingParams(temperature=0, max_tokens=40, ignore_eos=True))
    next(stream)

    def interrupted(batch: object) -> list[int]:
        raise KeyboardInterrupt

    monkeypatch.setattr(llm.runner, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(stream)


def test_nothing_is_queued_before_it_is_asked_for(llm: LLM) -> None:
    for bad in ("", [], [-1], [10_000]):
        with pytest.raises(ValueError, match=r"at least 1 token|must be at"):
            llm.stream(bad)
    stream = llm.stream("abc", WARM)
    assert not llm.has_unfinished
    del stream


def test_two_streams_and_a_request_by_hand_go_on_together(llm: LLM) -> None:
    alone = [joined(list(llm.stream(text, WARM))) for text in ("one", "two")]
    by_hand = llm.add_request("three", WARM)
    streams = [llm.stream(text, WARM) for text in ("one", "two")]
    deltas: list[list[TextDelta]] = [[], []]
    while streams[0] is not None or streams[1] is not None:
        for i, stream in enumerate(streams):
            delta = next(stream, None) if stream is not None else None
            if delta is None:
                streams[i] = None  # type: ignore[call-overload]
            else:
                deltas[i].append(delta)
    assert [joined(each) for each in deltas] == alone
    assert by_hand.num_completion_tokens > 10
    llm.abort(by_hand.request_id)
    llm.step()


def test_one_aborted_from_outside_ends_with_a_last_delta(llm: LLM) -> None:
    stream = llm.stream("abc", SamplingParams(temperature=1.0, seed=3, max_tokens=40, ignore_eos=True))
    first = next(stream)
    llm.abort(first.request_id)
    (last,) = stream
    assert last.finish_reason == "abort" and first.finish_reason is None
    llm.step()


def test_every_space_the_model_wrote_is_shown(llm: LLM) -> None:
    """Some tokenizers clean up spaces before punctuation unless told not to."""
    assert llm.decode(llm.encode("a . b , c 's")) == "a . b , c 's"


def test_closing_the_llm_ends_a_stream(tmp_path: Path) -> None:
    with LLM(make_toy(tmp_path, "llama"), num_kvcache_blocks=8) as llm:
        stream = llm.stream("abc", SamplingParams(temperature=0, max_tokens=40, ignore_eos=True))
        next(stream)
    with pytest.raises(RuntimeError, match="this LLM is closed"):
        list(stream)
