"""Runs proofs, keeps what is finished, and names the seed of what fails. Knows nothing of what is proved."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from tests.prove import Figures, Proof, combine
from tests.prove._chunks import run_chunks

# What else a result depends on than this checkout.
PACKAGES = ("numpy", "torch", "transformers")
REPORT_EVERY = 30.0  # seconds, where no terminal shows the running line


def source_key(root: Path) -> str:
    """Return a hash of what a result depends on: the package, what the proofs use of tests/, and versions.

    Other tests (test_*.py) are left out, so that writing one does not throw away hours of proof.
    """
    digest = hashlib.sha256(sys.version.encode())
    for name in PACKAGES:
        try:
            digest.update(f"{name} {metadata.version(name)}\n".encode())
        except metadata.PackageNotFoundError:
            digest.update(f"no {name}\n".encode())
    for folder in ("nvexplore", "tests"):
        for file in sorted((root / folder).rglob("*.py")):
            if not file.name.startswith("test_") and file.name != "conftest.py":
                digest.update(f"{file.relative_to(root)}\0".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _key_of(tests: Iterable[Path]) -> str:
    """What a result depends on besides: the test files that the proof runs."""
    contents = [file.read_bytes() for file in tests]
    return f" tests {hashlib.sha256(b''.join(contents)).hexdigest()[:16]}" if contents else ""


@dataclass
class Store:
    """The finished chunks of one proof, in a JSON file {"key", "chunks": {"0:50": {"seconds", "figures"}}}.

    A file whose key is another (older code, other chunks) counts as empty and is replaced by the first save.
    """

    file: Path
    key: str
    chunks: dict[str, tuple[float, Figures]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            saved = json.loads(self.file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return
        if saved["key"] == self.key:
            self.chunks = {name: (one["seconds"], one["figures"]) for name, one in saved["chunks"].items()}

    def __contains__(self, seeds: range) -> bool:
        return f"{seeds.start}:{seeds.stop}" in self.chunks

    def add(self, seeds: range, seconds: float, figures: Figures) -> None:
        """Keep a finished chunk; an interrupt while writing leaves the file as it was."""
        self.chunks[f"{seeds.start}:{seeds.stop}"] = (seconds, figures)
        chunks = {name: {"seconds": s, "figures": dict(f)} for name, (s, f) in self.chunks.items()}
        self.file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self.file.with_suffix(".part")
        unfinished.write_text(json.dumps({"key": self.key, "chunks": chunks}, indent=1), encoding="utf-8")
        os.replace(unfinished, self.file)

    def figures(self) -> dict[str, Any]:
        """Return the figures of all finished chunks, in the order of their seeds, combined."""
        in_order = sorted(self.chunks.items(), key=lambda item: int(item[0].split(":")[0]))
        return combine(figures for _, (_, figures) in in_order)

    def seconds(self) -> float:
        """Return what the finished chunks took, over all runs."""
        return sum(seconds for seconds, _ in self.chunks.values())


def failing_seeds(proof: Proof, seeds: range) -> dict[int, str]:
    """Try each seed by itself and return the traceback of each that fails."""
    failures = {}
    for seed in seeds:
        try:
            proof.run_chunk(range(seed, seed + 1))
        except Exception:
            failures[seed] = traceback.format_exc()
    return failures


def show(figures: Figures) -> str:
    """Return figures as ``name value``, with commas between; of lists the length, and their lines below."""
    counts = {name: len(value) if isinstance(value, list) else value for name, value in figures.items()}
    text = ", ".join(f"{k} {v:,.3g}" if isinstance(v, float) else f"{k} {v:,}" for k, v in counts.items())
    lines = [f"    {line}" for value in figures.values() if isinstance(value, list) for line in value]
    return "\n".join([text, *lines])


def prove(proof: Proof, store: Store) -> bool:
    """Run what is left of ``proof`` up to the first bad chunk, print its result, return whether it holds."""
    print(f"{proof.name}: {proof.title}")
    done = sum(len(seeds) for seeds in proof.chunks() if seeds in store)
    if done:
        print(f"  {done:,} of {proof.volume:,} were done before, in {store.seconds():.0f} s")
    told = time.monotonic()
    for seeds, seconds, figures, trace in run_chunks(proof, [seeds for seeds in proof.chunks() if seeds not in store]):
        if trace:
            _report(proof, seeds, trace)
            return False
        store.add(seeds, seconds, figures)
        done += len(seeds)
        if sys.stdout.isatty():
            print(f"\r  {done:,} of {proof.volume:,}", end="", flush=True)
        elif time.monotonic() - told > REPORT_EVERY:
            told = time.monotonic()
            print(f"  {done:,} of {proof.volume:,}", flush=True)
    lead = "\r" if sys.stdout.isatty() else ""
    figures, reason = store.figures(), _refusal(proof, store.figures())
    verdict = f"FAILS over all seeds: {reason}" if reason else f"holds: seeds 0 to {proof.volume - 1:,}"
    print(f"{lead}  {verdict}, {store.seconds():.1f} s; {show(figures)}")
    return not reason


def _refusal(proof: Proof, figures: Figures) -> str:
    """Why ``proof.check`` does not accept the figures of all chunks; empty if it does."""
    try:
        if proof.check is not None:
            proof.check(figures)
    except Exception as error:
        return str(error) or repr(error)
    return ""


def _report(proof: Proof, seeds: range, trace: str) -> None:
    failures = failing_seeds(proof, seeds)
    if not failures:
        print(f"  FAILS for the seeds {seeds.start} to {seeds.stop - 1} together, for none alone:\n{trace}")
        return
    seed, trace = next(iter(failures.items()))
    print(f"  FAILS for seed {', '.join(map(str, failures))}; the first:\n{trace}")
    print(f"  replay: python -m tests.prove --only {proof.name} --seed {seed}")


def prove_all(proofs: Iterable[Proof], root: Path, results: Path) -> int:
    """Run ``proofs`` one after the other, keep their results in ``results``, and return the exit status."""
    key, started, failed = source_key(root), time.monotonic(), []
    proofs = list(proofs)
    try:
        for proof in proofs:
            own_key = f"{key} volume {proof.volume} chunk {proof.chunk}{_key_of(proof.tests)}"
            if not prove(proof, Store(results / f"{proof.name}.json", own_key)):
                failed.append(proof.name)
    except KeyboardInterrupt:
        print("\ninterrupted; the same command goes on from here")
        return 130
    verdict = f"FAILED: {', '.join(failed)}" if failed else "all hold"
    print(f"{verdict}; proofs: {len(proofs)}, {time.monotonic() - started:.1f} s in this run")
    return 1 if failed else 0
