"""The magics in a real IPython shell, over the real engine and a toy runner: what they do, and what they say."""

from __future__ import annotations

from typing import Any

import pytest
from IPython.core.error import UsageError

from nvexplore.notebook.describe import PlanSummary, StepSummary
from nvexplore.notebook.requests import Request, RequestTable
from nvexplore.notebook.session import Session
from nvexplore.notebook.tally import RunSummary
from tests.fakes import unconstrained
from tests.notebook_fakes import TEMPLATE, Shell


def test_options_of_add(loaded: Shell) -> None:
    request = loaded.run("%nvx_add --max-tokens 5 --temperature=0.5 --ignore-eos --id story  Once upon")
    assert (request.request_id, request.prompt) == ("story", "Once upon")
    params = loaded["llm"].engine.live["story"].sampling_params
    assert (params.max_tokens, params.temperature, params.ignore_eos) == (5, 0.5, True)
    loaded.run("%config NvExplore.max_tokens = 7", "%nvx_add --id plain x")
    params = loaded["llm"].engine.live["plain"].sampling_params
    assert (params.max_tokens, params.temperature, params.ignore_eos) == (7, 0.0, False)
    loaded.run("%nvx_add --id lax --priority 3 x", "%nvx_add --id urgent --priority -1 x")
    queue = loaded["llm"].engine.snapshot()
    names = dict(zip(queue.sequences.seq_id, queue.sequences.request_id, strict=True))
    assert [names[seq_id] for seq_id in queue.waiting] == ["urgent", "story", "plain", "lax"]
    chat = loaded.run("%nvx_add --chat Hi {x}")
    assert bytes(chat.prompt_token_ids).decode() == TEMPLATE.format("Hi {x}")
    assert chat.prompt == "Hi {x}"
    loaded.run("%config NvExplore.chat = True")
    assert len(loaded.run("%nvx_add Hi").prompt_token_ids) > 2


BAD = {
    "%nvx_add": "there is no prompt: %nvx_add Once upon a time",
    "%nvx_add --id x": "there is no prompt",
    "%nvx_add --max-tokens": "argument --max-tokens: expected one argument",
    "%nvx_add --max-tokens 5000 x": "must be at most max_model_len=4096",
    "%nvx_add --temperature -1 x": "temperature=-1.0: must be at least 0",
    "%nvx_add --priority high x": "argument --priority: invalid int value: 'high'",
    "%nvx_add --colour red x": "unrecognized arguments: --colour red",
    "%nvx_add --var nothing": "--var nothing: there is no such variable",
    "%nvx_add --var llm x": "--var names the prompt",
    "%nvx_add --each-line x": "are for a %%nvx_add cell",
    "%%nvx_add x\ny": "the prompt is the body of the cell",
    "%%nvx_add --each-line\n\n": "there is no prompt in this cell",
    "%nvx_step -n 0": "argument -n: '0' is not an integer of at least 1",
    "%nvx_step --until late": "argument --until: no name 'late' at the ^ in: ^late (events: preempt, miss, hit, ",
    "%nvx_run --until premept": "no name 'premept' at the ^ in: ^premept (did you mean preempt?)",
    "%nvx_run --until 'num_seqs >'": "argument --until: invalid syntax at the ^ in: num_seqs >^",
    "%nvx_run --until": "argument --until: expected one argument",
    "%nvx_run --hz 3": "--hz is the pace of a live run",
    "%nvx_run --live --hz 0": "argument --hz: '0' is not a number of steps a second",
    "%nvx_run --live": "no event loop runs here",
    "%nvx_watch all of it": "unrecognized arguments: of it",
    "%nvx_watch tokens": "invalid choice: 'tokens'",
    "%nvx_frame": "the following arguments are required: name",
    "%nvx_frame step": "invalid choice: 'step'",
    "%nvx_frame steps --step 3": "only blocks and slots are of one step",
    "%nvx_frame blocks --step 3": "step 3 is not recorded",
    "%nvx_plot pie": "invalid choice: 'pie'",
    "%nvx_abort nobody": "no live request nobody",
    "%nvx_text nobody": "no request nobody",
    "%nvx_text 'nobody": "No closing quotation in: 'nobody",
    "%nvx_close now": "unrecognized arguments: now",
}


@pytest.mark.parametrize("cell", BAD)
def test_what_is_wrong_is_said_in_one_line(loaded: Shell, cell: str) -> None:
    with pytest.raises(UsageError) as error:  # raised, not printed: Run All stops
        loaded.run(cell)
    assert BAD[cell] in str(error.value)
    assert loaded.shown.count("\n") == 1
    assert loaded.shown.startswith("UsageError: ")


