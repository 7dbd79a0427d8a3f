"""The mutator and the process that tries mutants: which changes are made, which are not, and who notices them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from types import ModuleType

import pytest

from tests.prove import _run_mutants, mutants
from tests.prove._engine_tests import ENGINE, FILES, LIKELY, NAMES, files_for
from tests.prove._mutations import Mutant, find_mutants


def changes(source: str) -> list[tuple[str, str]]:
    return [(mutant.before, mutant.after) for mutant in find_mutants(source)]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = a < b", [("x = a < b", "x = a <= b")]),
        ("x = a == b", [("x = a == b", "x = a != b")]),
        ("x = a is not b", [("x = a is not b", "x = a is b")]),
        ("x = a not in b", [("x = a not in b", "x = a in b")]),
        ("x = a and b", [("x = a and b", "x = a or b")]),
        ("x = a - b", [("x = a - b", "x = a + b")]),
        ("x = a % b", [("x = a % b", "x = a // b")]),
        ("x += y", [("x += y", "x -= y")]),
        ("x = 5", [("x = 5", "x = 6"), ("x = 5", "x = 4")]),
        ("x = True", [("x = True", "x = False")]),
        ("x = -y", [("x = -y", "x = y")]),
        ("x = not y", [("x = not y", "x = y")]),
        ("go(x)", [("go(x)", "pass")]),
        ("if x:\n    y", [("if x:", "if not x:")]),
        ("if not x:\n    y", [("not x", "x")]),
        ("x = a if c else b", [("x = a if c else b", "x = a if not c else b")]),
        ("x = [a for a in b if c]", [("x = [a for a in b if c]", "x = [a for a in b if not c]")]),
        ("while x:\n    break", [("while x:", "while not x:"), ("break", "continue")]),
        ("def f():\n    return x", [("return x", "return None")]),
    ],
)
def test_what_is_changed(source: str, expected: list[tuple[str, str]]) -> None:
    assert changes(source) == expected


@pytest.mark.parametrize(
    "source",
    [
        '"""A docstring of 3 < 4."""',
        "x: int",
        "def f(a: Literal[3]) -> Literal[4]: ...",
        "raise ValueError(f'{3 + 4} is not {not x}')",
        "if TYPE_CHECKING:\n    import a",
        "@dataclass(frozen=True)\nclass A(B, gc=False):\n    __slots__ = ('a',)",
        "def f():\n    return None",
        "x = 'text'",
    ],
)
def test_what_is_left_alone(source: str) -> None:
    assert changes(source) == []


SOURCE = """
def distance(a, b):
    if a < b:
        return b - a
    return a - b
"""


def run(mutant: Mutant) -> Callable[[int, int], int]:
    module = ModuleType("changed")
    exec(mutant.code("changed.py"), module.__dict__)
    return module.__dict__["distance"]  # type: ignore[no-any-return]


def test_each_mutant_is_one_change_and_leaves_the_others_as_they_were() -> None:
    found = find_mutants(SOURCE)
    assert [mutant.line for mutant in found] == [3, 3, 4, 4, 5, 5]
    first = [mutant.after for mutant in found]
    results = [[run(mutant)(2, 5), run(mutant)(5, 2), run(mutant)(2, 2)] for mutant in found]
    assert results == [[-3, -3, 0], [3, 3, 0], [None, 3, 0], [7, 3, 0], [3, None, None], [3, 7, 4]]
    assert [mutant.after for mutant in found] == first


def test_names_tell_mutants_apart_and_outlive_edits_elsewhere() -> None:
    names = [mutant.name for mutant in find_mutants(SOURCE)]
    assert len(set(names)) == 6 and names[0] == "distance: if a < b: -> if not a < b: (1)"
    longer = "import os\n\nx = 1 + 2\n" + SOURCE
    assert [mutant.name for mutant in find_mutants(longer) if mutant.name.startswith("distance")] == names
    twice = find_mutants("def f():\n    x = 1\n    x = 1")
    assert [mutant.name[-4:] for mutant in twice] == [" (1)", " (1)", " (2)", " (2)"]


def test_long_statements_are_cut_around_the_change() -> None:
    call = f"x = {' + '.join(f'name_{i}' for i in range(30))} + 1"
    mutant = find_mutants(call)[-1]
    assert mutant.after == "_24 + name_25 + name_26 + name_27 + name_28 + name_29 + 0"[-len(mutant.after) :]
    assert len(mutant.after) < 60 and mutant.before.endswith(" + 1")


def test_the_sample_is_fixed_and_spread_over_the_engine() -> None:
    some = _run_mutants.sample(100)
    assert [one[1].name for one in _run_mutants.sample(50)] == [one[1].name for one in some[:50]]
    assert len({file for file, _ in some}) > 10
    assert all(mutant.code(str(file)) for file, mutant in some[:20])


def test_the_lists_of_tests_are_right() -> None:
    modules = {file.stem for file in ENGINE.glob("*.py")} - {"__init__"}
    assert set(LIKELY) <= modules and all(file.exists() for file in FILES)
    assert all(name in NAMES for names in LIKELY.values() for name in names)
    for module in modules:
        likely, others = files_for(module)
        assert likely and set(likely) <= set(FILES), f"{module} has no test file of its name, and none in LIKELY"
        assert len(likely) + len(others) == len(FILES)


def test_the_files_are_not_touched_and_a_change_is_noticed_in_memory_only() -> None:
    """The free list forgets to count: its tests notice; a change that means the same, they do not."""
    file = ENGINE / "free_list.py"
    before = file.read_bytes(), file.stat().st_mtime_ns
    worse = next(mutant for mutant in find_mutants(file.read_text()) if mutant.before == "self.size -= 1")
    program = f"""
