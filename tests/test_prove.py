"""The runner behind `make prove`, tried on small claims; and a fixed slice of each real proof."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.prove import Figures, Proof, combine, discover
from tests.prove._runner import Store, prove_all, source_key


class Claim:
    """A claim about seeds 0..9, three at a time: remembers which seeds were tried, can be made to fail."""

    def __init__(self, check: Callable[[int], None] = lambda seed: None) -> None:
        self.tried: list[int] = []
        self.check = check
        self.proof = Proof("claim", "Seeds count", volume=10, quick=1, chunk=3, run_chunk=self.run_chunk)

    def run_chunk(self, seeds: range) -> Figures:
        for seed in seeds:
            self.tried.append(seed)
            self.check(seed)
        return {"seeds": len(seeds), "max_seed": max(seeds), "min_seed": min(seeds), "took": 0.25}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout of its own, with one source file."""
    (tmp_path / "nvexplore").mkdir()
    (tmp_path / "nvexplore" / "one.py").write_text("x = 1\n")
    return tmp_path


def interrupt_at(wanted: int) -> Callable[[int], None]:
    def check(seed: int) -> None:
        if seed == wanted:
            raise KeyboardInterrupt

    return check


def refuse(*wanted: int) -> Callable[[int], None]:
    def check(seed: int) -> None:
        assert seed not in wanted, f"seed {seed} is refused"

    return check


def test_a_finished_proof_shows_its_figures_and_is_not_run_again(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = Claim(), Claim()
    assert prove_all([first.proof], root, root / "results") == 0
    assert first.tried == list(range(10))
    assert "holds: seeds 0 to 9, " in (out := capsys.readouterr().out)
    assert "seeds 10, max_seed 9, min_seed 0, took 1" in out

    assert prove_all([second.proof], root, root / "results") == 0
    assert second.tried == []
    assert "seeds 10, max_seed 9, min_seed 0, took 1" in capsys.readouterr().out


def test_an_interrupted_proof_goes_on_with_the_unfinished_chunk(root: Path) -> None:
    interrupted, resumed = Claim(interrupt_at(7)), Claim()
    assert prove_all([interrupted.proof], root, root / "results") == 130
    assert prove_all([resumed.proof], root, root / "results") == 0
    assert resumed.tried == [6, 7, 8, 9]


def test_failing_seeds_are_named_and_tried_again(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad, good = Claim(refuse(4, 5)), Claim()
    assert prove_all([bad.proof], root, root / "results") == 1
    out = capsys.readouterr().out
    assert "FAILS for seed 4, 5; the first:" in out
    assert "seed 4 is refused" in out
    assert "--only claim --seed 4" in out
    assert "FAILED: claim" in out
    assert prove_all([good.proof], root, root / "results") == 0
    assert good.tried == list(range(3, 10))


def test_seeds_that_fail_only_together_are_reported_as_a_range(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    claim = Claim()

    def run_chunk(seeds: range) -> Figures:
        assert len(seeds) < 3, "too many"
        return {}

    proof = Proof("together", claim.proof.title, volume=3, quick=1, run_chunk=run_chunk, chunk=3)
    assert prove_all([proof], root, root / "results") == 1
    assert "FAILS for the seeds 0 to 2 together" in capsys.readouterr().out


def test_the_other_proofs_run_though_one_fails(root: Path) -> None:
    bad, good = Claim(refuse(0)), Claim()
    other = Proof("other", "Another", volume=10, quick=1, chunk=3, run_chunk=good.run_chunk)
    assert prove_all([bad.proof, other], root, root / "results") == 1
    assert good.tried == list(range(10))


def test_results_of_other_sources_do_not_count(root: Path) -> None:
    assert prove_all([Claim().proof], root, root / "results") == 0
    (root / "nvexplore" / "one.py").write_text("x = 2\n")
    again = Claim()
    assert prove_all([again.proof], root, root / "results") == 0
    assert again.tried == list(range(10))


def test_what_the_key_depends_on(root: Path) -> None:
    key = source_key(root)
    (root / "tests").mkdir()
    (root / "tests" / "test_more.py").write_text("")
    assert source_key(root) == key, "a test that no proof uses"
    (root / "tests" / "fakes.py").write_text("")
    assert source_key(root) != key, "what a proof may use"


def test_a_broken_result_file_counts_as_none(root: Path) -> None:
    file = root / "claim.json"
    file.write_text('{"key": ')
    store = Store(file, "k")
    assert store.chunks == {}
    store.add(range(3), 1.0, {"seeds": 3})
    assert range(3) in Store(file, "k")
    assert json.loads(file.read_text())["key"] == "k"


def test_figures_are_combined_by_their_names() -> None:
    parts = [{"n": 1, "max_us": 2.0, "min_us": 2.0}, {"n": 2, "max_us": 1.0, "min_us": 1.0, "new": 1}]
    assert combine(parts) == {"n": 3, "max_us": 2.0, "min_us": 1.0, "new": 1}


@pytest.mark.parametrize("proof", discover(), ids=lambda proof: proof.name)
def test_a_fixed_slice_of_each_proof_holds(proof: Proof) -> None:
    proof.run_chunk(range(proof.quick))
