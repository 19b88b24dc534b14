"""Says what is going on while something takes long."""

import contextlib
import re
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.markup import escape

Progress = Callable[[str], None]
_PERCENT = re.compile(r" \d+%$")


@contextlib.contextmanager
def show_progress(console: Console) -> Iterator[Progress]:
    """Gives a function that shows a text: beside a spinner, or, where there is no terminal, as a
    line of its own whenever the text, but for how many per cent are done, is another."""
    if console.is_terminal:
        with console.status("") as status:
            yield lambda text: status.update(escape(text))
        return
    last = ""

    def line(text: str) -> None:
        nonlocal last
        stage = _PERCENT.sub("", text)
        if stage != last:
            console.print(stage, markup=False)
        last = stage

    yield line
