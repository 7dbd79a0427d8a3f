"""The loader: every tensor exactly once, from the file that the index says, or an error that names it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from nvexplore.layers.parameter import Placement
from nvexplore.model_config import ModelConfig
from nvexplore.models.decoder import CausalLM
from nvexplore.runner.weights import INDEX_FILE, WeightsError, load_weights
from nvexplore.toy import make_toy

Tensors = dict[str, Tensor]
CPU = torch.device("cpu")
Q_PROJ = "model.layers.1.self_attn.q_proj.weight"


def new_model(path: Path, dtype: torch.dtype = torch.float32, rank: int = 0, size: int = 1) -> CausalLM:
    config = ModelConfig.from_path(path)
    return CausalLM(config, max_positions=16, placement=Placement(dtype, CPU, rank, size))


def load(path: Path, dtype: torch.dtype = torch.float32) -> CausalLM:
    model = new_model(path, dtype)
    load_weights(model, path)
    return model


def expected(path: Path) -> Tensors:
    """What the files hold, by their own names."""
    tensors: Tensors = {}
    for file in path.glob("model*.safetensors"):
        tensors |= load_file(file)
    return tensors


def assert_holds(model: CausalLM, tensors: Tensors) -> None:
    for piece in model.pieces():
        if not piece.is_tied:
            assert torch.equal(piece.target, tensors[piece.name].to(piece.target.dtype)), piece.name
    for name, parameter in model.named_parameters():
        assert parameter.isfinite().all(), name


def rewrite(file: Path, change: Callable[[Tensors], object]) -> None:
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})


@pytest.fixture
def single(tmp_path: Path) -> Path:
    return make_toy(tmp_path, "qwen3", tied=False)


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return make_toy(tmp_path, "qwen3", tied=False, num_shards=2)


@pytest.mark.parametrize("num_shards", [1, 3])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "qwen3_moe"])
def test_every_tensor_arrives(tmp_path: Path, architecture: str, tied: bool, num_shards: int) -> None:
    path = make_toy(tmp_path, architecture, tied=tied, num_shards=num_shards)
    assert_holds(load(path), expected(path))


def test_packed_parameters_hold_their_parts_in_order(single: Path) -> None:
    attention = next(load(single).decoder_layers()).self_attn
    tensors = expected(single)
    parts = [tensors[f"model.layers.0.self_attn.{name}_proj.weight"] for name in "qkv"]
    assert torch.equal(attention.qkv_proj.weight, torch.cat(parts))
    assert attention.qkv_proj.sizes == [len(part) for part in parts]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_weights_are_cast(tmp_path: Path, dtype: torch.dtype) -> None:
    path = make_toy(tmp_path, "llama", dtype="bfloat16")
    model = load(path, dtype)
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    assert_holds(model, expected(path))


def test_biases_arrive(tmp_path: Path) -> None:
    path = make_toy(tmp_path, "llama", attention_bias=True, mlp_bias=True)
    assert_holds(load(path), expected(path))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_progress_counts_the_bytes_that_are_filled(sharded: Path, dtype: torch.dtype) -> None:
    calls: list[tuple[int, int]] = []
    model = new_model(sharded, dtype)
    load_weights(model, sharded, lambda done, total: calls.append((done, total)))
    total = sum(parameter.nbytes for parameter in model.parameters())
    assert calls[0] == (0, total) and calls[-1] == (total, total)
    assert {of for _, of in calls} == {total}
    assert [done for done, _ in calls] == sorted({done for done, _ in calls})
    assert len(calls) == len(expected(sharded)) + 1


def test_v18_tied_head_is_the_embedding(tmp_path: Path) -> None:
    path = make_toy(tmp_path, "qwen3", tied=True)
    model = load(path)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert "lm_head.weight" not in expected(path)


def test_v18_tied_head_in_the_file_is_skipped(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    path = make_toy(tmp_path, "llama", tied=True)
    embedding = expected(path)["model.embed_tokens.weight"]
    rewrite(path / "model.safetensors", lambda tensors: tensors.update({"lm_head.weight": embedding.clone()}))
    assert torch.equal(load(path).lm_head.weight, embedding)
    assert not recwarn
    rewrite(path / "model.safetensors", lambda tensors: tensors.update({"lm_head.weight": embedding + 1}))
    with pytest.warns(UserWarning, match=r"lm_head\.weight in .*model\.safetensors is not used"):
        model = load(path)
    assert torch.equal(model.lm_head.weight, embedding)


def test_v18_untied_head_is_needed(single: Path) -> None:
    rewrite(single / "model.safetensors", lambda tensors: tensors.pop("lm_head.weight"))
    with pytest.raises(WeightsError, match=r"lm_head\.weight missing"):
        load(single)


def test_v18_without_the_key_the_head_is_not_tied(tmp_path: Path) -> None:
    path = make_toy(tmp_path, "llama", tied=False)
    config = json.loads((path / "config.json").read_text())
    del config["tie_word_embeddings"]
    (path / "config.json").write_text(json.dumps(config))
    model = load(path)
    assert model.lm_head.weight is not model.model.embed_tokens.weight
    assert_holds(model, expected(path))


@pytest.mark.parametrize("reverse", [False, True])
def test_v20_the_index_decides_tensor_by_tensor(sharded: Path, reverse: bool) -> None:
    right = expected(sharded)
    index = json.loads((sharded / INDEX_FILE).read_text())
    weight_map = index["weight_map"]
    first, second = sorted(set(weight_map.values()))
    stale = next(name for name in weight_map if weight_map[name] == first)
    rewrite(sharded / second, lambda tensors: tensors.update({stale: right[stale] + 1}))
    wrong = {name: tensor - 1 for name, tensor in right.items()}
    save_file(wrong, sharded / "consolidated.safetensors")
    save_file(wrong, sharded / "model.safetensors")
    items = list(weight_map.items())
    index["weight_map"] = dict(items[::-1] if reverse else items)
    (sharded / INDEX_FILE).write_text(json.dumps(index))
    with pytest.warns(UserWarning, match=r"model\.safetensors is not used: .*index\.json beside it"):
        model = load(sharded)
    assert_holds(model, right)


def test_v20_an_index_may_name_the_single_file_alone(single: Path, recwarn: pytest.WarningsRecorder) -> None:
    right = expected(single)
    (single / INDEX_FILE).write_text(json.dumps({"weight_map": dict.fromkeys(right, "model.safetensors")}))
    assert_holds(load(single), right)
    assert not recwarn


def test_single_file_ignores_others(single: Path) -> None:
    right = expected(single)
    save_file({name: tensor - 1 for name, tensor in right.items()}, single / "consolidated.safetensors")
    assert_holds(load(single), right)


def test_missing_and_extra_tensors_are_named(single: Path) -> None:
    def change(tensors: Tensors) -> None:
        tensors["model.layers.7.mlp.up_proj.weight"] = tensors.pop(Q_PROJ)

    rewrite(single / "model.safetensors", change)
    with pytest.raises(WeightsError) as caught:
        load(single)
    assert f"{Q_PROJ} missing" in str(caught.value)
    assert "model.layers.7.mlp.up_proj.weight not part of the model" in str(caught.value)


def test_v33_an_absent_bias_is_named(single: Path) -> None:
    config = json.loads((single / "config.json").read_text())
    (single / "config.json").write_text(json.dumps({**config, "attention_bias": True}))
    with pytest.raises(WeightsError, match=r"layers\.0\.self_attn\.q_proj\.bias, .* missing"):
        load(single)


def test_v33_what_nothing_wrote_is_named(single: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A parameter that no piece covers stays NaN, whatever the reason."""
    model = new_model(single)
    pieces = [piece for piece in model.pieces() if piece.name != Q_PROJ]
    monkeypatch.setattr(model, "pieces", lambda: pieces)
    rewrite(single / "model.safetensors", lambda tensors: tensors.pop(Q_PROJ))
    with pytest.raises(WeightsError, match=r"model\.layers\.1\.self_attn\.qkv_proj\.weight is not finite"):
        load_weights(model, single)


