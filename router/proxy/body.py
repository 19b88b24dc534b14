"""A client's JSON body: what the router needs to know of it, and what replicas get to see."""

import functools
from typing import Any, Final

import msgspec
from pydantic import TypeAdapter, ValidationError

from pagelet.protocol.openai.errors import ApiError, describe
from pagelet.protocol.openai.parse import without_mark

_ABSENT: Final = msgspec.Raw(b"null")
"""A field that is null counts as one that is not there."""
_PRIORITIES: Final = range(-(2**63), 2**63)
"""A replica says so of others."""
_MOST_ANSWERS: Final = 1 << 16
_MOST_TOKENS: Final = 1 << 32
"""No model has so long an answer; a replica says so of more."""


class _Fields(msgspec.Struct):
    """Left as they are until somebody needs them: a replica says what is wrong with them."""

    model: msgspec.Raw = _ABSENT
    pagelet: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    stream: msgspec.Raw = _ABSENT
    stream_options: msgspec.Raw = _ABSENT
    n: msgspec.Raw = _ABSENT
    best_of: msgspec.Raw = _ABSENT
    max_tokens: msgspec.Raw = _ABSENT
    max_completion_tokens: msgspec.Raw = _ABSENT
    max_output_tokens: msgspec.Raw = _ABSENT
    messages: msgspec.Raw = _ABSENT
    prompt: msgspec.Raw = _ABSENT
    input: msgspec.Raw = _ABSENT
    documents: msgspec.Raw = _ABSENT
    text_2: msgspec.Raw = _ABSENT
    cache_salt: msgspec.Raw = _ABSENT
    priority: msgspec.Raw = _ABSENT
    request_id: msgspec.Raw = _ABSENT
    previous_response_id: msgspec.Raw = _ABSENT
    background: msgspec.Raw = _ABSENT


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


_decoder = msgspec.json.Decoder(_Fields)
_any_json = TypeAdapter(Any)
_any_object = TypeAdapter(dict[str, Any])


