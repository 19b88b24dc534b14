"""Functions that a model may call, as OpenAI's chat completions spell them."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from pagelet.protocol.openai.fields import RequestBody, ResponseBody, null_means

Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]


class FunctionDefinition(RequestBody):
    """A function; `parameters` is the JSON schema of its arguments."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolDefinition(RequestBody):
    """A tool; functions are the only kind."""

    type: Literal["function"]
    function: FunctionDefinition

    def for_template(self) -> dict[str, Any]:
        """As chat templates take it."""
        function: dict[str, Any] = {"name": self.function.name}
        if self.function.description is not None:
            function["description"] = self.function.description
        function["parameters"] = self.function.parameters or {"type": "object", "properties": {}}
        return {"type": "function", "function": function}


class FunctionName(RequestBody):
    """Of a function among the tools."""

    name: str


class NamedToolChoice(RequestBody):
    """The one function that must be called."""

    type: Literal["function"]
    function: FunctionName


class AllowedSet(RequestBody):
    """Some of the tools, and whether one of them must be called."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedToolChoice], Field(min_length=1, max_length=128, fail_fast=True)]


class AllowedTools(RequestBody):
    """Only some of the tools may be called; the model is not told of the others."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedSet


def choice_kind(value: Any) -> str:
    """Which member of the union of choices a value is meant for."""
    if isinstance(value, str) or value is None:
        return "<mode>"
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return "<allowed>" if kind == "allowed_tools" else "<named>"


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("<mode>")]
    | Annotated[NamedToolChoice, Tag("<named>")]
    | Annotated[AllowedTools, Tag("<allowed>")],
    Discriminator(choice_kind),
]
Tools = Annotated[list[ToolDefinition], Field(max_length=128, fail_fast=True)]


class FunctionCallInput(RequestBody):
    """A call in the history; `arguments` is JSON text."""

    name: str
    arguments: str


class ToolCallInput(RequestBody):
    """A call that an answer in the history made."""

    id: str
    type: Annotated[Literal["function"], null_means("function")] = "function"
    function: FunctionCallInput
    index: int | None = None
    """Clients that collect streams leave it in."""


class FunctionCall(ResponseBody):
    """What is called; `arguments` is JSON text as the model wrote it."""

    name: str
    arguments: str


class ToolCall(ResponseBody):
    """A call that the answer makes."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall
