"""Every line and every branch of nvexplore/engine is run by its fast tests.

One seed: the tests in a process of their own under pytest-cov. What is left out is what coverage leaves out by itself:
``if TYPE_CHECKING`` and bodies that are ``...``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.prove import Figures, Proof
from tests.prove._engine_tests import FILES, ROOT

# Without the plugins and options that other tests need: they only take time.
OPTIONS = ("-q", "-p", "pytest_cov", "-p", "no:cacheprovider", "-o", "addopts=", "--import-mode=importlib")
MEASURE = ("--cov=nvexplore.engine", "--cov-branch")


def run_chunk(seeds: range) -> Figures:
    """See the module."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "coverage.json"
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *OPTIONS, *MEASURE, f"--cov-report=json:{report}", *map(str, FILES)],
            cwd=ROOT,
            env=os.environ | {"COVERAGE_FILE": str(Path(folder) / "data"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"the engine tests fail:\n{done.stdout}{done.stderr}"
        measured = json.loads(report.read_text(encoding="utf-8"))
    missing = [line for name, file in sorted(measured["files"].items()) for line in missing_of(name, file)]
    assert not missing, "never run by the engine's fast tests:\n" + "\n".join(missing)
    totals = measured["totals"]
    assert totals["percent_covered"] == 100.0 and totals["num_branches"] > 100
    return {"files": len(measured["files"]), "lines": totals["num_statements"], "branches": totals["num_branches"]}


def missing_of(name: str, file: dict[str, Any]) -> list[str]:
    """What did not run of one file: ``file:line`` and ``file:line -> line``, which is 0 for the end of a function."""
    lines = [f"{name}:{line}" for line in file["missing_lines"]]
    ran = set(file["executed_lines"])
    return lines + [f"{name}:{a} -> {max(b, 0)}" for a, b in file["missing_branches"] if a in ran]


PROOF = Proof(
    "coverage", "The engine's fast tests run every line and branch of it", 1, 1, run_chunk, chunk=1, tests=FILES
)
