"""Recordings without what requests say: all that an engine did is there, and nothing else is."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import msgspec
import pytest

from nvexplore import cli
from nvexplore.explore import frames
from nvexplore.explore.explain import explain
from nvexplore.explore.recorder import Recorder
from nvexplore.explore.recording import load_recording, save_recording
from nvexplore.notebook.session import Session
from nvexplore.sampling_params import SamplingParams
from tests.drive import run_workload
from tests.fakes import run_to_end, toy_engine
from tests.workloads import make_workload

CONTENT = {"token_ids", "token_id", "hash", "request_id", "sampling_params"}
"""Fields of records that are changed."""
STRUCTURE = {
    *(
        "number",
        "kind",
        "block_id",
        "seq_id",
        "arrival",
        "priority",
        "position",
        "cause",
        "num_lost",
        "added",
        "blocks",
    ),
    *("aborted_number", "aborted_seq_id", "cache_reset_number", "preempted", "num_cached_tokens", "miss_cause", "row"),
    *("miss_position", "miss_block_id", "miss_step", "offset", "length", "reason", "needed", "available", "start"),
    *("reserve", "num_passed", "num_admitted_before", "search_end", "is_queue_order", "decodes_first"),
    *("num_not_examined", "count", "is_prefill", "samples", "context_len", "spans", "admitted", "waiting", "padding"),
    *("max_num_batched_tokens", "num_free_blocks", "num_running", "num_waiting", "graph_size", "eager_reason"),
    *("prefill_backend", "decode_backend", "is_ahead", "sync_reason", "finished_number", "finished_seq_id", "event"),
    *("finish_reason", "plan_ns", "run_ns", "commit_ns", "device_ns", "version", "step", "time", "before", "planned"),
    *("committed", "status", "num_prompt_tokens", "num_computed_tokens", "num_preemptions", "block_table", "type"),
    *("block_size", "num_blocks", "max_num_seqs", "running", "sequences", "ref_count", "free", "num_untold"),
}
"""And those in which no word of a request can be."""


def fields(value: Any) -> Iterator[tuple[str, Any]]:
    """All that lies in a record, with its name; what a request asked of the sampler is one thing."""
    for name, each in value.items():
        yield name, each
        if isinstance(each, dict) and name not in CONTENT:
            yield from fields(each)


@pytest.mark.parametrize("seed", range(40))
def test_what_an_engine_did_is_there(seed: int, tmp_path: Path) -> None:
    """Of random runs, with salts, preemptions, interrupts and overlap: every field but those of content is the same."""
    work, recorder = make_workload(seed, overlap=seed % 3 == 0), Recorder(snapshot_every=1 + seed % 7)
    work.engine.subscribe(recorder)
    run_workload(work)
    found = load_recording(save_recording(recorder, tmp_path / "run", redact=True)).recorder
    seen: dict[str, set[tuple[Any, Any]]] = {"hash": set(), "request_id": set()}
    for (old_start, old), (new_start, new) in zip(recorder.segments, found.segments, strict=True):
        for one, other in zip((old_start, *old), (new_start, *new), strict=True):
            before, after = (list(fields(msgspec.to_builtins(item))) for item in (one, other))
            assert {name for name, _ in before} <= CONTENT | STRUCTURE, "may a word be in the new field?"
            for (name, left), (same_name, right) in zip(before, after, strict=True):
                assert name == same_name
                if name in STRUCTURE and not isinstance(left, dict):
                    assert left == right, name
                elif name in seen:
                    seen[name] |= {(a, b) for a, b in zip(left, right, strict=True) if a is not None or b is not None}
    for name, pairs in seen.items():
        assert len({a for a, _ in pairs}) == len({b for _, b in pairs}) == len(pairs), f"{name}: one to one"
    for step in range(recorder.first_step or 0, (recorder.last_step or 0) + 1):
        old_rows, new_rows = (each.state_at(step).snapshot().sequences.token_ids for each in (recorder, found))
        assert [len(row) for row in old_rows] == [len(row) for row in new_rows]
        for i, j in combinations(range(len(old_rows)), 2):
            assert alike(old_rows[i], old_rows[j]) == alike(new_rows[i], new_rows[j])


def alike(one: list[int], other: list[int]) -> int:
    """Tokens that two sequences begin with alike."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


SECRETS = ("Weiss", "salt-of-Weiss", "STOP-Weiss", "/home/weiss/models/tiny")


def told() -> Recorder:
    """A run whose tokens, names, salts and stop strings would all be recognised."""
    engine, recorder = toy_engine(24, 4, stop_matcher=lambda seqs: None), Recorder()
    engine.subscribe(recorder)
    prompt = [70_001 + at for at in range(11)]
    for number, salt in enumerate((None, SECRETS[1], None)):
        params = SamplingParams(max_tokens=5, cache_salt=salt, stop=SECRETS[2], stop_token_ids=[70_999], seed=3)
        engine.add_request(prompt[: 9 + number], params, request_id=f"{SECRETS[0]} {number}")
        run_to_end(engine)
    return recorder


