"""``python -m tests.prove._run_mutants SEED ...``: which mutants the fast engine tests notice, one JSON line each.

A process of its own, so that it can fork: pytest is imported once, and each mutant lives and dies in a child. There
the changed module is compiled in memory and found in place of the file, before anything imports the engine; the files
are never touched. Limits are on the processor's time, not the clock's: other work on the machine kills no mutant.
"""

from __future__ import annotations

import hashlib
import importlib.abc
import importlib.util
import json
import os
import resource
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType

# What the tests need besides the engine, imported before the first fork.
import hypothesis  # noqa: F401
import msgspec  # noqa: F401
import numpy  # noqa: F401
import pytest
import xxhash  # noqa: F401

from tests.prove._engine_tests import ENGINE, ROOT, files_for
from tests.prove._mutations import Mutant, find_mutants

SAMPLE_SEED = 7
WORKERS = 2
LEAST_LIMIT = 5  # seconds of processor time a mutant; more where the tests themselves take long
WALL_LIMIT = 120  # for what waits and does not compute
MEMORY_LIMIT = 4 << 30
OPTIONS = ["-x", "-q", "--tb=no", "-p", "no:cacheprovider", "-o", "addopts=", "--import-mode=importlib"]


def sample(size: int) -> list[tuple[Path, Mutant]]:
    """The mutants that are tried: a random choice, but one that an edit changes only where it is made.

    Each mutant has its place by a hash of the seed and its own name; those with the smallest are chosen.
    """
    found = [(file, mutant) for file in sorted(ENGINE.glob("*.py")) for mutant in find_mutants(file.read_text("utf-8"))]
    return sorted(found, key=lambda one: _place(one[0].name, one[1].name))[:size]


def _place(file: str, name: str) -> bytes:
    return hashlib.sha256(f"{SAMPLE_SEED} {file} {name}".encode()).digest()


@dataclass
class InMemory(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds one module, and gives it ``code`` instead of what its file holds."""

    name: str
    file: Path
    code: CodeType

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        return importlib.util.spec_from_file_location(fullname, self.file, loader=self)

    def exec_module(self, module: ModuleType) -> None:
        exec(self.code, module.__dict__)


def run_tests(file: Path, code: CodeType | None, cpu_limit: int) -> int:
    """In a child: run the tests with ``code`` as the module of ``file``; 0 if they pass."""
    signal.alarm(WALL_LIMIT)
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_limit, cpu_limit + 1))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    silence = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(silence, stream)
    if code is not None:
        sys.meta_path.insert(0, InMemory(f"nvexplore.engine.{file.stem}", file, code))
    # One after the other: the others take longer to import than the likely ones take to notice the mutant.
    likely, others = ([*OPTIONS, f"--rootdir={ROOT}", *map(str, tests)] for tests in files_for(file.stem))
    return int(pytest.main(likely) or pytest.main(others))


def fork(file: Path, code: CodeType | None, cpu_limit: int) -> int:
    """Start a child that runs the tests; returns its process id."""
    pid = os.fork()
    if pid:
        return pid
    status = 70
    try:
        status = run_tests(file, code, cpu_limit)
    finally:
        os._exit(status)


def cpu_seconds_unchanged() -> float:
    """What the tests take on the code as it is; RuntimeError if they do not pass."""
    pid = fork(ENGINE / "engine.py", None, WALL_LIMIT)
    _, status, usage = os.wait4(pid, 0)
    if status:
        raise RuntimeError(f"the engine tests fail without any mutant (status {status})")
    return usage.ru_utime + usage.ru_stime


def run_mutants(mutants: list[tuple[Path, Mutant]], seeds: Sequence[int]) -> Iterator[tuple[int, bool]]:
    """(seed, whether its mutant was noticed) as they get done, WORKERS at a time."""
    running, parent = dict[int, int](), os.getppid()  # process id -> seed
    cpu_limit = max(LEAST_LIMIT, round(3 * cpu_seconds_unchanged()))
    try:
        for seed in seeds:
            if os.getppid() != parent:
                raise SystemExit("whoever asked is gone")
            file, mutant = mutants[seed]
            if len(running) == WORKERS:
                yield _next_done(running)
            running[fork(file, mutant.code(str(file)), cpu_limit)] = seed
        while running:
            yield _next_done(running)
    finally:
        for pid in running:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _next_done(running: dict[int, int]) -> tuple[int, bool]:
    pid, status = os.wait()
    return running.pop(pid), status != 0


def main(seeds: Sequence[int]) -> None:
    known = [name for name in sys.modules if name.startswith("nvexplore")]
    assert not known, f"imported before any mutant, which would stay as it is: {known}"
    mutants = sample(max(seeds) + 1)
    for seed, is_killed in run_mutants(mutants, seeds):
        file, mutant = mutants[seed]
        what = f"{file.name}:{mutant.line}  {mutant.before}  ->  {mutant.after}"
        print(json.dumps({"seed": seed, "is_killed": is_killed, "what": what}), flush=True)


if __name__ == "__main__":
    main([int(seed) for seed in sys.argv[1:]])
