"""What the client of a conversation that is too long can do about it."""

from pagelet.agent.http.conversation import fits_without_oldest
from pagelet.agent.http.server import Server
from pagelet.protocol.errors import InvalidRequest
from pagelet.protocol.openai.chat import ChatCompletionRequest
from pagelet.protocol.openai.responses import ResponseRequest


async def naming_truncation(
    error: InvalidRequest, server: Server, body: ResponseRequest, chat: ChatCompletionRequest
) -> InvalidRequest:
    """The error; if `truncation` would help, it says so. `chat` asks the same as `body`."""
    if error.code != "context_length_exceeded" or body.truncation == "auto":
        return error
    room = server.llm.max_model_len - (body.max_output_tokens or 1)
    if not await fits_without_oldest(server, chat, room):
        return error
    words = f"{error}, or give 'truncation': \"auto\", which leaves out what is oldest"
    return InvalidRequest(words, error.param, error.code)
