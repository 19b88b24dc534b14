"""What `pagelet serve` checks of single options, and of those of adapters together."""

import re

import typer

from pagelet.cli.api_key import checked_key
from pagelet.protocol.config import LoraOptions

_ORIGIN = re.compile(
    r"\*|[a-z][a-z0-9+.-]*://([^/\s:@?#\[\]]+|\[[0-9a-f:]+\])(:\d+)?", re.IGNORECASE
)


def check_keys(keys: list[str] | None) -> list[str] | None:
    """Of clients; a header can carry each."""
    if keys and not all(key.strip() for key in keys):
        raise typer.BadParameter("an empty key would let everyone in; leave the option out instead")
    for key in keys or ():
        checked_key(key)
    return keys


def check_names(names: list[str] | None) -> list[str] | None:
    """Names of the served model."""
    if names and not all(name.strip() for name in names):
        raise typer.BadParameter("an empty name could not be asked for; leave the option out")
    return names


def check_origins(origins: list[str] | None) -> list[str] | None:
    """Of pages that may ask from a browser."""
    for origin in origins or ():
        if not _ORIGIN.fullmatch(origin):
            raise typer.BadParameter(
                f"{origin!r} is not an origin as browsers send it; write SCHEME://HOST[:PORT], "
                "such as https://app.example.com, or * for all"
            )
    return origins


def check_share(value: float | None) -> float | None:
    """A part of a whole."""
    if value is not None and not 0 < value <= 1:
        raise typer.BadParameter(f"{value} is not more than 0 and at most 1; 0.9 means 90%")
    return value


def check_positive(value: float | None) -> float | None:
    """A time that passes."""
    if value is not None and value <= 0:
        raise typer.BadParameter(f"{value} is not more than 0")
    return value


def parse_score_tokens(text: str) -> str:
    """Two words with a comma between. Raises `typer.BadParameter`, as the others do."""
    if len(words := text.split(",")) != 2 or not all(words):
        raise typer.BadParameter(f"{text!r} is not two words with a comma between, such as no,yes")
    if words[0] == words[1]:
        raise typer.BadParameter(f"{text!r} says the same twice, where a score tells two apart")
    return text


def parse_lora_module(text: str) -> str:
    """NAME=SOURCE."""
    name, _, source = text.partition("=")
    if not name or not source:
        raise typer.BadParameter(f"{text!r} is not NAME=SOURCE, such as sql=/adapters/sql")
    return text


def check_lora(lora: LoraOptions) -> LoraOptions:
    """Options that must go together."""
    for given, option in (
        (lora.modules, "--lora-modules"),
        (lora.allow_updates, "--allow-lora-updates"),
    ):
        if given and not lora.enabled:
            raise typer.BadParameter("needs --enable-lora", param_hint=option)
    if lora.max_cpu_loras < lora.max_loras:
        raise typer.BadParameter(
            f"{lora.max_cpu_loras} is less than the {lora.max_loras} of --max-loras, which must be "
            "in memory together",
            param_hint="--max-cpu-loras",
        )
    return lora
