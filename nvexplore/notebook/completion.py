"""Tab completion behind %nvx_ magics: options, and what can stand behind each. Runs nothing, and knows no front end."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from IPython.core import completer

from nvexplore.engine.eviction import EVICTIONS
from nvexplore.engine.policy import POLICIES
from nvexplore.explore.until import EVENTS, NAMES
from nvexplore.notebook import prompts

if TYPE_CHECKING:
    from nvexplore.notebook.session import Session

_LINE = re.compile(r"\s*(?:[\w., ]+=\s*)?%{1,2}(?P<magic>nvx_\w+)\s(?P<rest>.*)", re.DOTALL)
# An option whose value has begun: a word, or all that follows an open quote.
_VALUE = re.compile(r"(?:^|\s)(?P<option>--?[a-z][\w-]*)(?:\s+|=)(?P<value>[\"'][^\"']*|[^\s\"']*)$")


class Completion:
    """A matcher for ``Completer.custom_matchers`` of a shell whose magics act on ``session``."""

    def __init__(self, shell: Any, session: Session) -> None:
        self._shell, self._session = shell, session

    def candidates(self, line: str, token: str) -> list[str]:
        """What may stand in place of ``token``, the end of ``line``; empty where this is no line of ours."""
        found = _LINE.fullmatch(line[: len(line) - len(token)])
        magic = None if found is None else self._shell.find_line_magic(found["magic"])
        parser: argparse.ArgumentParser | None = getattr(magic, "parser", None)
        if found is None or parser is None:
            return []
        name, before = found["magic"], found["rest"]
        if name == "nvx_add" and prompts.split(before)[1]:  # the prompt has begun
            return []
        options = {text: action for action in parser._actions for text in action.option_strings}
        behind = _VALUE.search(before)
        action = options.get(behind["option"]) if behind is not None else None
        if behind is not None and action is not None and action.nargs != 0:
            values = self._values(name, action, is_open=behind["value"][:1] in ("'", '"'))
        elif token.startswith("-"):
            values = [text for text in options if text.startswith("--")]
        else:
            places = [action for action in parser._actions if not action.option_strings]
            values = [value for action in places for value in self._values(name, action)] or list(options)
        return [value for value in values if value.startswith(token)]

    @property
    def matcher(self) -> Callable[[Any], Any] | None:
        """For IPython 8.6 and newer; older ones have no place for it."""
        decorate = getattr(completer, "context_matcher", None)

        def match(context: Any) -> dict[str, Any]:
            texts = self.candidates(context.text_until_cursor, context.token)
            found = [completer.SimpleCompletion(text=text, type="magic") for text in texts]
            return {"completions": found, "suppress": bool(found), "ordered": True}

        return None if decorate is None else decorate(identifier="nvexplore")(match)

    def _values(self, magic: str, action: argparse.Action, *, is_open: bool = False) -> Iterable[str]:
        if action.choices is not None:
            return list(action.choices)
        if action.dest == "ids":
            live_only = magic == "nvx_abort"
            return [r.request_id for r in self._session.requests if not (live_only and r.is_finished)]
        if action.dest == "until":
            return [*EVENTS, "step==", *(NAMES if is_open else ())]
        if action.dest == "var":
            own = self._shell.user_ns.keys() - self._shell.user_ns_hidden.keys()
            return [n for n in sorted(own) if isinstance(self._shell.user_ns[n], str | list | tuple) and n[0] != "_"]
        if action.dest == "option":
            from nvexplore.config import EngineConfig

            return [f"{name}=" for name in EngineConfig.model_fields]
        devices = ("auto", "cpu", "cuda")
        known: dict[str, Iterable[str]] = {"policy": POLICIES, "eviction": EVICTIONS, "device": devices}
        return known.get(action.dest, ("demo",) if action.dest == "model" else ())
