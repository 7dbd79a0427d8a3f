"""Progress bars that never fail a run."""

from __future__ import annotations

import warnings
from typing import Any, Final

_LONG: Final = 1 << 30  # bytes: less is loaded before anyone wonders


def progress_bar(total: int, enabled: bool, *, desc: str = "generate", unit: str = "tok", **options: Any) -> Any:
    """A tqdm bar over ``total`` tokens: a widget in a notebook that can show one, text elsewhere, nothing if off."""
    options = {"total": total, "desc": desc, "unit": unit, "disable": not enabled, **options}
    with warnings.catch_warnings():
        # tqdm warns where ipywidgets is missing; text is a fine second best.
        warnings.simplefilter("ignore")
        from tqdm.auto import tqdm as auto

        try:
            return auto(**options)
        except ImportError:
            from tqdm.std import tqdm as text

            return text(**options)


class LoadProgress:
    """A bar for ``load_weights(..., progress=LoadProgress())`` that shows itself from ``at_least`` bytes on."""

    def __init__(self, enabled: bool = True, *, at_least: int = _LONG) -> None:
        self._enabled, self._at_least = enabled, at_least
        self._bar: Any = None

    def __call__(self, done: int, total: int) -> None:
        """Tell that ``done`` of ``total`` bytes are loaded; the bar ends with the last one."""
        if self._bar is None:
            shown = self._enabled and total >= self._at_least
            self._bar = progress_bar(total, shown, desc="load", unit="B", unit_scale=True, unit_divisor=1024)
        self._bar.update(done - self._bar.n)
        if done >= total:
            self._bar.close()
