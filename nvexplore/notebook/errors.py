"""What the notebook side raises. Knows nothing else."""


class SessionError(RuntimeError):
    """What cannot be done now, in a sentence for the person at the keyboard."""


NO_MODEL = "no model is loaded: use %nvx_load (or Session.load) first"