class RequestBody:
    """A body that is a JSON object. Fields of a wrong type count as absent here."""

    def __init__(self, data: bytes) -> None:
        """Raises `ApiError` for what is no JSON object, and for a field that is the router's."""
        data = without_mark(data)
        try:
            data.decode()  # msgspec does not look into what it skips
            fields = _decoder.decode(data)
        except (UnicodeDecodeError, msgspec.MsgspecError, RecursionError) as error:
            raise _not_an_object(data, error) from None
        if fields.pagelet is not msgspec.UNSET:
            raise _api_error({"type": "extra_forbidden", "loc": ("pagelet",), "msg": ""})
        self.data = data
        self._fields = fields
        self.model: str | None = _decoded(fields.model, str)
        self.stream: bool = _decoded(fields.stream, bool) or False
        self.cache_salt: str | None = _decoded(fields.cache_salt, str)
        self.priority: int = _decoded(fields.priority, int) or 0
        self.request_id: str | None = _decoded(fields.request_id, str)
        self.previous_response_id: str | None = _decoded(fields.previous_response_id, str)
        self.background: bool = _decoded(fields.background, bool) or False
        self.before = b""
        """The items that came before `input`, as JSON, once they are known."""
        self.referenced = b""
        """The stored items that `input` refers to, a JSON object by id, once they are known."""
        self.n = min(max(1, _decoded(fields.n, int) or 1), _MOST_ANSWERS)

    def require_model(self) -> str:
        """The model's name. Raises `ApiError` as a replica would."""
        if self.model is not None:
            return self.model
        kind = "missing" if bytes(self._fields.model) == b"null" else "string_type"
        message = "Input should be a valid string"
        raise _api_error({"type": kind, "loc": ("model",), "msg": message})

    @property
    def max_tokens(self) -> int | None:
        """Of each answer; None if the request leaves it open."""
        fields = self._fields
        for raw in (fields.max_completion_tokens, fields.max_output_tokens, fields.max_tokens):
            value: int | None = _decoded(raw, int)
            if value is not None and value > 0:
                return min(value, _MOST_TOKENS)
        return None

    @property
    def includes_usage(self) -> bool:
        """Whether a stream is to end with its usage."""
        options: _StreamOptions | None = _decoded(self._fields.stream_options, _StreamOptions)
        return options is not None and bool(options.include_usage)

    @property
    def prompt_text(self) -> bytes:
        """What the request is about, as the client spelled it: prompts that begin alike do so
        here, too."""
        fields = self._fields
        if self.before:  # without its bracket, so that what goes on from this one begins alike
            return self.before[:-1] + b"," + bytes(fields.input)
        for raw in (
            *(fields.messages, fields.prompt, fields.input),
            *(fields.documents, fields.text_2),
        ):
            if (text := bytes(raw)) != b"null":
                return text
        return b""

    @property
    def num_answers(self) -> int:
        """`n` to each prompt, or `best_of` that are drawn. Far more than any replica takes count as
        no more than that."""
        drawn = max(self.n, _decoded(self._fields.best_of, int) or 1)
        return min(drawn * self._num_prompts, _MOST_ANSWERS)

    @property
    def _num_prompts(self) -> int:
        """Prompts of the batch."""
        raw = bytes(self._fields.prompt).lstrip()
        if not raw.startswith(b"["):
            return 1
        prompts = _decoded(self._fields.prompt, list[msgspec.Raw]) or []
        if prompts and bytes(prompts[0]).lstrip()[:1] in (b'"', b"["):
            return len(prompts)
        return 1

    def rename_model(self, name: str) -> None:
        """Lets replicas see another name."""
        fields = msgspec.json.decode(self.data, type=dict[str, msgspec.Raw])
        fields["model"] = msgspec.Raw(msgspec.json.encode(name))
        self.data = msgspec.json.encode(fields)

    def passed_on(self, *, takes_priority: bool, hints: bytes = b"") -> bytes:
        """What a replica gets to see: with the router's own field, `hints` being its JSON, and
        without a priority that the router's queue alone goes by."""
        data = self.data
        if self.priority and self.priority in _PRIORITIES and not takes_priority:
            data = self._without_priority()
        if not hints:
            return data
        brace = data.index(b"{") + 1
        comma = b"" if data[brace:].lstrip().startswith(b"}") else b","
        return b"".join((data[:brace], b'"pagelet":', hints, comma, data[brace:]))

    def _without_priority(self) -> bytes:
        fields = msgspec.json.decode(self.data, type=dict[str, msgspec.Raw])
        fields.pop("priority", None)
        return msgspec.json.encode(fields)


@functools.cache
def _decoder_of(type_: Any) -> "msgspec.json.Decoder[Any]":
    return msgspec.json.Decoder(type_ | None)


def _decoded(raw: msgspec.Raw, type_: Any) -> Any:
    if raw is _ABSENT:
        return None
    try:
        return _decoder_of(type_).decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        return None


def _not_an_object(data: bytes, why: Exception) -> ApiError:
    """The finding in the words of a replica, whose parser is pydantic's."""
    for adapter in (_any_json, _any_object):
        try:
            adapter.validate_json(data)
        except ValidationError as error:
            found: Any = error.errors(include_url=False, include_input=False)[0]
            return _api_error(found if found["type"] == "json_invalid" else _NO_OBJECT)
    # Such as NaN, which pydantic takes and JSON does not have.
    return _api_error({"type": "json_invalid", "loc": (), "msg": "", "ctx": {"error": str(why)}})


_NO_OBJECT = {"type": "model_type", "loc": (), "msg": ""}


def _api_error(finding: dict[str, Any]) -> ApiError:
    detail = describe(finding)
    return ApiError(400, detail.message, param=detail.param, code=detail.code, reason="invalid")