import os, sys
from pathlib import Path
from tests.prove._run_mutants import fork
from tests.prove import _run_mutants
_run_mutants.files_for = lambda module: ([Path("tests/test_free_list.py")], [Path("tests/test_queues.py")])
from tests.prove._mutations import find_mutants
file = Path({str(file)!r})
worse = next(mutant for mutant in find_mutants(file.read_text()) if mutant.name == {worse.name!r})
same = compile(file.read_text(), str(file), "exec")
endless = compile(file.read_text() + "\\nwhile True: pass", str(file), "exec")
for code in (worse.code(str(file)), same, endless):
    print(os.waitpid(fork(file, code, 1), 0)[1] != 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=_run_mutants.ROOT,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["True", "False", "True"], done.stderr
    assert (file.read_bytes(), file.stat().st_mtime_ns) == before


class TestProof:
    def test_nine_of_ten_hold(self) -> None:
        mutants.check({"mutants": 400, "killed": 360})
        with pytest.raises(AssertionError, match="359 of 400 mutants are killed, less than 90%"):
            mutants.check({"mutants": 400, "killed": 359})

    def test_survivors_are_listed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        lines = [{"seed": seed, "is_killed": seed != 6, "what": f"mutant {seed}"} for seed in (7, 5, 6)]
        fake = f"for line in {[json.dumps(line) for line in lines]!r}: print(line)"
        monkeypatch.setattr(mutants, "COMMAND", (sys.executable, "-c", fake))
        assert mutants.run_chunk(range(5, 8)) == {"mutants": 3, "killed": 2, "survivors": ["seed 6  mutant 6"]}

    def test_a_process_that_fails_says_why(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(mutants, "COMMAND", (sys.executable, "-c", "raise SystemExit('tests fail')"))
        with pytest.raises(AssertionError, match="ended with 1:\ntests fail"):
            mutants.run_chunk(range(2))

    def test_an_interrupt_ends_all_processes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its own and those that it started: both hold the writing end of a pipe, which is at its end without them."""
        fake = "import os, time; os.fork(); os.write(1, b'here\\n'); time.sleep(600)"
        monkeypatch.setattr(mutants, "COMMAND", (sys.executable, "-c", fake))
        pipes = []

        def interrupted(worker: subprocess.Popen[str]) -> None:
            assert worker.stdout is not None
            assert [worker.stdout.readline() for _ in range(2)] == ["here\n"] * 2
            pipes.append(os.dup(worker.stdout.fileno()))
            raise KeyboardInterrupt

        monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
        with pytest.raises(KeyboardInterrupt):
            mutants.run_chunk(range(2))
        assert os.read(pipes[0], 1) == b""
        os.close(pipes[0])
