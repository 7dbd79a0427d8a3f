"""The runner behind `make prove`, tried on small claims; and a fixed slice of each real proof."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import pytest

from tests.prove import Figures, Proof, _chunks, _example, combine, cycles, discover, least
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


def test_what_takes_time_is_measured_again_until_it_is_within_its_limit() -> None:
    times = iter([9.0, 4.0, 1.0])
    assert least(lambda: next(times), 5.0) == 4.0
    assert next(times) == 1.0, "the third was not needed"
    times = iter([9.0, 7.0, 8.0, 1.0])
    with pytest.raises(AssertionError, match=r"9\.0, 7\.0, 8\.0: the limit is 5"):
        least(lambda: next(times), 5.0)


def test_figures_are_combined_by_their_names() -> None:
    parts = [{"n": 1, "max_us": 2.0, "min_us": 2.0}, {"n": 2, "max_us": 1.0, "min_us": 1.0, "new": 1}]
    assert combine(parts) == {"n": 3, "max_us": 2.0, "min_us": 1.0, "new": 1}


class TestSeveralProcesses:
    """Chunks that run at the same time, in processes of their own."""

    @pytest.fixture(autouse=True)
    def two(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(_chunks, "PROCESSES", 2)
        # Tests of IPython leave a main module of its own kind, which multiprocessing does not know how to start again.
        monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))

    @staticmethod
    def proof(run_chunk: Callable[[range], Figures] = _example.count) -> Proof:
        return Proof("claim", "Seeds count", volume=10, quick=1, chunk=3, run_chunk=run_chunk, is_parallel=True)

    def test_the_figures_are_the_same(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert prove_all([self.proof()], root, root / "results") == 0
        assert "seeds 10, max_seed 9, min_is_elsewhere 1" in capsys.readouterr().out

    def test_failing_seeds_are_named(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert prove_all([self.proof(_example.refuse_five)], root, root / "results") == 1
        assert "FAILS for seed 5; the first:" in capsys.readouterr().out

    def test_an_interrupt_leaves_the_finished_chunks(
        self, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        add, added = Store.add, []

        def add_two(store: Store, seeds: range, seconds: float, figures: Figures) -> None:
            if len(added) == 2:
                raise KeyboardInterrupt
            added.append(seeds)
            add(store, seeds, seconds, figures)

        monkeypatch.setattr(Store, "add", add_two)
        assert prove_all([self.proof()], root, root / "results") == 130
        monkeypatch.setattr(Store, "add", add)
        assert prove_all([self.proof()], root, root / "results") == 0
        assert f"{sum(map(len, added))} of 10 were done before" in capsys.readouterr().out


class TestAllSeedsTogether:
    """``Proof.check``, and figures that are lists of lines."""

    def proof(self, limit: int, tests: Sequence[Path] = ()) -> Proof:
        def run_chunk(seeds: range) -> Figures:
            return {"seeds": len(seeds), "odd": [f"seed {seed} is odd" for seed in seeds if seed % 2]}

        def check(figures: Figures) -> None:
            odd = figures["odd"]
            assert isinstance(odd, list) and figures["seeds"] == 10
            assert len(odd) <= limit, f"{len(odd)} odd ones are too many"

        return Proof("claim", "Few are odd", volume=10, quick=1, chunk=3, run_chunk=run_chunk, check=check, tests=tests)

    def test_lines_are_put_together_and_shown(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        for _ in range(2):  # the second time from the file
            assert prove_all([self.proof(5)], root, root / "results") == 0
            out = capsys.readouterr().out
            assert "holds: seeds 0 to 9, " in out and "seeds 10, odd 5" in out
            assert [line.strip() for line in out.splitlines() if line.startswith("    ")] == [
                f"seed {seed} is odd" for seed in (1, 3, 5, 7, 9)
            ]

    def test_what_does_not_hold_over_all_fails_without_running_them_again(
        self, root: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert prove_all([self.proof(4)], root, root / "results") == 1
        out = capsys.readouterr().out
        assert "FAILS over all seeds: 5 odd ones are too many" in out and "seed 9 is odd" in out
        assert "FAILED: claim" in out
        assert prove_all([self.proof(5)], root, root / "results") == 0
        assert "10 of 10 were done before" in capsys.readouterr().out

    def test_results_hold_for_the_tests_that_were_run(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        file = root / "test_some.py"
        for text, is_known in (("one", False), ("one", True), ("two", False)):
            file.write_text(text)
            assert prove_all([self.proof(5, [file])], root, root / "results") == 0
            assert ("were done before" in capsys.readouterr().out) is is_known

    def test_combining_leaves_the_parts_alone(self) -> None:
        parts: list[Figures] = [{"lines": ["a"]}, {"lines": ["b"]}]
        assert combine(parts) == combine(parts) == {"lines": ["a", "b"]}


@pytest.mark.parametrize("proof", discover(), ids=lambda proof: proof.name)
def test_a_fixed_slice_of_each_proof_holds(proof: Proof) -> None:
    proof.run_chunk(range(proof.quick))


def test_three_thousand_requests_that_come_and_go_leave_nothing_behind() -> None:
    cycles.run_one(0, 3_000)
