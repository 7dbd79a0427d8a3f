"""``%config NvExplore``: what the magics assume where nothing is said."""

from __future__ import annotations

try:
    from traitlets import Bool, Float, Int, Unicode
    from traitlets.config import Configurable
except ModuleNotFoundError as error:
    raise ImportError(f'a session needs {error.name}: pip install "nvexplore[notebook]"') from error


class NvExplore(Configurable):
    """Defaults of the %nvx_ magics; show them with ``%config NvExplore``."""

    model = Unicode("demo", help="What %nvx_load loads: demo, a folder, or org/name.").tag(config=True)
    max_tokens = Int(64, min=1, help="Tokens that a request generates at most.").tag(config=True)
    temperature = Float(
        0.0, min=0.0, help="0 is greedy: the same prompt always gives the same text. Higher is more varied."
    ).tag(config=True)
    chat = Bool(False, help="Put prompts into the model's chat template, as --chat does.").tag(config=True)
    live_slice_ms = Float(
        30.0, min=1.0, help="A live run steps for so many milliseconds, then lets the notebook work."
    ).tag(config=True)
    live_hz = Float(0.0, min=0.0, help="Steps a second at most in a live run, for watching; 0 is no limit.").tag(
        config=True
    )
