"""What the tests of reports share: a small LLM, a request that runs to its end, a config with other keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nvexplore import LLM, SamplingParams
from nvexplore.engine.engine import Engine
from nvexplore.engine.sequence import Sequence
from tests.fakes import check_invariants, run_to_end, unconstrained

GREEDY = SamplingParams(temperature=0, max_tokens=6)


def toy_llm(path: Path, **options: Any) -> LLM:
    """An LLM on the CPU with blocks of 4 tokens, which the reports' small inputs are written for."""
    return LLM(path, **{"device": "cpu", "block_size": 4, "num_kvcache_blocks": 64, **options})


def change_config(path: Path, **keys: Any) -> Path:
    """Set keys of config.json; None takes a key away."""
    config = {**json.loads((path / "config.json").read_text()), **keys}
    (path / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    return path


def add(engine: Engine, prompt: list[int], max_tokens: int) -> Sequence:
    return engine.add_request(prompt, SamplingParams(max_tokens=max_tokens, ignore_eos=True))


def finish(engine: Engine, prompt: list[int], max_tokens: int) -> Sequence:
    """Run one request to its end and look at its output and at the pool."""
    seq = add(engine, prompt, max_tokens)
    run_to_end(engine)
    assert is_right(seq)
    check_invariants(engine)
    return seq


def is_right(seq: Sequence) -> bool:
    """The completion is what the toy model says with no engine in between."""
    return seq.completion_token_ids == unconstrained(seq.prompt_token_ids, seq.sampling_params.max_tokens)