def test_infinite_after_the_cast_is_named(single: Path) -> None:
    rewrite(single / "model.safetensors", lambda tensors: tensors["model.norm.weight"].fill_(1e6))
    assert load(single, torch.bfloat16).model.norm.weight[0] > 9e5
    with pytest.raises(WeightsError, match=r"model\.norm\.weight is not finite .* as torch\.float16"):
        load(single, torch.float16)


def test_known_buffers_are_ignored(single: Path) -> None:
    right = expected(single)
    extra = {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": torch.ones(8) for i in range(2)}
    rewrite(single / "model.safetensors", lambda tensors: tensors.update(extra))
    assert_holds(load(single), right)


def test_wrong_shape_names_tensor_file_and_shapes(single: Path) -> None:
    rewrite(single / "model.safetensors", lambda tensors: tensors.update({Q_PROJ: torch.ones(65, 64)}))
    message = rf"{Q_PROJ} in .*model\.safetensors has shape \[65, 64\], the model needs \[64, 64\]"
    with pytest.raises(WeightsError, match=message):
        load(single)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_quantised_tensors_are_refused(single: Path, dtype: torch.dtype) -> None:
    rewrite(
        single / "model.safetensors",
        lambda tensors: tensors.update({Q_PROJ: torch.zeros(64, 64).to(dtype)}),
    )
    with pytest.raises(WeightsError, match=rf"{Q_PROJ} .* is {dtype}: quantised"):
        load(single)


@pytest.mark.parametrize("size", [0, 4, 100, 20_000, -1])
def test_truncated_file_is_named_with_its_size(single: Path, size: int) -> None:
    file = single / "model.safetensors"
    content = file.read_bytes()[:size]
    file.write_bytes(content)
    with pytest.raises(WeightsError, match=rf"model\.safetensors \({len(content):,} bytes\).*truncated or corrupt"):
        load(single)


def test_a_header_that_names_a_tensor_twice(single: Path) -> None:
    """Written by hand: no library would. Whichever of the two is meant, the file does not say."""
    file = single / "model.safetensors"
    content = file.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = content[8 : 8 + size].rstrip()
    again = b'{"model.norm.weight":{"dtype":"F32","shape":[64],"data_offsets":[0,256]},' + header[1:]
    again += b" " * (-len(again) % 8)
    file.write_bytes(len(again).to_bytes(8, "little") + again + content[8 + size :])
    with pytest.raises(WeightsError, match=r"model\.safetensors assigns model\.norm\.weight twice"):
        load(single)


@pytest.mark.parametrize("header", [b"{}", b'{"x": 3}', b"not json", b"\xff\xfe"])
def test_a_header_that_is_none(single: Path, header: bytes) -> None:
    file = single / "model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(64))
    with pytest.raises(WeightsError, match=r"model\.safetensors"):
        load(single)


def test_a_folder_in_place_of_the_file(single: Path) -> None:
    file = single / "model.safetensors"
    file.unlink()
    file.mkdir()
    with pytest.raises(WeightsError, match=r"model\.safetensors is not a file"):
        load(single)


def test_git_lfs_pointer_is_recognised(single: Path) -> None:
    (single / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    with pytest.raises(WeightsError, match="Git LFS pointer"):
        load(single)


def test_no_weights_lists_what_is_there(single: Path) -> None:
    (single / "model.safetensors").rename(single / "pytorch_model.bin")
    with pytest.raises(WeightsError, match=r"neither .* \(found: .*pytorch_model\.bin"):
        load(single)
    with pytest.raises(WeightsError, match="no such folder"):
        load_weights(new_model(single), single / "nowhere")


def test_index_names_a_file_that_is_missing(sharded: Path) -> None:
    next(sharded.glob("model-00002*")).unlink()
    with pytest.raises(WeightsError, match=r"model-00002-of-00002\.safetensors is missing; .*assigns \d+ tensors"):
        load(sharded)


def test_index_assigns_a_tensor_to_a_file_without_it(sharded: Path) -> None:
    index = json.loads((sharded / INDEX_FILE).read_text())
    first = min(index["weight_map"].values())
    name = next(name for name, file in index["weight_map"].items() if file != first)
    index["weight_map"][name] = first
    (sharded / INDEX_FILE).write_text(json.dumps(index))
    with pytest.raises(WeightsError, match=rf"{first} does not hold {name}"):
        load(sharded)


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {"a": 3}}'])
def test_index_that_is_none(sharded: Path, content: str) -> None:
    (sharded / INDEX_FILE).write_text(content)
    with pytest.raises(WeightsError, match=r"index\.json is not a valid index"):
        load(sharded)


def test_index_must_not_point_elsewhere(sharded: Path) -> None:
    (sharded / INDEX_FILE).write_text('{"weight_map": {"model.norm.weight": "../other.safetensors"}}')
    with pytest.raises(WeightsError, match=r"not a file beside it"):
        load(sharded)


def test_doubly_written_tensor_is_named(sharded: Path) -> None:
    text = (sharded / INDEX_FILE).read_text()
    double = '"weight_map": { "model.norm.weight": "model-00001-of-00002.safetensors",'
    (sharded / INDEX_FILE).write_text(text.replace('"weight_map": {', double))
    with pytest.raises(WeightsError, match=r"assigns model\.norm\.weight twice: to model-00001.* and to model-00002"):
        load(sharded)


def test_shards_of_all_ranks_together_are_the_whole(tmp_path: Path) -> None:
    """For tensor parallelism: a rank's rows of q, k, v, gate, up and the vocabulary, its columns of o and down."""
    size = 2
    path = make_toy(tmp_path, "llama", tied=False, attention_bias=True, mlp_bias=True, vocab_size=512)
    ranks = [new_model(path, rank=rank, size=size) for rank in range(size)]
    for model in ranks:
        load_weights(model, path)
    for name, whole in expected(path).items():
        pieces = [next(piece for piece in model.pieces() if piece.name == name) for model in ranks]
        if pieces[0].target.shape == whole.shape:
            assert all(torch.equal(piece.target, whole) for piece in pieces)
            assert name.endswith(("norm.weight", "o_proj.bias", "down_proj.bias"))
        else:
            assert torch.equal(torch.cat([piece.target for piece in pieces], dim=pieces[0].dim), whole)


def test_heads_that_do_not_divide_are_named(tmp_path: Path) -> None:
    path = make_toy(tmp_path, "llama")
    with pytest.raises(ValueError, match=r"vocab_size=272|num_attention_heads=4"):
        new_model(path, size=3)