@pytest.mark.parametrize(
    "cell",
    [
        *("%nvx_add x", "%nvx_step", "%nvx_step -n 2", "%nvx_peek", "%nvx_run", "%nvx_run --live", "%nvx_pause"),
        *("%nvx_watch", "%nvx_frame steps", "%nvx_plot memory", "%nvx_abort x"),
    ],
)
def test_without_a_model_one_line_says_how_to_get_one(shell: Shell, cell: str) -> None:
    with pytest.raises(UsageError, match="no model is loaded: use %nvx_load"):
        shell.run(cell)


def test_peek_step_and_run_tell_what_happens(loaded: Shell) -> None:
    loaded.run("%nvx_add --id long --max-tokens 4 abcdefghijklmnopqrst", "%nvx_add --id short --max-tokens 2 abcdefgh")
    before = loaded["llm"].engine.snapshot()
    plan = loaded.run("%nvx_peek")
    assert isinstance(plan, PlanSummary)
    assert repr(plan).splitlines() == [
        "the next step would run 1 prefill chunk of 16 tokens; 16 of at most 16 tokens",
        "  request  work           positions  new blocks",
        "  long     prefill chunk  0 to 15    5",
        "  blocks: 5 allocated, 4 full and cached from now on; 59 of 64 would be left free",
        "  waiting: short, since the step's budget of 16 tokens is used up",
    ]
    assert loaded["llm"].engine.snapshot().same_state(before)
    step = loaded.run("%nvx_step")
    assert isinstance(step, StepSummary)
    assert step.record.step == 0
    assert repr(step).startswith("step 0: 1 prefill chunk of 16 tokens; 16 of at most 16 tokens; ")
    second = loaded.run("%nvx_step")
    assert second.rows == (
        ("long", "prefill, last chunk", "16 to 19", "0", second.rows[0][4]),
        ("short", "prefill, last chunk", "4 to 7 (0 to 3 cached)", "1", second.rows[1][4]),
    )
    assert loaded.run("%nvx_step --until finish").finished[0].request_id == "short"
    run = loaded.run("%nvx_run")
    assert isinstance(run, RunSummary)
    assert [request.status for request in run.finished] == ["length"]
    assert "all requests are finished" in repr(run)
    assert repr(loaded.run("%nvx_step")) == "step 5: nothing to run\n  the engine is idle: all requests are finished"
    assert "the engine is idle" in repr(loaded.run("%nvx_peek"))
    assert loaded.run("%nvx_run").notes == ("all requests are finished",)


def test_step_until(loaded: Shell) -> None:
    loaded.run("%nvx_add --max-tokens 20 abc")
    assert loaded.run("%nvx_step -n 3").tally.last_step == 2
    assert loaded.run("%nvx_step --until step==7").tally.last_step == 7
    assert loaded.run("%nvx_step -n 2 --until step==50").tally.last_step == 9
    for magic in ("step", "run", "run --live"):
        with pytest.raises(UsageError, match="until step==9: the next step is already 10"):
            loaded.run(f"%nvx_{magic} --until step==9")
    assert loaded.run("%nvx_step --until step==900").tally.last_step == 19


def test_run_until(loaded: Shell) -> None:
    loaded.run("%nvx_add --id a --max-tokens 20 abc", "%nvx_add --id b --max-tokens 5 abcde")
    first = loaded.run("%nvx_run --until miss,evict")
    assert repr(first).splitlines()[1] == (
        "  stopped at step 0: request b missed the prefix cache: nothing in it goes on like this"
    )
    loaded.run("late = 3")
    run = loaded.run('%nvx_run --until "num_sampled_tokens and step > {late}"')
    assert run.notes[0] == ("stopped at step 4: num_sampled_tokens and step > 3, with num_sampled_tokens = 2")
    loaded.run("%nvx_add --id c --max-tokens 2 x")
    assert loaded.run("%nvx_run --until finish").found == "step 6: request c finished (length)"
    with pytest.raises(UsageError, match=r"until planned.nothing could not be evaluated at step 7: AttributeError"):
        loaded.run("%nvx_run --until planned.nothing")
    assert loaded.shown.count("\n") == 1
    assert loaded.run("%nvx_run --until preempt").notes[0] == "did not come up: preempt"


