"""A progress bar that never fails a run."""

from __future__ import annotations

import warnings
from typing import Any


def progress_bar(total: int, enabled: bool) -> Any:
    """A tqdm bar over ``total`` tokens: a widget in a notebook that can show one, text elsewhere, nothing if off."""
    options: dict[str, Any] = {"total": total, "desc": "generate", "unit": "tok", "disable": not enabled}
    with warnings.catch_warnings():
        # tqdm warns where ipywidgets is missing; text is a fine second best.
        warnings.simplefilter("ignore")
        from tqdm.auto import tqdm as auto

        try:
            return auto(**options)
        except ImportError:
            from tqdm.std import tqdm as text

            return text(**options)
