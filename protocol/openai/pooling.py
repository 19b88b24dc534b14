"""What requests for vectors and scores have in common."""

from typing import Any

from pagelet.protocol.openai.fields import Integer, RequestBody, invalid
from pagelet.protocol.openai.routing import RouterHints


class PoolingRequest(RequestBody):
    """Fields of `/v1/embeddings`, `/v1/score` and `/v1/rerank`; the extensions are vLLM's."""

    model: str
    truncate_prompt_tokens: Integer | None = None
    """Keep so many tokens of each prompt's end; -1: as many as the model takes."""
    add_special_tokens: bool | None = None
    priority: Integer | None = None
    cache_salt: str | None = None
    request_id: str | None = None
    pagelet: RouterHints | None = None

    def model_post_init(self, context: Any) -> None:
        """Raises for hints that only answers have."""
        hints = self.pagelet
        if hints is not None and (hints.resume or hints.journal or hints.prompt_token_ids):
            raise invalid("pagelet", "has hints here that are for generated answers only")
