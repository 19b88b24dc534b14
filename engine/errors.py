"""Errors that end an engine."""


class ConfigurationError(ValueError):
    """These options cannot work on this machine or with this model; starting again would not help.
    The message says what to change and by how much."""


class ExecutorFailed(RuntimeError):
    """A worker died or raised: this engine core is over, a new one may work."""
