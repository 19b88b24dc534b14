"""What a person can do wrong, told in words that say what to change."""


class InvalidRequest(ValueError):
    """The request cannot be served as it is: HTTP 400. The message says what to change."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class ModelSourceError(ValueError):
    """A model can't be found, read or used; the message names the file and says what to change."""
