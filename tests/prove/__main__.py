"""``python -m tests.prove``: run the proofs in full, or one of them, or one seed again."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.prove import discover
from tests.prove._runner import prove_all, show

ROOT = Path(__file__).resolve().parents[2]


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0 when everything holds, 1 when something does not, 130 after an interrupt."""
    parser = argparse.ArgumentParser(prog="python -m tests.prove", description=__doc__)
    parser.add_argument("--only", action="append", metavar="NAME", help="this proof (can be given again)")
    parser.add_argument("--seed", type=int, help="run this seed of --only NAME; an error shows its traceback")
    parser.add_argument("--list", action="store_true", help="name the proofs and their volumes")
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "prove", help="(%(default)s)")
    parser.add_argument("--fresh", action="store_true", help="begin anew")
    args = parser.parse_args(argv)

    proofs = {proof.name: proof for proof in discover()}
    unknown = [name for name in args.only or () if name not in proofs]
    if unknown or not proofs:
        parser.error(f"no proof {', '.join(unknown)}; there are: {', '.join(proofs) or 'none'}")
    chosen = [proofs[name] for name in args.only or proofs]
    if args.list:
        for proof in chosen:
            print(f"{proof.name:<16} {proof.volume:>6,}  {proof.title}")
        return 0
    if args.seed is not None:
        if len(chosen) != 1:
            parser.error("--seed needs one --only NAME")
        print(show(chosen[0].run_chunk(range(args.seed, args.seed + 1))) or "holds")
        return 0
    if args.fresh:
        for proof in chosen:
            (args.results / f"{proof.name}.json").unlink(missing_ok=True)
    return prove_all(chosen, ROOT, args.results)


if __name__ == "__main__":
    sys.exit(main())
