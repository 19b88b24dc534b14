"""Lists whose entries say by `type` what they are, of kinds that are only in part served here."""

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError


def only_kinds(noun: str, *kinds: str) -> BeforeValidator:
    """Refuses an entry of another kind, by name; what else is wrong with it is not seen here."""
    listed = ", ".join(repr(kind) for kind in kinds)

    def check(value: object) -> object:
        for number, entry in enumerate(value if isinstance(value, list) else ()):
            kind = entry.get("type") if isinstance(entry, dict) else None
            if isinstance(kind, str) and kind not in kinds:
                message = f"has {noun} ({number}) of type {kind[:64]!r}; supported here: {listed}"
                raise PydanticCustomError("unsupported_type", "{message}", {"message": message})
        return value

    return BeforeValidator(check)


def refusals_as_text(kind: str) -> BeforeValidator:
    """Takes what a model refused, in a list of parts, for the text that it is."""

    def convert(value: object) -> object:
        if not isinstance(value, list):
            return value
        return [
            {"type": kind, "text": part.get("refusal")}
            if isinstance(part, dict) and part.get("type") == "refusal"
            else part
            for part in value
        ]

    return BeforeValidator(convert)


def as_text_part(kind: str) -> BeforeValidator:
    """Takes plain text for a list with one part of that kind."""

    def convert(value: object) -> object:
        return [{"type": kind, "text": value}] if isinstance(value, str) else value

    return BeforeValidator(convert)
