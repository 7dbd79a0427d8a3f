"""The error that commands end with. Apart, since ``python -m nvexplore.cli`` runs that module under another name."""


class CommandError(Exception):
    """What went wrong, in one sentence for the person at the terminal."""
