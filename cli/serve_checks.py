"""What `pagelet serve` checks of shares, and of options for scores and adapters."""

import typer

from pagelet.protocol.config import LoraOptions


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
