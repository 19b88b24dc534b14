"""Help texts of the benchmarks."""

from collections.abc import Iterator
from typing import Any

import typer
from typer.core import TyperGroup, TyperOption

from pagelet.bench.cli import app


def options(command: Any, path: str) -> Iterator[tuple[str, TyperOption]]:
    if isinstance(command, TyperGroup):
        for name, one in command.commands.items():
            yield from options(one, f"{path} {name}")
    for param in command.params:
        if isinstance(param, TyperOption):
            yield f"{path} {param.opts[0]}", param


def test_no_option_tells_two_defaults() -> None:
    told = {
        name: option.show_default and option.default is not None
        for name, option in options(typer.main.get_command(app), "pagelet bench")
        if "default:" in (option.help or "")
    }
    assert told["pagelet bench routing --jobs"] is False
    assert not any(told.values()), told