def test_eviction_preemption_and_waiting_are_told(shell: Shell) -> None:
    shell.run("loaded = %nvx_load --num-kvcache-blocks 6 -o llm", "session = loaded.session")
    shell.run("%nvx_add --id old --max-tokens 1 oldoldol", "%nvx_run")
    shell.run("%nvx_add --id a --max-tokens 12 aaaaaaaa", "%nvx_add --id b --max-tokens 12 bbbbbbbb", "%nvx_step")
    shell.run("%nvx_add --id c --max-tokens 2 cccccccccccc")
    assert "waiting: c, since it needs 3 blocks and 2 can be had" in repr(shell.run("%nvx_peek"))
    told = [repr(shell.run("%nvx_step --until preempt"))]
    assert "stopped at step 6: request b was preempted for a" in told[0]
    assert "1 preemption: what was lost is computed again" in told[0]
    while shell["session"].has_work:
        told.append(repr(shell.run("%nvx_step")))
    text = "\n".join(told)
    assert "evicted from the prefix cache" in text
    assert "preempted: b loses the KV of 12 tokens, since a needs a block" in told[0]
    assert all(r.text for r in shell["session"].requests)


def test_texts_and_abort(loaded: Shell) -> None:
    loaded.run("%nvx_add --id a --max-tokens 6 hello", "%nvx_add --id b --max-tokens 6 world", "%nvx_step -n 3")
    gone = loaded.run("%nvx_abort b")
    assert [(r.request_id, r.status) for r in gone] == [("b", "abort")]
    loaded.run("%nvx_run")
    texts = loaded.run("%nvx_text")
    assert [r.status for r in texts] == ["length", "abort"]
    said = unconstrained(list(b"hello"), 6)
    assert texts[0].token_ids == said
    assert texts[0].text == loaded["llm"].tokenizer.decode(said)
    assert [r.request_id for r in loaded.run("%nvx_text b")] == ["b"]
    loaded.run("%nvx_close")
    assert [r.text for r in loaded.run("%nvx_text")] == [r.text for r in texts]  # readable without the model


def test_frames_and_plots(loaded: Shell) -> None:
    loaded.run("%nvx_add --max-tokens 4 abcdef", "%nvx_run")
    steps = loaded.run("%nvx_frame steps -o kept")
    assert loaded["kept"] is steps
    assert len(steps) == 4
    assert loaded.run("%nvx_frame slots --step 0")["slot"].tolist() == list(range(6))
    for name in ("memory", "throughput", "schedule"):
        assert loaded.run(f"%nvx_plot {name}").axes
    loaded.run("%nvx_close")
    assert len(loaded.run("%nvx_frame steps")) == 4  # the recording outlives the engine


def test_every_magic_has_a_manual_and_a_twin(loaded: Shell) -> None:
    names = sorted(n for n in loaded.ip.magics_manager.magics["line"] if n.startswith("nvx_"))
    assert names == [
        *("nvx_abort", "nvx_add", "nvx_close", "nvx_frame", "nvx_glossary", "nvx_load", "nvx_open", "nvx_pause"),
        *("nvx_peek", "nvx_plot", "nvx_run", "nvx_save", "nvx_step", "nvx_text", "nvx_watch"),
    ]
    assert [n for n in loaded.ip.magics_manager.magics["cell"] if n.startswith("nvx_")] == ["nvx_add"]
    for name in names:
        manual = loaded.ip.magics_manager.magics["line"][name].__doc__
        assert manual.startswith(f"::\n\n  %{name}")
        assert "In Python: ``session." in " ".join(manual.split()), name
        assert "%%config" not in manual


def test_a_fault_in_a_step_keeps_its_traceback(loaded: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(batch: Any) -> list[int]:
        raise ValueError("a bug")

    loaded.run("%nvx_add x")
    monkeypatch.setattr(loaded["llm"].engine.runner, "run", fail)
    for cell in ("%nvx_step", "%nvx_step -n 2", "%nvx_run"):
        with pytest.raises(ValueError, match="a bug"):
            loaded.run(cell)
        assert "Traceback" in loaded.shown


def test_hostile_prompts_are_shown_as_text(loaded: Shell) -> None:
    request = loaded.run("%%nvx_add --id <b>\n</script><img src=x onerror=alert(1)>\x1b[31m\u202e\nsecond line")
    table = RequestTable([request])
    for shown in (table._repr_html_(), loaded.run("%nvx_step")._repr_html_(), loaded.run("%nvx_run")._repr_html_()):
        assert "<img" not in shown
        assert "</script>" not in shown
        assert "<b></bdi>" not in shown
    for plain in (repr(table), repr(request)):
        assert "\x1b" not in plain
        assert "\u202e" not in plain
    assert isinstance(request, Request)


def test_nothing_shown_has_an_address(loaded: Shell) -> None:
    loaded.run("%nvx_add --max-tokens 2 x")
    things: list[Any] = [loaded.run(cell) for cell in ("%nvx_peek", "%nvx_step", "%nvx_text", "%nvx_run", "%nvx_pause")]
    things += [loaded["session"], loaded["session"].runner, loaded.run("%nvx_close")]
    assert not [repr(thing) for thing in things if " at 0x" in repr(thing)]
    assert isinstance(loaded["session"], Session)
