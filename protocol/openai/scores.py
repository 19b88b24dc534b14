"""How well texts answer one another: `POST /v1/score` and `POST /v1/rerank` (shapes as in vLLM, and
of the second as in Jina's and Cohere's API)."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from pagelet.protocol.openai.fields import (
    Integer,
    RequestBody,
    StringOrStrings,
    invalid,
    null_means,
    one_of,
)
from pagelet.protocol.openai.pooling import PoolingRequest

MOST_TEXTS = 2048


class ScoreRequest(PoolingRequest):
    """Each text of the first list with the one in its place in the second, or one with all.
    `queries` and `documents` are other names of `text_1` and `text_2`."""

    text_1: Annotated[StringOrStrings, Field(min_length=1)] | None = None
    text_2: Annotated[StringOrStrings, Field(min_length=1)] | None = None
    queries: Annotated[StringOrStrings, Field(min_length=1)] | None = None
    documents: Annotated[StringOrStrings, Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _pairs(self) -> "ScoreRequest":
        for name, other in (("text_1", "queries"), ("text_2", "documents")):
            if (getattr(self, name) is None) == (getattr(self, other) is None):
                raise invalid(name, f"or {other!r} must be given, and not both")
        first, second = self.texts()
        if len(first) not in (1, len(second)):
            raise invalid(
                "text_1",
                f"must be one text, or as many as 'text_2' has: {len(second)}, not {len(first)}",
            )
        return self

    def texts(self) -> tuple[list[str], list[str]]:
        """Both lists."""
        return self.text_1 or self.queries or [], self.text_2 or self.documents or []

    @property
    def names(self) -> tuple[str, str]:
        """The fields that have them."""
        return "text_1" if self.text_1 else "queries", "text_2" if self.text_2 else "documents"


class Document(RequestBody):
    """A document as an object."""

    text: str


def _as_object(document: Any) -> Any:
    return {"text": document} if isinstance(document, str) else document


class RerankRequest(PoolingRequest):
    """`documents` in the order of their relevance to `query`."""

    query: str
    documents: Annotated[
        list[Annotated[Document, BeforeValidator(_as_object), one_of(str, dict)]],
        Field(min_length=1, max_length=MOST_TEXTS, fail_fast=True),
    ]
    top_n: Annotated[Integer, Field(ge=0)] | None = None
    """Answer with so many; 0 or none: with all."""
    return_documents: Annotated[bool, null_means(True)] = True

    def texts(self) -> list[str]:
        """Of the documents."""
        return [document.text for document in self.documents]
