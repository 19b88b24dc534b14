"""What `pagelet serve` checks of options for scores and adapters."""

import typer

from pagelet.protocol.config import LoraOptions


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
