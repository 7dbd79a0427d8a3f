"""The figures of a benchmark as JSON: in a file, whole or not at all, or as the whole of standard output."""

from __future__ import annotations

import json
import sys
from typing import Any

from nvexplore.command_error import CommandError
from nvexplore.whole_file import write_whole


def write_report(report: dict[str, Any], where: str) -> None:
    """Write it. where: a file, an older report perhaps, or ``-``; CommandError where nothing can be written there."""
    text = json.dumps(report, indent=2) + "\n"
    if where == "-":
        sys.stdout.write(text)
        return
    try:
        write_whole(where, text, replace=True)
    except OSError as error:
        raise CommandError(f"--json {where}: {error.strerror or error}") from None
