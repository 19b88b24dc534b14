"""What is the same for all requests of a conversation, and for hardly any other."""

import msgspec

_HEAD_BYTES = 1024


class _Message(msgspec.Struct):
    role: str = ""
    content: msgspec.Raw = msgspec.Raw(b"")


class _Fields(msgspec.Struct):
    messages: list[_Message] = []
    prompt: msgspec.Raw = msgspec.Raw(b"")
    input: msgspec.Raw = msgspec.Raw(b"")
    user: str | None = None


_decoder = msgspec.json.Decoder(_Fields)


def conversation_key(body: bytes, session: str | None) -> bytes:
    """Of a request's JSON: its session if it names one, else its `user`, else how it begins.

    A chat's later turns repeat all that was said before, so its beginning is what comes up to the
    first message of the user: system prompts alone may be the same for all. Of other prompts it is
    the first kilobyte. A body whose fields have other types is a conversation of its own.
    """
    if session:
        return b"session " + session.encode("utf-8", "surrogatepass")
    try:
        fields = _decoder.decode(body)
    except (msgspec.MsgspecError, RecursionError):
        return body
    if fields.user:
        return b"user " + fields.user.encode("utf-8", "surrogatepass")
    if not fields.messages:
        return b"prompt " + (bytes(fields.prompt) or bytes(fields.input))[:_HEAD_BYTES]
    parts = []
    for message in fields.messages:
        parts.append(bytes(message.content))
        if message.role == "user":
            break
    return b"chat " + b"\0".join(parts)
