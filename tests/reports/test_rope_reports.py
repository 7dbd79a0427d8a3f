"""Public bug reports about rotary embeddings, each as the small input that shows it.

The ids are this project's own numbering; each docstring names the public thread it comes from. Each type is compared
with transformers in tests/test_rotary.py.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from nvexplore.layers.rotary import RotaryTable, inverse_frequencies
from nvexplore.model_config import ModelConfig
from nvexplore.rope_config import RopeConfig
from nvexplore.toy import make_toy
from tests.paged import Paged, difference, token_ids

CPU = torch.device("cpu")


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
    tables = [RotaryTable(each, 16, 8, CPU).cos_sin for each in (parsed.rope, RopeConfig(theta=1e6))]
    assert len({parsed.rope, RopeConfig(theta=1e6)}) == 1 and torch.equal(*tables)
    assert not torch.equal(tables[0], RotaryTable(RopeConfig(theta=1e4), 16, 8, CPU).cos_sin)


def test_n19_an_unknown_rope_type_is_refused_by_name(toy: Path) -> None:
    """The sibling: what is not understood must not be ignored."""
    config = json.loads((toy / "config.json").read_text())
    with pytest.raises(ValueError, match="extended"):
        ModelConfig.from_dict({**config, "rope_parameters": {"rope_type": "extended", "rope_theta": 1e4}})


def test_n19_a_dict_with_lists_inside_is_read_or_refused_but_never_hashed_as_it_is() -> None:
    """vllm PR#51268, the sibling: longrope's lists become tuples; unknown nested dicts are refused by name."""
    lists = {"short_factor": [1.0, 1.5], "long_factor": [2.0, 4.0], "original_max_position_embeddings": 64}
    config = {"head_dim": 4, "max_position_embeddings": 128, "rope_parameters": {"rope_type": "longrope", **lists}}
    first, second = RopeConfig.from_dict(config), RopeConfig.from_dict(json.loads(json.dumps(config)))
    assert len({first, second}) == 1
    nested = {"full_attention": {"rope_type": "default"}, "sliding_attention": {"rope_type": "linear", "factor": 8.0}}
    with pytest.raises(ValueError, match="full_attention, sliding_attention"):
        RopeConfig.from_dict({"rope_parameters": nested})


def test_n19_two_models_do_not_share_a_table() -> None:
    """vllm PR#1867, the sibling: a cache that ignores a part of its key gives a model the angles of another."""
    stretched = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
    configs = [
        RopeConfig.from_dict({"rope_parameters": p}) for p in ({"rope_theta": 1e4}, {"rope_theta": 1e6}, stretched)
    ]
    tables = [RotaryTable(config, 16, 8, CPU).cos_sin for config in configs]
    assert not any(torch.equal(a, b) for a, b in zip(tables, [*tables[1:], tables[0]], strict=True))


@pytest.mark.parametrize("key", ["rope_type", "type"])
def test_v16_llama3_follows_the_published_formula(key: str) -> None:
    """vllm#9481, meta-llama/llama3#299: low frequencies / 8, high ones kept, a ramp between; either spelling."""
    rope = {key: "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope["original_max_position_embeddings"] = 8192
    found = inverse_frequencies(RopeConfig.from_dict({"rope_theta": 5e5, "rope_scaling": rope}), 128).double()
    for pair, frequency in enumerate(found.tolist()):
        plain = 5e5 ** (-pair / 64)
        wave = 2 * math.pi / plain
        kept = min(1.0, max(0.0, (8192 / wave - 1) / (4 - 1)))
        assert frequency == pytest.approx(kept * plain + (1 - kept) * plain / 8, rel=1e-5)


@pytest.mark.parametrize("key", ["rope_type", "type"])
@pytest.mark.parametrize("factor", [2.0, 3.5])
def test_v16_linear_divides_every_frequency(key: str, factor: float) -> None:
    """vllm#6689: linear with factor 2, in either spelling: every frequency is divided by it, and none is forgotten."""
    rope = RopeConfig.from_dict({"rope_theta": 1e4, "rope_scaling": {key: "linear", "factor": factor}})
    plain = inverse_frequencies(RopeConfig(theta=1e4), 64)
    torch.testing.assert_close(inverse_frequencies(rope, 64), plain / factor, rtol=1e-6, atol=0)
    for name in ("extended", "llama4", "Linear", ""):
        with pytest.raises(ValueError, match=f"'{name}'"):
            RopeConfig.from_dict({"rope_scaling": {key: name, "factor": factor}})


def test_v16_no_type_is_ignored(tmp_path: Path) -> None:
    """vllm#6689, the sibling: each type that is accepted changes the logits, or says from which length on it would."""
    ids, seen = token_ids(90), []
    factors = {"short_factor": [1.5] * 8, "long_factor": [2.0] * 8}
    low_high = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    for rope in (
        {"rope_type": "default"},
        {"rope_type": "linear", "factor": 2.0},
        {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64, **low_high},
        {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64},
        {"rope_type": "longrope", "original_max_position_embeddings": 96, **factors},
    ):
        path = make_toy(tmp_path / str(rope["rope_type"]), "llama", rope_parameters={"rope_theta": 1e4, **rope})
        paged = Paged(path, max_model_len=96)
        seen.append(paged.logits((paged.seq(ids), 90))[0])
    assert all(difference(a, b) > 0.1 for i, a in enumerate(seen) for b in seen[:i])
    for rope_type, keys in (("longrope", {"original_max_position_embeddings": 64, **factors}), ("dynamic", {})):
        rope = {"rope_type": rope_type, "rope_theta": 1e4, "factor": 4.0, **keys}
        path = make_toy(tmp_path / f"short-{rope_type}", "llama", max_position_embeddings=64, rope_parameters=rope)
        with pytest.raises(ValueError, match=f"max_model_len=65: rope_type='{rope_type}'.*max_model_len=64"):
            Paged(path, max_model_len=65)
