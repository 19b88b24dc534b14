"""What the streams of both APIs share: the constant part of a chunk, encoded once, and usage."""

from collections.abc import Callable
from typing import Any

import msgspec

from pagelet.engine.outputs import RequestOutput
from pagelet.protocol.openai.common import Usage, make_usage
from pagelet.protocol.openai.generation import GenerationRequest
from pagelet.protocol.openai.routing import ResumedAnswer

DONE = b"data: [DONE]\n\n"
encode_json = msgspec.json.encode


class UsageSoFar:
    """Usage while the answers are under way."""

    def __init__(self) -> None:
        self._prompts: dict[int, tuple[int, int]] = {}
        self._generated: dict[tuple[int, int], int] = {}
        self._thinking: dict[tuple[int, int], int] = {}

    def resume(
        self,
        number: int,
        index: int,
        prompt_tokens: int,
        before: ResumedAnswer,
        thinking_tokens: int,
    ) -> None:
        """Takes in what another replica had generated of answer `index` of prompt `number`."""
        if index == 0 or number not in self._prompts:
            self._prompts[number] = (prompt_tokens, before.cached_tokens or 0)
        self._generated[number, index] = len(before.token_ids)
        self._thinking[number, index] = thinking_tokens

    def note(self, number: int, output: RequestOutput) -> Usage:
        """Takes in a delta of prompt `number`."""
        self._generated[number, output.index] = output.num_generated_tokens
        self._thinking[number, output.index] = output.num_thinking_tokens
        if output.index == 0 or number not in self._prompts:
            self._prompts[number] = (output.num_prompt_tokens, output.num_cached_tokens)
        prompt_tokens = sum(tokens for tokens, _ in self._prompts.values())
        cached_tokens = sum(cached for _, cached in self._prompts.values())
        return make_usage(
            prompt_tokens,
            sum(self._generated.values()),
            cached_tokens,
            sum(self._thinking.values()),
        )


class ChunkFrame:
    """Encodes the chunks of one stream; `final_usage` is asked once all answers have ended."""

    def __init__(
        self,
        body: GenerationRequest,
        *,
        response_id: str,
        object_name: str,
        created: int,
        final_usage: Callable[[], Usage],
    ) -> None:
        fields = {
            "id": response_id,
            "object": object_name,
            "created": created,
            "model": body.model,
        }
        self._head = b"data: " + encode_json(fields)[:-1] + b',"choices":['
        self._includes_usage = body.includes_usage
        self._final_usage = final_usage
        self._so_far = UsageSoFar() if body.includes_continuous_usage else None
        self.plain_tail = b"]" + (b',"usage":null' if body.includes_usage else b"") + b"}\n\n"
        """What follows a choice in a chunk without usage."""
        self.shows_all = self._so_far is not None or bool(body.return_token_ids)
        """Whether chunks carry more than text."""

    def resume(
        self,
        number: int,
        index: int,
        prompt_tokens: int,
        before: ResumedAnswer,
        thinking_tokens: int = 0,
    ) -> None:
        """An answer goes on that another replica began."""
        if self._so_far is not None:
            self._so_far.resume(number, index, prompt_tokens, before, thinking_tokens)

    def plain_head(self, choice_start: bytes) -> bytes:
        """What precedes the text in the chunks of one choice."""
        return self._head + choice_start

    def chunk(self, number: int, output: RequestOutput, choice: dict[str, Any]) -> bytes:
        """A chunk with one choice, and the usage so far if it was asked for."""
        start = self._head + encode_json(choice)
        if self._so_far is None:
            return start + self.plain_tail
        usage = self._so_far.note(number, output)
        return start + b'],"usage":' + usage.model_dump_json().encode() + b"}\n\n"

    def end(self) -> bytes:
        """The usage, if it was asked for, and the end."""
        if not self._includes_usage:
            return DONE
        usage = self._final_usage().model_dump_json().encode()
        return self._head + b'],"usage":' + usage + b"}\n\n" + DONE
