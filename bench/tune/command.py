"""`pagelet bench tune`."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from pagelet.bench.figures import machine
from pagelet.bench.load.datasets import Lengths
from pagelet.bench.load.statistics import Bounds
from pagelet.bench.load.vocabulary import single_token_words
from pagelet.bench.progress import show_progress
from pagelet.bench.server import ServerFailed
from pagelet.bench.tune.search import Settings, Trial, coordinate_search
from pagelet.bench.tune.trial import Goal, evaluate, serve_flags
from pagelet.engine.load_tokenizer import load_tokenizer
from pagelet.engine.runner.device import choose_device
from pagelet.engine.source import resolve
from pagelet.kernels.cpu.cores import usable_cores
from pagelet.process.output import output_console
from pagelet.protocol.errors import ModelSourceError

SPACE: dict[str, tuple[int | str, ...]] = {
    "max_num_batched_tokens": (64, 128, 256, 512, 1024, 2048, 4096),
    "max_num_seqs": (2, 4, 8, 16, 32, 64, 128, 256),
}
START: Settings = {"max_num_batched_tokens": 512, "max_num_seqs": 32}
QUANTIZATIONS: tuple[int | str, ...] = ("auto", "int8", "int4")
_FIELDS = {"quantization": ("model", "quantization"), "cpu_threads": ("cpu", "threads")}
"""Section and name in the typed configuration, of settings that are not the scheduler's."""
_RESULT_VERSION = 1


def tune(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="In the forms that `pagelet serve` takes.")
    ],
    ttft_ms: Annotated[float, typer.Option(min=1, help="Bound on the time to first token.")],
    tpot_ms: Annotated[float, typer.Option(min=1, help="Bound on the time per output token.")],
    serve_arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- OPTIONS...]",
            show_default=False,
            help="Further options of `pagelet serve`, after two dashes.",
        ),
    ] = None,
    share: Annotated[
        float, typer.Option(min=0.01, max=1, help="Of requests that must keep both bounds.")
    ] = 0.9,
    input_len: Annotated[int, typer.Option(min=1, help="Tokens a prompt.")] = 256,
    output_len: Annotated[int, typer.Option(min=1, help="Tokens an answer.")] = 64,
    spread: Annotated[float, typer.Option(help="0.3: lengths are uniform within 30 %.")] = 0.3,
    num_prompts: Annotated[int, typer.Option(min=1, help="Of each run, at least.")] = 24,
    seconds: Annotated[
        float, typer.Option(min=0, help="That requests come in each run, at least.")
    ] = 15.0,
    runs: Annotated[int, typer.Option(min=1, help="Rates to try for each choice of settings.")] = 5,
    max_trials: Annotated[int, typer.Option(min=1, help="Most settings to try.")] = 12,
    allow_quantization: Annotated[
        bool, typer.Option(help="Try int8 and int4 weights too, which change answers a little.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of prompts and arrivals.")] = 0,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write all trials here.")
    ] = None,
) -> None:
    """Find the settings with which the most requests a second keep two latency bounds.

    Each trial starts a server, and finds the highest rate of Poisson arrivals at which enough
    requests keep both bounds (goodput); one setting is changed at a time. Takes some minutes a
    trial; nothing else should run on the machine.
    """
    console, errors = output_console(), output_console(stderr=True)
    arguments = serve_arguments or []
    start, space = dict(START), dict(SPACE)
    threads = thread_counts(arguments)
    if len(threads) > 1:
        start["cpu_threads"], space["cpu_threads"] = threads[-1], threads
    if allow_quantization:
        start["quantization"], space["quantization"] = QUANTIZATIONS[0], QUANTIZATIONS
    try:
        goal = Goal(
            Bounds(ttft=ttft_ms, tpot=tpot_ms),
            share,
            Lengths(input_len, output_len, spread),
            num_prompts,
            seconds,
            runs,
            seed,
        )
        words = single_token_words(load_tokenizer(resolve(model, weights=False)))
        with show_progress(errors) as progress:
            best, trials = coordinate_search(
                start,
                space,
                lambda settings: evaluate(model, arguments, settings, goal, words, progress),
                max_trials,
            )
    except (ValueError, OSError, ModelSourceError, ServerFailed) as error:
        errors.print(f"error: {error}", style="red", markup=False)
        raise typer.Exit(1) from error
    console.print(_table(trials, best))
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(_result(model, arguments, trials, best), indent=2) + "\n")
    if best.score.rate == 0:
        errors.print(
            f"No settings keep the bounds, even with one request at a time: "
            f"{100 * best.score.share:.0f} % of requests did at best. Raise --ttft-ms or "
            "--tpot-ms, or shorten prompts.",
            style="red",
        )
        raise typer.Exit(1)
    command = ["pagelet", "serve", model, *serve_flags(best.settings), *arguments]
    console.print(f"\n{shlex.join(command)}\n", soft_wrap=True, markup=False)
    console.print(yaml_snippet(best.settings), markup=False)


def thread_counts(serve_arguments: Sequence[str]) -> tuple[int, ...]:
    """To try on a CPU: all cores that there are, half of them, and so on; none on a GPU, or where
    the arguments say how many."""
    asked = {argument.partition("=")[0] for argument in serve_arguments}
    if "--cpu-threads" in asked or choose_device("auto").type != "cpu":
        return ()
    cores = usable_cores()
    return tuple(sorted({max(1, cores >> halvings) for halvings in range(cores.bit_length())}))


def yaml_snippet(settings: Settings) -> str:
    """Settings as the sections of the typed configuration spell them."""
    sections: dict[str, list[str]] = {}
    for setting, value in settings.items():
        section, name = _FIELDS.get(setting, ("scheduler", setting))
        sections.setdefault(section, [f"{section}:"]).append(f"  {name}: {value}")
    return "\n".join(line for lines in sections.values() for line in lines)


def _table(trials: list[Trial], best: Trial) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in best.settings:
        table.add_column(name, justify="right")
    table.add_column("requests/s within bounds", justify="right")
    table.add_column("")
    for trial in trials:
        table.add_row(
            *map(str, trial.settings.values()),
            f"{trial.score.rate:.2f}",
            "best" if trial is best else "",
        )
    return table


def _result(model: str, arguments: list[str], trials: list[Trial], best: Trial) -> dict[str, Any]:
    return {
        "version": _RESULT_VERSION,
        "machine": machine(),
        "model": model,
        "arguments": arguments,
        "trials": [
            {**trial.settings, "rate": trial.score.rate, "unloaded_share": trial.score.share}
            for trial in trials
        ],
        "best": best.settings,
        "goodput": best.score.rate,
    }
