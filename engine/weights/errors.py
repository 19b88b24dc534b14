"""The one exception class of everything that can be wrong with a model's files."""


class ModelSourceError(ValueError):
    """A model can't be found, read or used; the message names the file and says what to change."""
