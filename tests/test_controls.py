"""Penalties, banned tokens and filters against plain numpy, against transformers' processors, and on odd inputs."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from nvexplore import LLM
from nvexplore.engine.batch import ScheduledBatch
from nvexplore.engine.sequence import Sequence
from nvexplore.layers import controls as controls_module
from nvexplore.layers.controls import Controls, apply_controls
from nvexplore.layers.ranking import largest, ranked
from nvexplore.layers.sampler import sample, uniforms_of
from nvexplore.runner.sample_keys import sample_key
from nvexplore.runner.wishes import wishes_of
from nvexplore.sampling_params import SamplingParams
from nvexplore.toy import make_toy
from tests.paged import hugging_face

Row = npt.NDArray[np.float64]
EOS = frozenset({3})


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def controls_of(vocab: int, *rows: tuple[SamplingParams, list[int], list[int]]) -> Controls | None:
    """What rows of (params, prompt, completion) ask for, by the way the runner takes."""
    batch = ScheduledBatch()
    for seq_id, (params, prompt, completion) in enumerate(rows):
        seq = Sequence(seq_id, list(prompt), params, request_id=str(seq_id), eos_token_ids=EOS)
        seq.token_ids += completion
        batch.add(seq, seq.num_tokens, is_prefill=True)
    wishes = wishes_of(batch, vocab)
    return None if wishes is None else wishes.controls


def controlled(logits: Tensor, *rows: tuple[SamplingParams, list[int], list[int]]) -> Tensor:
    controls = controls_of(logits.shape[1], *rows)
    temperatures = torch.tensor([params.temperature for params, _, _ in rows])
    return logits if controls is None else apply_controls(logits, temperatures, controls)


def reference(logits: Row, params: SamplingParams, prompt: list[int], completion: list[int]) -> Row:
    """The module text of SamplingParams, one row and one token at a time, in float64."""
    x = logits.astype(np.float64).copy()
    for token in set(prompt) | set(completion):
        penalty = params.repetition_penalty
        x[token] = x[token] / penalty if x[token] > 0 else x[token] * penalty
    for token in set(completion):
        x[token] -= params.frequency_penalty * completion.count(token) + params.presence_penalty
    if len(completion) < params.min_tokens:
        for token in ({*EOS} if not params.ignore_eos else set()) | set(params.stop_token_ids):
            x[token] = -np.inf
    if params.temperature == 0:
        return x
    weights = np.exp((x - x.max()) / params.temperature)
    order = sorted(range(len(x)), key=lambda token: (-x[token], token))
    kept = order[: params.top_k or len(x)]
    if params.top_p < 1:
        total, before, nucleus = sum(weights[kept]), 0.0, []
        for token in kept:
            if nucleus and before >= params.top_p * total:
                break
            nucleus.append(token)
            before += weights[token]
        kept = nucleus
    kept = [token for token in kept if weights[token] >= params.min_p]
    removed = np.ones(len(x), bool)
    removed[kept] = False
    x[removed] = -np.inf
    return x


def random_params(rng: np.random.Generator) -> SamplingParams:
    def maybe(value: Any, off: Any) -> Any:
        return value if rng.random() < 0.5 else off

    return SamplingParams(
        temperature=rng.choice([0.0, 0.3, 1.0, 1.7]),
        top_k=maybe(int(rng.integers(1, 60)), 0),
        top_p=maybe(float(rng.uniform(0.05, 1)), 1.0),
        min_p=maybe(float(rng.uniform(0, 0.5)), 0.0),
        repetition_penalty=maybe(float(rng.uniform(0.5, 2)), 1.0),
        presence_penalty=maybe(float(rng.uniform(-2, 2)), 0.0),
        frequency_penalty=maybe(float(rng.uniform(-2, 2)), 0.0),
        min_tokens=int(rng.integers(0, 6)),
        stop_token_ids=rng.integers(0, 40, 3),
        ignore_eos=bool(rng.random() < 0.3),
    )


@pytest.mark.parametrize(("few", "at_once"), [(1024, 1 << 24), (4, 120), (1024, 1)])
@pytest.mark.parametrize("seed", range(40))
def test_random_rows_equal_the_reference(seed: int, few: int, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where top_p's set does not fit into the few likeliest tokens that it looks at first; few rows at a time."""
    monkeypatch.setattr(controls_module, "_FEW", few)
    monkeypatch.setattr(controls_module, "_AT_ONCE", at_once)
    rng = np.random.default_rng(seed)
    rows = [
        (random_params(rng), rng.integers(0, 40, 5).tolist(), rng.integers(0, 40, rng.integers(0, 9)).tolist())
        for _ in range(8)
    ]
    logits = torch.from_numpy(rng.standard_normal((8, 40)) * 2).float()
    logits[::2] = logits[::2].round()  # many ties
    kept = logits.clone()
    actual = controlled(logits, *rows)
    assert torch.equal(logits, kept)
    for row, (params, prompt, completion) in enumerate(rows):
        expected = reference(logits[row].numpy(), params, prompt, completion)
        assert np.array_equal(np.isinf(actual[row].numpy()), np.isinf(expected)), params
        np.testing.assert_allclose(actual[row].numpy(), expected, rtol=1e-5, atol=1e-5)


