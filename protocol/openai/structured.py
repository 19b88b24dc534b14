"""What a request may ask its answer to match, in OpenAI's words and in vLLM's."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from pagelet.protocol.openai.fields import (
    RequestBody,
    Schema,
    SchemaOrText,
    invalid,
    one_of,
    unsupported,
)

Choices = Annotated[list[str], Field(fail_fast=True)]


class JsonSchemaFormat(RequestBody):
    """A named schema. Answers match it whether or not it is `strict`."""

    name: str
    description: str | None = None
    schema_: Schema | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(RequestBody):
    """OpenAI's `response_format`, and vLLM's addition of structural tags to it."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchemaFormat | None = None
    format: dict[str, Any] | None = None
    structures: list[dict[str, Any]] | None = None
    triggers: list[str] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "ResponseFormat":
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise invalid("response_format.json_schema", "goes with the type 'json_schema'")
        tagged = self.format is not None or self.structures is not None
        if (self.type == "structural_tag") != tagged:
            raise invalid(
                "response_format.format", "or 'structures' goes with the type 'structural_tag'"
            )
        return self


class StructuredOutputs(RequestBody):
    """vLLM's `structured_outputs`: one of the kinds."""

    json_: SchemaOrText | None = Field(None, alias="json")
    json_object: bool | None = None
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None
    structural_tag: Annotated[dict[str, Any] | str, one_of(dict, str)] | None = None
    backend: Annotated[Any, unsupported(remedy="it is chosen by what the request uses")] = None
    whitespace_pattern: Annotated[Any, unsupported(remedy="white space is bounded here")] = None
    disable_any_whitespace: Annotated[Any, unsupported(False)] = None
    disable_additional_properties: Annotated[Any, unsupported(False)] = None
    disable_fallback: bool | None = None
