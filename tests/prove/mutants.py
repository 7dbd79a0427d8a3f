"""Nine of ten small slips in nvexplore/engine would be noticed by its fast tests within seconds.

Mutation testing: each seed is one mutant (see ``_mutations``) of a fixed random sample. It is killed if a test fails or
if the tests run into a limit of time or memory; those that survive are listed. Some survivors mean the same as the
original (a bound that is only a hint, an attribute that is set twice), so not all can be killed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

from tests.prove import Figures, Proof
from tests.prove._engine_tests import FILES, ROOT

VOLUME = 400
LEAST_KILLED = 0.9
COMMAND = (sys.executable, "-m", "tests.prove._run_mutants")


def run_chunk(seeds: range) -> Figures:
    """Run the mutants in a process group of their own, and end all of it whatever happens here."""
    with subprocess.Popen(
        [*COMMAND, *map(str, seeds)],
        cwd=ROOT,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as worker:
        try:
            out, errors = worker.communicate()
        except BaseException:
            os.killpg(worker.pid, signal.SIGKILL)
            raise
    assert worker.returncode == 0, f"the mutants' process ended with {worker.returncode}:\n{errors}"
    results = [json.loads(line) for line in out.splitlines()]
    assert sorted(result["seed"] for result in results) == list(seeds)
    survivors = [result for result in sorted(results, key=lambda result: result["seed"]) if not result["is_killed"]]
    return {
        "mutants": len(results),
        "killed": len(results) - len(survivors),
        "survivors": [f"seed {result['seed']}  {result['what']}" for result in survivors],
    }


def check(figures: Figures) -> None:
    """At least LEAST_KILLED of all mutants."""
    killed, mutants = figures["killed"], figures["mutants"]
    assert isinstance(killed, int) and isinstance(mutants, int)
    assert killed >= LEAST_KILLED * mutants, f"{killed} of {mutants} mutants are killed, less than {LEAST_KILLED:.0%}"


PROOF = Proof(
    "mutants",
    "The engine's fast tests notice 9 of 10 mutants",
    VOLUME,
    8,
    run_chunk,
    chunk=20,
    check=check,
    tests=FILES,
)
