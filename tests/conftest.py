"""What holds for every test: no silent skip, fixed random examples, no network, browser tests last.

A test may be skipped (or expected to fail) only where ``skips.toml`` beside this file lists it with that
reason. Any other skip fails the run: it would look like a pass on the machine that checks, and test nothing.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from tests.notebook_fakes import Shell

HERE = Path(__file__).parent
RunPython = Callable[..., str]

# Every run tries the same examples: a random find belongs to `make prove`, not to an unrelated change. No
# deadline: the first example of a test often pays for an import.
settings.register_profile("fixed", derandomize=True, deadline=None, database=None, print_blob=True)
settings.load_profile("fixed")

# Before torch is loaded, and for the kernels and servers that tests start: threads that wait for each other must not
# spin, or a step of the demo model takes many times as long when the machine has other work.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# The hub's client reads this at its import: a test that asks for a model by name must not reach the network.
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def has_gpu() -> bool:
    """Whether torch can use a GPU. The driver is asked first: without one torch need not be imported to know."""
    try:
        ctypes.CDLL("libcuda.so.1")
        import torch
    except (OSError, ImportError):
        return False
    return torch.cuda.is_available()


# Triton reads this when a kernel is defined: without a GPU its interpreter runs them.
if not has_gpu():
    os.environ.setdefault("TRITON_INTERPRET", "1")


def allowed_skips(file: Path) -> list[tuple[re.Pattern[str], str]]:
    """Return ``skips.toml`` as pairs (pattern of test ids, text that the reason must contain)."""
    entries = tomllib.loads(file.read_text(encoding="utf-8")).get("skip", []) if file.exists() else []
    # Only * is special: brackets are part of the ids of parametrized tests.
    return [(re.compile(re.escape(entry["test"]).replace(r"\*", ".*")), entry["reason"]) for entry in entries]


def reason_of(report: pytest.TestReport | pytest.CollectReport) -> str | None:
    """Return why ``report`` is no real pass or failure, or None where it is one."""
    expected_to_fail = getattr(report, "wasxfail", None)
    if expected_to_fail is not None:
        return f"expected to fail: {expected_to_fail}"
    if report.outcome != "skipped":
        return None
    return report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)


class SkipList:
    """Collects the skips that are not listed, and fails the run where there are any."""

    def __init__(self, file: Path) -> None:
        self.allowed = allowed_skips(file)
        self.unlisted: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._look_at(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._look_at(report)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.unlisted and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.unlisted:
            terminalreporter.section("not run, and not listed in tests/skips.toml: the run fails", red=True)
            for line in self.unlisted:
                terminalreporter.line(line)

    def _look_at(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        reason = reason_of(report)
        if reason is None:
            return
        if not any(test.fullmatch(report.nodeid) and text in reason for test, text in self.allowed):
            self.unlisted.append(f"{report.nodeid}: {reason}")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(SkipList(HERE / "skips.toml"), "nvexplore-skip-list")


class WithoutTriton(pytest.Module):
    """A test module that imports kernels, where there is no Triton to import: one skip, which is listed."""

    def collect(self) -> Iterator[pytest.Item]:
        pytest.skip("triton is not installed")


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    if module_path.parent in (HERE / "kernels", HERE / "gpu") and find_spec("triton") is None:
        return WithoutTriton.from_parent(parent, path=module_path)
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # While Playwright's blocking interface is open an asyncio loop counts as running in the main thread, and
    # asyncio.run does not work beside it: tests that may share an open browser come after all the others.
    items.sort(key=lambda item: any(item.get_closest_marker(name) for name in ("browser", "lab")))


def plain_environment() -> dict[str, str]:
    """Return the environment for a process that must find only what is installed for its own interpreter."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


@pytest.fixture
def run_python(tmp_path: Path) -> RunPython:
    """Run code in a fresh interpreter outside the checkout, warnings are errors; returns what it printed."""

    def run(code: str, *, python: str | Path = sys.executable, env: dict[str, str] | None = None) -> str:
        done = subprocess.run(
            [python, "-W", "error", "-c", code],
            cwd=tmp_path,
            env=plain_environment() | (env or {}),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="module")
def one_shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """An IPython shell for all tests of a module; there can be one at a time."""
    from tests.notebook_fakes import Shell

    shell = Shell(str(tmp_path_factory.mktemp("ipython")))
    yield shell
    shell.close()


@pytest.fixture
def shell(one_shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    """It, with the magics of a session that has nothing loaded, and models that are none."""
    from tests.notebook_fakes import FakeLLM

    monkeypatch.setattr("nvexplore.llm.LLM", FakeLLM)
    monkeypatch.setattr(FakeLLM, "made", [])
    one_shell.run("%load_ext nvexplore")
    yield one_shell
    one_shell.run("%unload_ext nvexplore")
    one_shell.ip.config.pop("NvExplore", None)  # %config writes there too


@pytest.fixture
def loaded(shell: Shell) -> Shell:
    """The shell once something is loaded: ``llm``, and its ``session``."""
    shell.run("loaded = %nvx_load -o llm", "session = loaded.session")
    return shell
