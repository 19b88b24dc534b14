"""What is said while something takes long."""

import io

from rich.console import Console

from pagelet.bench.progress import show_progress


def test_a_pipe_gets_a_line_a_stage() -> None:
    output = io.StringIO()
    with show_progress(Console(file=output)) as progress:
        for text in ("loading weights 1%", "loading weights 100%", "warming up", "warming up"):
            progress(text)
    assert output.getvalue() == "loading weights\nwarming up\n"
