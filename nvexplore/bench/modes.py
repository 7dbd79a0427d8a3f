"""What ``nvexplore bench`` can measure, and which options belong to what; any other option is refused, not ignored."""

from __future__ import annotations

import argparse
from typing import Any, Final, NamedTuple

from nvexplore.bench.serving import WORKLOADS
from nvexplore.command_error import CommandError

DECODE: Final = "decode"  # what is measured where no flag says something else
FLAGS: Final = ("kernels", "scheduler", "serving")  # modes, each chosen by its flag
_MODELS: Final = (DECODE, "serving")


class Option(NamedTuple):
    """modes: those that read it; default: what they read where it is not given, None too."""

    modes: tuple[str, ...]
    default: Any = None


# By the names that the parser gives them. The parser's own default is None for each, which is how one that was given
# can be told from one that was not. --json is of every mode.
OPTIONS: Final[dict[str, Option]] = {
    "peer": Option((DECODE, "serving", "scheduler")),
    "peer_path": Option(("serving", "scheduler")),
    "model": Option(_MODELS, "demo"),
    "dtype": Option(_MODELS),
    "batch": Option((DECODE,), (1, 8)),
    "prompt_len": Option((DECODE,), 64),
    "new_tokens": Option((DECODE,), 48),
    "passes": Option((*_MODELS, "scheduler")),
    "threads": Option(_MODELS),
    "workloads": Option(("serving",), WORKLOADS),
    "scale": Option(("serving",)),
    "rate": Option(("serving",)),
    "memory": Option(("serving",)),
    "option": Option(("serving",), ()),
    "plots": Option(("serving",)),
    "only_kernel": Option(("kernels",)),
    "rows": Option(("scheduler",), (8, 64, 256, 1024)),
    "block_size": Option(("scheduler",), (16, 256)),
    "blocks": Option(("scheduler",), (100_000, 400_000)),
}


def settle_mode(args: argparse.Namespace) -> str:
    """What ``args`` ask to measure; gives the options that nobody gave their defaults.

    CommandError where they ask for two things, or give an option that what they ask for would not read.
    """
    asked = [mode for mode in FLAGS if getattr(args, mode)]
    if len(asked) > 1:
        raise CommandError(f"--{asked[0]} and --{asked[1]} are two things to measure: give one of them")
    mode = asked[0] if asked else DECODE
    for name, option in OPTIONS.items():
        if getattr(args, name) is None:
            setattr(args, name, option.default)
        elif mode not in option.modes:
            raise CommandError(_refusal(args, name, option, mode))
    return mode


def _refusal(args: argparse.Namespace, name: str, option: Option, mode: str) -> str:
    flag, without = f"--{name.replace('_', '-')}", "without it"
    if name == "option":
        flag, without = f"{flag} {args.option[0][0]}=...", "with the defaults"
    if mode != DECODE:
        return f"{flag}: --{mode} measures {without}; leave one of the two out"
    if name == "peer_path":
        without = "beside transformers only"
    return f"{flag}: this measures {without}; add {' or '.join(f'--{each}' for each in sorted(option.modes))}"