def test_no_word_is_left(tmp_path: Path) -> None:
    recorder = told()
    kept, gone = (
        save_recording(recorder, tmp_path / name, model=SECRETS[3], token_bytes=lambda _: b"Weiss", redact=redact)
        for name, redact in (("kept", False), ("gone", True))
    )
    words, ids, hashes = everything(gone)
    assert not [word for word in words if "eiss" in word] and "tiny" in words
    assert [word for word in everything(kept)[0] if "eiss" in word]
    assert max(ids) < 100 and min(everything(kept)[1]) < 70_000 < max(everything(kept)[1])
    assert hashes == set(range(len(hashes))) and len(hashes) == len(everything(kept)[2]) > 2
    assert load_recording(gone).decode is None
    added = [
        params for record in load_recording(gone).recorder.records for params in record.before.added.sampling_params
    ]
    assert [params["cache_salt"] for params in added] == [None, "0", None]
    assert all(params["stop"] == params["stop_token_ids"] == [] and params["seed"] == 3 for params in added)


def everything(file: Path) -> tuple[list[str], set[int], set[int]]:
    """All strings of a file, all token ids, and all hashes of blocks."""
    whole, at, words, ids, hashes = gzip.decompress(file.read_bytes()), 0, list[str](), set[int](), set[int]()

    def walk(value: Any, name: str = "") -> None:
        if isinstance(value, dict):
            for key, each in value.items():
                walk(each, str(key))
        elif isinstance(value, list):
            for each in value:
                walk(each, name)
        elif isinstance(value, bytes):
            words.append(value.decode())
        elif isinstance(value, str):
            words.append(value)
        elif name in ("token_ids", "token_id"):
            ids.add(value)
        elif name == "hash" and value is not None:
            hashes.add(value)

    while at < len(whole):
        size = 4 + int.from_bytes(whole[at : at + 4], "little")
        walk(msgspec.msgpack.decode(whole[at + 4 : at + size], strict=False))
        at += size
    return words, ids, hashes


def test_it_is_explained_in_the_same_words(tmp_path: Path) -> None:
    """Hits, misses and their reasons, and frames: as of the run itself, whose requests are called r0, r1 and so on."""
    engine, recorder = toy_engine(9, 4, max_num_batched_tokens=16, max_num_seqs=3), Recorder()
    engine.subscribe(recorder)
    for number, (shared, own) in enumerate([(9, 1), (9, 4), (5, 6), (9, 1), (0, 12), (9, 5)]):
        prompt = [*range(30, 30 + shared), *range(60 + 9 * number, 60 + 9 * number + own)]
        engine.add_request(prompt, SamplingParams(max_tokens=7), request_id=f"r{number}")
    run_to_end(engine)
    found = load_recording(save_recording(recorder, tmp_path / "run", redact=True)).recorder
    texts = [str(explain(recorder, step)) for step in range(len(recorder))]
    assert [str(explain(found, step)) for step in range(len(found))] == texts
    for words in (
        "from the cache, filled by r0",
        "differs from position 5 on",
        "which was evicted in step",
        "was preempted for",
    ):
        assert any(words in text for text in texts), words
    for frame in (frames.steps, frames.sequences, frames.schedule, frames.prefix_hits):
        assert frame(found).equals(frame(recorder)), frame


def test_from_the_notebook_and_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = save_recording(told(), tmp_path / "run", model="Qwen/Qwen3-0.6B", token_bytes=lambda _: b"Weiss")
    session = Session()
    session.open(file)
    summary = repr(session.save(tmp_path / "one", redact=True))
    assert "it holds no word of its requests" in summary
    assert "it holds the prompts and completions" in repr(session.save(tmp_path / "other"))
    # What was taken out does not come back, and the file says so.
    assert "what its requests say was taken out" in repr(session.open(tmp_path / "one.nvx"))
    assert "it holds no word of its requests" in repr(session.save(tmp_path / "again"))
    assert load_recording(tmp_path / "again.nvx").recorder.segments == session.recorder.segments
    session.close()
    assert cli.main(["replay", str(file), "--redact", str(tmp_path / "two")]) == 0
    assert capsys.readouterr().out.endswith(f"wrote {tmp_path / 'two.nvx'}\n")
    one, two = (load_recording(tmp_path / name) for name in ("one.nvx", "two.nvx"))
    assert one.recorder.segments == two.recorder.segments and one.model == "Qwen/Qwen3-0.6B"
    assert not [word for name in ("one.nvx", "two.nvx") for word in everything(tmp_path / name)[0] if "Weiss" in word]
    again = ["replay", str(file), "--redact", str(tmp_path / "two.nvx")]
    assert cli.main(again) == 1
    assert "two.nvx is there already; say replace" in capsys.readouterr().err
    assert cli.main([*again, "--replace"]) == 0


@pytest.mark.parametrize(
    ("model", "left"),
    [
        ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B"),
        ("random:qwen3-tiny", "random:qwen3-tiny"),
        ("", ""),
        ("weiss/tiny", "tiny"),  # a folder that is there looks like a name on the Hub
        ("weiss/runs/tiny", "tiny"),
        ("./weiss/tiny", "tiny"),
        ("~/weiss/tiny", "tiny"),
        ("/home/weiss/tiny", "tiny"),
    ],
)
def test_of_a_models_folder_its_own_name_is_left(
    model: str, left: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, and from a file that was saved as it is, read where the folder is not."""
    (tmp_path / "weiss" / "tiny").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    recorder = told()
    at_once = save_recording(recorder, "at-once", model=model, redact=True)
    kept = load_recording(save_recording(recorder, "kept", model=model))
    monkeypatch.chdir(tmp_path.parent)
    later = save_recording(recorder, tmp_path / "later", model=kept.model, redact=True)
    assert load_recording(tmp_path / at_once).model == load_recording(later).model == left