def test_each_row_is_what_it_is_alone() -> None:
    rng = np.random.default_rng(5)
    rows = [(random_params(rng), rng.integers(0, 99, 5).tolist(), rng.integers(0, 99, 7).tolist()) for _ in range(16)]
    rows[3] = rows[9] = (SamplingParams(temperature=0.7), [1], [2])
    logits = torch.from_numpy(rng.standard_normal((16, 99))).float()
    together = controlled(logits, *rows)
    assert torch.equal(together[3], logits[3]) and torch.equal(together[9], logits[9])
    for row in range(16):
        assert torch.equal(together[row : row + 1], controlled(logits[row : row + 1], rows[row]))
    backwards = controlled(logits.flip(0), *rows[::-1])
    assert torch.equal(backwards.flip(0), together)


class Large(TorchDispatchMode):
    """Adds up the bytes of tensors made with more than ``most`` values."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most, self.made = most, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for made in result if isinstance(result, tuple | list) else (result,):
            is_new = isinstance(made, Tensor) and not func.is_view and all(made is not arg for arg in args)
            self.made += made.nbytes if is_new and made.numel() > self.most else 0
        return result


def test_filters_take_memory_for_some_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """512 rows of 151,936 would take 4 GB, which the KV pool may not have left."""
    monkeypatch.setattr(controls_module, "_AT_ONCE", 5000)
    logits = torch.randn(32, 1000)
    params = SamplingParams(temperature=0.9, top_k=700, top_p=0.999, min_p=1e-6, repetition_penalty=1.1)
    with Large(5000) as seen:
        controlled(logits, *[(params, [1, 2], [3])] * 32)
    assert seen.made == logits.nbytes  # what is returned


class TestAgainstTransformers:
    """Where transformers has the processor: on rows without ties, for which its rule differs."""

    logits = torch.randn(4, 500, generator=torch.Generator().manual_seed(1)) * 3
    ids = torch.randint(0, 500, (4, 30), generator=torch.Generator().manual_seed(2))

    def ours(self, params: SamplingParams, completion_from: int = 30) -> Tensor:
        rows = [(params, row[:completion_from], row[completion_from:]) for row in self.ids.tolist()]
        return controlled(self.logits, *rows)

    @pytest.mark.parametrize("k", [1, 7, 499, 500])
    def test_top_k(self, k: int) -> None:
        from transformers import TopKLogitsWarper

        theirs = TopKLogitsWarper(k)(self.ids, self.logits)
        assert torch.equal(self.ours(SamplingParams(top_k=k)), theirs)

    @pytest.mark.parametrize("p", [0.01, 0.3, 0.9, 0.999])
    def test_top_p(self, p: float) -> None:
        from transformers import TopPLogitsWarper

        assert torch.equal(self.ours(SamplingParams(top_p=p)), TopPLogitsWarper(p)(self.ids, self.logits.clone()))

    @pytest.mark.parametrize("p", [0.001, 0.1, 0.9])
    def test_min_p(self, p: float) -> None:
        from transformers import MinPLogitsWarper

        assert torch.equal(self.ours(SamplingParams(min_p=p)), MinPLogitsWarper(p)(self.ids, self.logits.clone()))

    @pytest.mark.parametrize("penalty", [0.5, 1.3])
    def test_repetition_penalty_counts_the_prompt(self, penalty: float) -> None:
        from transformers import RepetitionPenaltyLogitsProcessor

        theirs = RepetitionPenaltyLogitsProcessor(penalty)(self.ids, self.logits.clone())
        assert torch.equal(self.ours(SamplingParams(repetition_penalty=penalty), 20), theirs)

    @pytest.mark.parametrize("min_tokens", [9, 10, 11])
    def test_min_tokens(self, min_tokens: int) -> None:
        from transformers import MinNewTokensLengthLogitsProcessor

        theirs = MinNewTokensLengthLogitsProcessor(20, min_tokens, [3])(self.ids, self.logits.clone())
        assert torch.equal(self.ours(SamplingParams(min_tokens=min_tokens), 20), theirs)

    def test_temperature_top_k_then_top_p_renormalised(self) -> None:
        from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

        warpers = LogitsProcessorList([TemperatureLogitsWarper(0.7), TopKLogitsWarper(20), TopPLogitsWarper(0.8)])
        theirs = warpers(self.ids, self.logits)
        ours = self.ours(SamplingParams(temperature=0.7, top_k=20, top_p=0.8))
        assert torch.equal(ours.isinf(), theirs.isinf())
        torch.testing.assert_close((ours / 0.7).softmax(-1), theirs.softmax(-1))


def survivors(probabilities: list[float], **params: Any) -> set[int]:
    row = torch.tensor([probabilities]).log()
    return set(controlled(row, (SamplingParams(**params), [0], []))[0].isfinite().nonzero().flatten().tolist())


def test_the_likeliest_token_survives_every_filter() -> None:
    for top_k, top_p, min_p in itertools.product((1, 2), (1e-9, 0.5), (0.0, 1.0)):
        assert 1 in survivors([0.3, 0.4, 0.3], top_k=top_k, top_p=top_p, min_p=min_p)


def test_min_p_keeps_equals_of_the_largest() -> None:
    assert survivors([0.4, 0.4, 0.2], min_p=1.0) == {0, 1}
    assert survivors([0.4, 0.4, 0.2], min_p=0.49) == {0, 1, 2}
    assert survivors([0.4, 0.4, 0.2], min_p=0.51) == {0, 1}


def test_a_top_p_next_to_one_keeps_what_has_probability() -> None:
    row = torch.zeros(1, 5000)
    kept = controlled(row, (SamplingParams(top_p=math.nextafter(1, 0)), [0], []))
    assert kept.isfinite().sum() >= 4999  # the full sum may be reached one early by rounding, no more
    few = controlled(torch.zeros(1, 5000), (SamplingParams(top_p=0.5), [0], []))[0].isfinite()
    assert few.nonzero().flatten().tolist() == list(range(2500))  # more than the few looked at first; ties by id


def test_a_filter_that_removes_nothing_changes_no_draw() -> None:
    logits = torch.randn(64, 300, generator=torch.Generator().manual_seed(0))
    uniforms = uniforms_of(torch.tensor([sample_key(0, 0, i) for i in range(64)]))
    temperatures = torch.full((64,), 0.9)
    rows = [(SamplingParams(temperature=0.9, top_k=300, min_p=1e-30), [0], [])] * 64
    with_filters = sample(logits, temperatures, uniforms, controls_of(300, *rows))
    assert torch.equal(with_filters, sample(logits, temperatures, uniforms))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(top_k=2),
        SamplingParams(top_p=0.5),
        SamplingParams(min_p=0.5),
        SamplingParams(repetition_penalty=2.0, temperature=0),
        SamplingParams(min_tokens=3, temperature=0),
    ],
    ids=["top_k", "top_p", "min_p", "penalty", "banned"],
)
def test_v23_a_broken_row_stays_broken_and_alone(params: SamplingParams, bad: float) -> None:
    """The bad value stands at id 3, which the last one bans: it must show all the same."""
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(3))
    rows = [(params, [1], [3, 2])] * 3
    temperatures, uniforms = torch.full((3,), params.temperature), torch.full((3,), 0.4, dtype=torch.float64)
    healthy = sample(logits, temperatures, uniforms, controls_of(50, *rows)).tolist()
    logits[1, 3] = bad
    marked = sample(logits, temperatures, uniforms, controls_of(50, *rows)).tolist()
    assert marked == [healthy[0], -1, healthy[2]] and -1 not in healthy


def test_a_row_in_which_all_is_banned_is_marked() -> None:
    logits = torch.full((2, 5), -math.inf)
    logits[:, 3] = 1.0
    rows = [(SamplingParams(min_tokens=n, top_k=2, top_p=0.5, min_p=0.1), [1], []) for n in (1, 0)]
    ids = sample(logits, torch.ones(2), torch.zeros(2, dtype=torch.float64), controls_of(5, *rows))
    assert ids.tolist() == [-1, 3]


def test_ids_beyond_the_vocabulary_are_not_banned() -> None:
    controls = controls_of(3, (SamplingParams(min_tokens=1, stop_token_ids=[1]), [1], []))  # end-of-sequence is 3
    assert controls is not None and controls.banned_ids.tolist() == [1]


def test_largest_and_ranked_take_the_first_of_equals() -> None:
    rows = torch.tensor([[1.0, 3, 3, 0, 3, -math.inf], [2.0, 2, 2, 2, 2, 2]])
    assert largest(rows, torch.tensor([2, 5])).int().tolist() == [[0, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 0]]
    assert ranked(rows, 4).tolist() == [[1, 2, 4, 0], [0, 1, 2, 3]]
    assert ranked(rows, 6).tolist() == [[1, 2, 4, 0, 3, 5], [0, 1, 2, 3, 4, 5]]


def test_controls_move_as_one() -> None:
    controls = controls_of(9, (SamplingParams(top_k=2, frequency_penalty=0.1, min_tokens=4), [1], [2]))
    assert controls is not None
    moved = controls.to(torch.device("meta"))
    assert all(getattr(moved, name).device.type == "meta" for name in Controls.__slots__)


def test_greedy_generation_with_penalty_and_min_tokens_equals_transformers(tmp_path: Path) -> None:
    """The whole way, through chunks, prefix hits and decode steps."""
    path = make_toy(tmp_path, "qwen3", seed=4)
    ids = list(b"once upon a time, upon a time")
    theirs = hugging_face(path).generate(
        torch.tensor([ids]), do_sample=False, repetition_penalty=1.3, min_new_tokens=6, max_new_tokens=24
    )
    params = SamplingParams(temperature=0, repetition_penalty=1.3, min_tokens=6, max_tokens=24)
    with LLM(path, block_size=4, num_kvcache_blocks=64, max_num_batched_tokens=7) as llm:
        for _ in range(2):
            outputs = llm.generate([ids, ids[:11]], [params, SamplingParams(temperature=0)], use_tqdm=False)
            assert outputs[0].token_ids == theirs[0, len(ids) :].tolist()
