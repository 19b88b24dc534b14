"""What a person can do wrong, told in words that say what to change."""


class InvalidRequest(ValueError):
    """The request cannot be served as it is: HTTP 400. The message says what to change."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class ContextLengthExceeded(InvalidRequest):
    """More tokens than the model's context has room for.

    It begins as OpenAI's error does: clients that shorten conversations know it by these words.
    `max_tokens` is what was asked for; None where the prompt alone is too long."""

    def __init__(
        self,
        found: str,
        param: str,
        *,
        context_length: int,
        prompt_tokens: int,
        max_tokens: int | None = None,
    ) -> None:
        """`found` goes on from "but", and says what to change."""
        super().__init__(
            f"This model's maximum context length is {context_length} tokens, but {found}",
            param,
            "context_length_exceeded",
        )
        self.context_length = context_length
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens


class ModelSourceError(ValueError):
    """A model can't be found, read or used; the message names the file and says what to change."""
