"""``%load_ext nvexplore`` and its undoing: what load adds to a shell, unload removes exactly.

IPython has no call that unregisters a magic, so this module remembers what it added.

The session outlives a reload: its engine, or its recording. Unloading lets go of it at the end of the cell, unless the
extension is back by then, and that is how %reload_ext differs from %unload_ext. Nothing is left in either case.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from copy import deepcopy
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from nvexplore.notebook.completion import Completion
from nvexplore.notebook.magics import SessionMagics
from nvexplore.notebook.magics_file import FileMagics
from nvexplore.notebook.magics_model import ModelMagics
from nvexplore.notebook.magics_run import RunMagics
from nvexplore.notebook.magics_show import ShowMagics
from nvexplore.notebook.manual import ManualLines
from nvexplore.notebook.prompts import PromptLines
from nvexplore.notebook.session import Session
from nvexplore.notebook.settings import NvExplore

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

MAGICS: tuple[type[SessionMagics], ...] = (ModelMagics, RunMagics, ShowMagics, FileMagics)
# Sessions of shells that were unloaded in the cell that is running.
_leaving: WeakKeyDictionary[Any, _Leaving] = WeakKeyDictionary()
_ATTRIBUTE = "_nvexplore_extension"
CONFIG = NvExplore.__name__


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Add the magics and ``%config NvExplore``. Loading what is loaded changes nothing.

    Where OMP_WAIT_POLICY is not set it becomes PASSIVE, for a torch that is imported from now on; that stays.
    """
    if _loaded(shell) is not None:
        return
    # Threads that spin while they wait for each other make a step on a CPU with other work take many times as long.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    leaving = _leaving.get(shell)
    session = Session(NvExplore(parent=shell)) if leaving is None else leaving.stay()
    extension = Extension(shell, session)
    extension.add()
    setattr(shell, _ATTRIBUTE, extension)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Remove what load added; the engine is closed at the end of the cell unless the extension is loaded again."""
    extension = _loaded(shell)
    if extension is None:
        return
    delattr(shell, _ATTRIBUTE)
    extension.remove()
    _Leaving(shell, extension.session)


def active_session(shell: InteractiveShell) -> Session | None:
    """The session that the shell's magics act on; None where the extension is not loaded."""
    extension = _loaded(shell)
    return None if extension is None else extension.session


class Extension:
    """Everything that one shell got."""

    def __init__(self, shell: InteractiveShell, session: Session) -> None:
        self._shell, self.session = shell, session
        self._magics: list[SessionMagics] = []
        self._lines = (PromptLines(), ManualLines())
        self._matcher = Completion(shell, session).matcher
        self._config: Any = None

    def add(self) -> None:
        shell: Any = self._shell  # IPython's own annotation of configurables is wrong
        shell.configurables.append(self.session.settings)
        self._config = deepcopy(shell.config.get(CONFIG))
        shell.input_transformers_cleanup.extend(self._lines)
        if self._matcher is not None:
            shell.Completer.custom_matchers.append(self._matcher)
        for kind in MAGICS:
            magics = kind(shell, self.session)  # joins shell.configurables by itself
            self._magics.append(magics)
            shell.register_magics(magics)

    def remove(self) -> None:
        shell: Any = self._shell
        manager = shell.magics_manager
        shell.configurables.remove(self.session.settings)
        shell.config.pop(CONFIG, None)  # what %config has put there
        if self._config is not None:
            shell.config[CONFIG] = self._config
        for lines in self._lines:
            shell.input_transformers_cleanup.remove(lines)
        if self._matcher is not None:
            shell.Completer.custom_matchers.remove(self._matcher)
        for magics in self._magics:
            shell.configurables.remove(magics)
            if manager.registry.get(type(magics).__name__) is magics:
                del manager.registry[type(magics).__name__]
            for kind, name, function in _each(magics.magics):
                if manager.magics[kind].get(name) == function:
                    del manager.magics[kind][name]


class _Leaving:
    """A session on its way out: closed when the cell is over, unless ``stay()`` comes first."""

    def __init__(self, shell: InteractiveShell, session: Session) -> None:
        self._shell, self._session = shell, session
        _leaving[shell] = self
        shell.events.register("post_execute", self.close)

    def stay(self) -> Session:
        """Back again: nothing is left of this."""
        del _leaving[self._shell]
        self._shell.events.unregister("post_execute", self.close)
        return self._session

    def close(self) -> None:
        self.stay().close()


def _loaded(shell: InteractiveShell) -> Extension | None:
    extension: Extension | None = getattr(shell, _ATTRIBUTE, None)
    return extension


def _each(magics: dict[str, dict[str, Any]]) -> Iterator[tuple[str, str, Any]]:
    return ((kind, name, function) for kind, table in magics.items() for name, function in table.items())
