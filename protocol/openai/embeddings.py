"""Embeddings: `POST /v1/embeddings`."""

from typing import Annotated, Literal

from pydantic import Field

from pagelet.protocol.openai.completions import Prompt, prompts_of
from pagelet.protocol.openai.fields import Integer, null_means
from pagelet.protocol.openai.pooling import PoolingRequest

MOST_INPUTS = 2048
"""As in OpenAI's API."""


class EmbeddingRequest(PoolingRequest):
    """`input` is a text, token ids, or a list of either."""

    input: Prompt
    encoding_format: Annotated[Literal["float", "base64"], null_means("float")] = "float"
    dimensions: Annotated[Integer, Field(ge=1)] | None = None
    """Keep so many first numbers of each vector, which is then normalised again."""
    user: str | None = None

    def inputs(self) -> list[str | list[int]]:
        """Each a text or token ids."""
        return prompts_of(self.input)
