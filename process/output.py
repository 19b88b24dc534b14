"""What our commands print: wrapped for a terminal, in whole lines for a pipe or a file."""

import sys

from rich.console import Console

_PIPE_COLUMNS = 240


def output_console(*, stderr: bool = False, markup: bool = True) -> Console:
    """For stdout or stderr."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _PIPE_COLUMNS
    return Console(stderr=stderr, highlight=False, markup=markup, width=width)
