"""Chat templates: Jinja programs that come with a model and spell a conversation as its prompt.

They see what transformers gives them. The template itself is trusted as much as the model; what a
client sends is only ever data, and the environment is sandboxed besides.
"""

import datetime
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from pagelet.protocol.errors import InvalidRequest, ModelSourceError

Message = Mapping[str, Any]
"""`role`, `content`, and perhaps `name`, `tool_calls`, `tool_call_id`, as in OpenAI's API."""

RESERVED_NAMES: Final = frozenset(
    {"messages", "tools", "add_generation_prompt", "raise_exception", "strftime_now", "range"}
)
"""What `chat_template_kwargs` of a request must not set."""

_DATA_ERRORS: Final = (
    *(ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError),
)
"""What a template raises on data that it was not made for."""
_TEXT_PARTS: Final = frozenset({"text", "input_text", "output_text"})
_PROBE: Final = "pagelet-probe"


class ChatTemplate:
    """A compiled template. Raises ModelSourceError if it is not valid Jinja."""

    def __init__(self, source: str, special_tokens: Mapping[str, str] | None = None) -> None:
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ModelSourceError(
                f"chat template, line {error.lineno}: {error.message}; correct it or give another "
                "with --chat-template"
            ) from error
        self.source = source
        self._special_tokens = dict(special_tokens or {})
        self.takes_parts = self._shows([{"type": "text", "text": _PROBE}])
        """Whether `content` may be a list of parts, as in OpenAI's API."""
        self.takes_strings = self._shows(_PROBE) or not self.takes_parts
        """Whether `content` may be a string."""

    @functools.cached_property
    def variables(self) -> frozenset[str]:
        """The names of what a request may set in it."""
        environment = _environment()
        found = jinja2.meta.find_undeclared_variables(environment.parse(self.source))
        given = RESERVED_NAMES | environment.globals.keys() | self._special_tokens.keys()
        return frozenset(found - given)

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **template_kwargs: Any,
    ) -> str:
        """The prompt of a conversation, special tokens spelled out in it.

        `template_kwargs` are variables of the template, such as `documents` or `enable_thinking`.
        Raises InvalidRequest, with the template's own words if it refuses the conversation.
        """
        if reserved := RESERVED_NAMES & template_kwargs.keys():
            raise InvalidRequest(
                f"chat_template_kwargs must not set {', '.join(sorted(reserved))}",
                "chat_template_kwargs",
            )
        normalised = [self._normalise(message, i) for i, message in enumerate(messages)]
        try:
            return self._render(
                messages=normalised,
                tools=list(tools) if tools else None,
                add_generation_prompt=add_generation_prompt,
                **template_kwargs,
            )
        except jinja2.TemplateError as error:
            raise InvalidRequest(f"chat template: {error.message}", "messages") from error
        except _DATA_ERRORS as error:
            raise InvalidRequest(
                f"the chat template cannot render this conversation: {error}", "messages"
            ) from error

    def _render(self, **variables: Any) -> str:
        return self._template.render({**self._special_tokens, **variables})

    def _shows(self, content: object) -> bool:
        """Whether text shows, and only the text, when it is given in this form."""
        try:
            prompt = self._render(
                messages=[{"role": "user", "content": content}],
                tools=None,
                add_generation_prompt=True,
            )
        except Exception:  # any failure of the template says no
            return False
        return _PROBE in prompt and f"'{_PROBE}'" not in prompt and f'"{_PROBE}"' not in prompt

    def _normalise(self, message: Message, index: int) -> dict[str, Any]:
        normalised = dict(message)
        content = message.get("content")
        if content is None:
            content = ""
        if isinstance(content, str):
            if not self.takes_strings:
                content = [{"type": "text", "text": content}]
        elif not isinstance(content, Sequence):
            raise InvalidRequest(
                f"messages[{index}].content must be text or a list of parts", "messages"
            )
        else:
            texts = [_part_text(part, index) for part in content]
            if self.takes_parts:
                content = [{"type": "text", "text": text} for text in texts]
            else:
                content = "\n".join(texts)
        normalised["content"] = content
        if calls := message.get("tool_calls"):
            if not isinstance(calls, Sequence):
                raise InvalidRequest(f"messages[{index}].tool_calls must be a list", "messages")
            normalised["tool_calls"] = [_with_parsed_arguments(call) for call in calls]
        return normalised


def _part_text(part: Any, index: int) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    text = part.get("text") if kind in _TEXT_PARTS else None
    if not isinstance(text, str):
        raise InvalidRequest(
            f"messages[{index}]: a content part of type {kind!r} is not supported; only text is",
            "messages",
        )
    return text


def _with_parsed_arguments(call: Any) -> Any:
    """Templates take a call's arguments as an object, where OpenAI's API has them as JSON text."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except (ValueError, RecursionError):  # no JSON, or nested too deeply
        return call
    return {**call, "function": {**function, "arguments": arguments}}


class _Generation(jinja2.ext.Extension):
    """`{% generation %}`, which marks for training what the assistant said, and prints it here."""

    tags = {"generation"}  # noqa: RUF012  # as Jinja declares it

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@functools.cache
def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, "jinja2.ext.loopcontrols"],
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own escapes what would be special in HTML, which models are not trained on.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().strftime(form)
