"""%nvx_load takes all that an LLM takes, by words on a line."""

from __future__ import annotations

from types import NoneType
from typing import Any, Literal, get_args, get_origin

import pytest
from IPython.core.error import UsageError

from nvexplore.config import EngineConfig
from nvexplore.notebook import engine_arguments
from nvexplore.runner.rank_error import RankError
from tests.notebook_fakes import FakeLLM, Shell


def test_load_passes_options_and_closes_the_model_before(shell: Shell) -> None:
    summary = shell.run("%nvx_load first --num-kvcache-blocks 8 --block-size 2 --option max_num_seqs=3 -o one")
    limits = shell["one"].engine.limits
    assert (limits.num_blocks, limits.block_size, limits.max_num_seqs) == (8, 2, 3)
    assert repr(summary) == ("first: 8 KV blocks of 2 tokens\n  a step: at most 16 tokens of at most 3 sequences")
    again = shell.run("%nvx_load 'the second' --policy mixed --option enable_prefix_caching=False")
    assert "the model loaded before (first) was closed" in repr(again)
    assert shell["one"].is_closed
    assert [llm.others_alive for llm in FakeLLM.made] == [[], []]  # closed first: there may be memory for one only
    assert FakeLLM.made[-1].model == "the second"
    assert FakeLLM.made[-1].engine.limits.enable_prefix_caching is False
    assert FakeLLM.made[-1].engine.policy.name == "mixed"
    assert again.session.llm is FakeLLM.made[-1]


def test_a_model_over_several_processes_says_so(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = shell.run("%nvx_load split --tensor-parallel-size 2")
    assert repr(summary).endswith("\n  each layer is split over 2 processes")
    shell.run("%nvx_add hello")

    def fail(self: FakeLLM) -> None:
        raise RankError("rank 1 of 2 is gone. The engine cannot go on: close it and make a new one")

    for name in ("step", "advance"):
        monkeypatch.setattr(FakeLLM, name, fail)
    for line in ("%nvx_step", "%nvx_run"):
        with pytest.raises(UsageError, match="rank 1 of 2 is gone"):
            shell.run(line)


def words_for(field: Any) -> dict[str, Any]:
    """A word that %nvx_load takes for an option -> the value that it then has."""
    kinds = [kind for kind in (field.annotation, *get_args(field.annotation)) if kind is not NoneType]
    choices = {word: word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)}
    if choices:
        return choices
    if bool in kinds:
        return {"": True}
    if int in kinds:
        return {"3": 3}
    return {"0.5": 0.5} if float in kinds else {}


BAD = {
    "%nvx_load --block-size 0": "argument --block-size: '0' is not an integer of at least 1",
    "%nvx_load --block-size": "argument --block-size: expected one argument",
    "%nvx_load a b": "unrecognized arguments: b",
    "%nvx_load --option foo": "argument --option: 'foo' is not of the form key=value",
    "%nvx_load --option colour=red": "unknown option 'colour'; the options are max_num_seqs, ",
    "%nvx_load --option blok_size=4": "unknown option 'blok_size'; did you mean 'block_size'?",
    "%nvx_load --dtype float8": "argument --dtype: invalid choice: 'float8'",
    "%nvx_load --seed -1": "seed=-1: input should be greater than or equal to 0",
    "%nvx_load --gpu-memory-utilization much": "argument --gpu-memory-utilization: invalid float value: 'much'",
    "%nvx_load --gpu-memory-utilization 1.5": "gpu_memory_utilization=1.5: input should be less than or equal to 1",
    "%nvx_load --eviction fifo": "eviction='fifo': must be one of 'lru', 'lfu'",
    "%nvx_load --policy fair": "policy='fair': must be one of 'prefill_first', 'mixed'",
    "%nvx_load nowhere": "no model at 'nowhere' look elsewhere",
    "%nvx_load -o 1x": "argument -o/--out: '1x' is not the name of a variable",
}


@pytest.mark.parametrize("line", BAD)
def test_what_is_wrong_is_said_in_one_line(shell: Shell, line: str) -> None:
    with pytest.raises(UsageError) as error:
        shell.run(line)
    assert BAD[line] in str(error.value)
    assert shell.shown.count("\n") == 1 and shell.shown.startswith("UsageError: ")


TEXTS = {"policy": "mixed", "eviction": "lfu", "device": "cpu"}


@pytest.mark.parametrize("name", EngineConfig.model_fields)
def test_load_takes_every_option_of_the_engine(shell: Shell, name: str) -> None:
    """Also one that is new: the words come from the configuration's fields."""
    words = words_for(EngineConfig.model_fields[name]) or {TEXTS[name]: TEXTS[name]}
    flag = name.replace("_", "-")
    for word, value in words.items():
        shell.run(f"%nvx_load --{flag} {word}")
        assert getattr(FakeLLM.made[-1].config, name) == value
    if words == {"": True}:
        shell.run(f"%nvx_load --no-{flag}")
        assert getattr(FakeLLM.made[-1].config, name) is False
    shell.run("%nvx_load")
    assert FakeLLM.made[-1].config == EngineConfig(), "what is not said is the engine's to choose"


def test_load_has_no_option_that_the_engine_lacks(shell: Shell) -> None:
    load: Any = shell.ip.magics_manager.magics["line"]["nvx_load"]
    own = {"help", "model", "option", "out"}
    assert {action.dest for action in load.parser._actions} - own == EngineConfig.model_fields.keys()
    for name, field in EngineConfig.model_fields.items():
        words = str(field.description).replace("`", "").partition(";")[0]
        assert words in " ".join(load.__doc__.split()), name


def test_options_that_a_session_lives_by(shell: Shell) -> None:
    shell.run("%nvx_load --overlap --kv-cache-dtype fp8 --no-enable-prefix-caching -o llm")
    assert shell["llm"].engine._steps._overlapping is shell["llm"].engine.runner
    assert (shell["llm"].config.kv_cache_dtype, shell["llm"].engine.limits.enable_prefix_caching) == ("fp8", False)
    shell.run("%nvx_add --max-tokens 9 --ignore-eos Once", "%nvx_run")
    assert shell["llm"].engine.runner.num_ahead > 0
    shell.run("%nvx_load --block-size 2 --option block_size=8 -o llm")  # the last word counts
    assert shell["llm"].engine.limits.block_size == 8


def test_an_option_of_an_unknown_kind_is_not_left_out_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    class Odd(EngineConfig):
        odd: list[int] | None = None

    monkeypatch.setattr(engine_arguments, "EngineConfig", Odd)
    with pytest.raises(TypeError, match=r"option odd of type .*list\[int\].*: not a bool, a number"):
        engine_arguments.engine_arguments(lambda line: line)
