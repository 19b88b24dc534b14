"""`pagelet bench serve`: options to a workload, a run, and its figures."""

import dataclasses
import json
import math
import random
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
import uvloop
from rich.console import Console

from pagelet.bench.figures import machine
from pagelet.bench.load import datasets, files, report, vocabulary
from pagelet.bench.load.bar import request_bar
from pagelet.bench.load.http_client import HttpClient, RequestFailed
from pagelet.bench.load.openai_api import Endpoint, RequestOptions
from pagelet.bench.load.records import Record
from pagelet.bench.load.run import Load, Observer, RunResult, run_load, send
from pagelet.bench.load.statistics import Bounds, parse_bounds, summarise
from pagelet.bench.load.workload import Workload
from pagelet.engine.load_tokenizer import load_tokenizer
from pagelet.engine.source import resolve
from pagelet.process.output import output_console
from pagelet.protocol.errors import ModelSourceError
from pagelet.text.tokenizer import Tokenizer

Dataset = Literal["random", "shared-prefix", "multi-turn", "trace", "sharegpt"]
RESULT_VERSION = 1
_DEFAULT_CONCURRENCY = 16


def serve(
    url: Annotated[
        str, typer.Argument(metavar="URL", help="The server, such as http://127.0.0.1:8000.")
    ],
    # Requests
    model: Annotated[
        str | None, typer.Option(help="Name of the model. [default: the first that is served]")
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            metavar="SOURCE",
            help="The model's tokenizer, in the forms that `pagelet serve` takes. Prompts then "
            "have exact lengths. [default: prompts of common words, about a token each]",
        ),
    ] = None,
    endpoint: Annotated[Endpoint, typer.Option(help="Of the OpenAI API.")] = "completions",
    prompt_form: Annotated[
        Literal["auto", "ids", "text"],
        typer.Option(help="auto: token ids where tokenizer, dataset and endpoint allow them."),
    ] = "auto",
    api_key: Annotated[
        str | None, typer.Option(envvar=["PAGELET_API_KEY", "OPENAI_API_KEY"], help="If asked for.")
    ] = None,
    temperature: Annotated[float, typer.Option(min=0, help="0: greedy.")] = 0.0,
    ignore_eos: Annotated[
        bool, typer.Option(help="Have answers of the length asked for, where the server can.")
    ] = True,
    extra_body: Annotated[
        str, typer.Option(metavar="JSON", help="Further fields of every request.")
    ] = "{}",
    timeout: Annotated[float, typer.Option(min=1, help="Most seconds for one answer.")] = 600.0,
    # Workload
    dataset: Annotated[Dataset, typer.Option(help="What is asked.")] = "random",
    file: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Of the datasets trace and sharegpt."),
    ] = None,
    num_prompts: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Requests; conversations for multi-turn. [default: 100, or all of the file]",
        ),
    ] = None,
    input_len: Annotated[
        int, typer.Option(min=1, help="Tokens a prompt, or that a prompt adds to its prefix.")
    ] = 256,
    output_len: Annotated[int, typer.Option(min=1, help="Tokens an answer.")] = 128,
    spread: Annotated[
        float, typer.Option(help="0.2: lengths are uniform within 20 % around these.")
    ] = 0.0,
    prefix_len: Annotated[int, typer.Option(min=1, help="shared-prefix: its tokens.")] = 1024,
    num_prefixes: Annotated[int, typer.Option(min=1, help="shared-prefix: how many.")] = 1,
    zipf: Annotated[
        float, typer.Option(min=0, help="shared-prefix: exponent of their popularity; 0: equal.")
    ] = 0.0,
    turns: Annotated[int, typer.Option(min=1, help="multi-turn: of a conversation.")] = 5,
    trace_speed: Annotated[
        float, typer.Option(min=1e-3, help="trace: 2 replays it in half the time.")
    ] = 1.0,
    max_input_len: Annotated[
        int | None, typer.Option(min=1, help="trace: cut longer prompts. [default: as they are]")
    ] = None,
    # Load
    concurrency: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Closed loop: sessions in flight, always. With --request-rate: at most. "
            f"[default: {_DEFAULT_CONCURRENCY}, or no bound with a rate or a trace]",
        ),
    ] = None,
    request_rate: Annotated[
        float | None,
        typer.Option(min=1e-6, help="Open loop: sessions a second; inf sends all at once."),
    ] = None,
    burstiness: Annotated[
        float,
        typer.Option(
            min=1e-3, help="Of arrivals: 1 Poisson, less for bursts, more is steadier, inf regular."
        ),
    ] = 1.0,
    warmups: Annotated[
        int, typer.Option(min=0, help="Requests before the measured ones, one after another.")
    ] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Of prompts and arrivals.")] = 0,
    # Results
    goodput: Annotated[
        list[str] | None,
        typer.Option(
            metavar="BOUND",
            help="Latency bound in ms, such as ttft:500; also tpot, e2el. Give it again for more.",
        ),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the figures here too.")
    ] = None,
    records: Annotated[bool, typer.Option(help="With --json: every request, too.")] = False,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw latencies and throughput (.png, .svg)."),
    ] = None,
) -> None:
    """Put load on any OpenAI-compatible server, and measure it.

    The exit code is 1 if no request was answered, or the server cannot be reached.
    """
    console, errors = output_console(), output_console(stderr=True)
    try:
        if plot is not None:
            report.check_plotting()
        bounds = parse_bounds(goodput) if goodput else None
        workload = build_workload(
            dataset,
            file=file,
            tokenizer=None if tokenizer is None else read_tokenizer(tokenizer),
            as_text=prompt_form == "text" or endpoint == "chat",
            require_ids=prompt_form == "ids",
            num_prompts=num_prompts,
            lengths=datasets.Lengths(input_len, output_len, spread),
            seed=seed,
            prefix_len=prefix_len,
            num_prefixes=num_prefixes,
            zipf=zipf,
            turns=turns,
            trace_speed=trace_speed,
            max_input_len=max_input_len,
        )
        closed = request_rate is None and not workload.timed
        load = Load(
            concurrency or (_DEFAULT_CONCURRENCY if closed else None),
            request_rate,
            burstiness,
            seed,
        )
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        client = HttpClient(url, headers, timeout)
        options = RequestOptions(
            model or "", endpoint, ignore_eos, temperature, _json_object(extra_body)
        )
        with request_bar(errors, workload.num_requests) as observe:
            options, result = uvloop.run(measure(client, options, workload, load, warmups, observe))
    except (ValueError, OSError, ModelSourceError, RequestFailed, ImportError) as error:
        errors.print(f"error: {error}", style="red", markup=False)
        raise typer.Exit(1) from error
    figures = summarise(result, bounds)
    show(console, figures)
    if json_file is not None:
        setup = describe(url, options, workload, load, bounds)
        content: dict[str, Any] = {"version": RESULT_VERSION, "machine": machine(), **setup}
        content["figures"] = figures
        if records:
            content["records"] = [dataclasses.asdict(record) for record in result.records]
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(content, indent=2) + "\n")
    if plot is not None:
        report.plot(result.records, f"{options.model}: {workload.name}", plot)
    if not figures["completed"]:
        raise typer.Exit(1)


async def measure(
    client: HttpClient,
    options: RequestOptions,
    workload: Workload,
    load: Load,
    warmups: int = 1,
    observe: Observer = lambda record: None,
) -> tuple[RequestOptions, RunResult]:
    """Warms up, then runs the workload, and closes the client. Fills in the model's name if it is
    empty.

    Raises `RequestFailed` if a warm-up fails: then so would everything else.
    """
    async with client:
        if not options.model:
            options = dataclasses.replace(options, model=await first_model(client))
        for _ in range(warmups):
            # Nothing that any workload repeats, so that no prompt is cached by it.
            prompt = f"Warm-up {random.random()}: the answer is"
            blank = Record("warm-up", 0.0, 0.0, [], 0, 0, None, 0.0)
            record, _ = await send(client, options, prompt, 8, blank, 0.0)
            if record.error is not None:
                raise RequestFailed("the first request failed", record.error_detail)
        return options, await run_load(client, options, workload, load, observe)


async def first_model(client: HttpClient) -> str:
    """The name of the first model that the server serves. Raises `RequestFailed`."""
    answer = await client.get("/v1/models")
    try:
        return str(json.loads(answer)["data"][0]["id"])
    except (ValueError, LookupError, TypeError):
        raise RequestFailed(
            "/v1/models names no model", f"give --model; it answered {answer[:200]!r}"
        ) from None


def read_tokenizer(source: str) -> Tokenizer:
    """Raises `ModelSourceError`."""
    return load_tokenizer(resolve(source, weights=False))


def build_workload(
    dataset: Dataset,
    *,
    file: Path | None,
    tokenizer: Tokenizer | None,
    as_text: bool,
    require_ids: bool,
    num_prompts: int | None,
    lengths: datasets.Lengths,
    seed: int,
    prefix_len: int,
    num_prefixes: int,
    zipf: float,
    turns: int,
    trace_speed: float,
    max_input_len: int | None,
) -> Workload:
    """The workload that the options describe. Raises `ValueError` and `OSError`."""
    as_text = as_text or dataset in ("multi-turn", "sharegpt")
    if require_ids and (as_text or tokenizer is None):
        raise ValueError(
            "prompts of token ids need --tokenizer, --endpoint completions, and a dataset other "
            "than multi-turn and sharegpt"
        )
    if (file is None) == (dataset in ("trace", "sharegpt")):
        raise ValueError("--file goes with --dataset trace or sharegpt, and they need it")
    if dataset == "sharegpt":
        assert file is not None
        return files.read_conversations(file, tokenizer, seed, limit=num_prompts)
    words: vocabulary.Vocabulary
    if tokenizer is None:
        words = vocabulary.Words()
    elif as_text:
        words = vocabulary.single_token_words(tokenizer)
    else:
        words = vocabulary.token_ids(tokenizer)
    if dataset == "trace":
        assert file is not None
        return files.read_trace(
            file, words, seed, limit=num_prompts, speed=trace_speed, max_input_len=max_input_len
        )
    count = num_prompts or 100
    if dataset == "shared-prefix":
        return datasets.shared_prefix(
            words,
            count,
            lengths,
            seed,
            prefix_len=prefix_len,
            num_prefixes=num_prefixes,
            zipf=zipf,
        )
    if dataset == "multi-turn":
        return datasets.multi_turn(words, count, lengths, seed, turns=turns)
    return datasets.random_prompts(words, count, lengths, seed)


def describe(
    url: str, options: RequestOptions, workload: Workload, load: Load, bounds: Bounds | None
) -> dict[str, Any]:
    """What was run, for the JSON file."""
    return {
        "server": url,
        "request": dataclasses.asdict(options),
        "workload": {"name": workload.name, "requests": workload.num_requests}
        | workload.parameters,
        "load": {name: _finite(value) for name, value in dataclasses.asdict(load).items()},
        "bounds": bounds
        and {
            name: value
            for name, value in dataclasses.asdict(bounds).items()
            if not math.isinf(value)
        },
    }


def show(console: Console, figures: dict[str, Any]) -> None:
    """Prints headline, table and warnings."""
    for line in report.headline(figures):
        console.print(line, markup=False)
    console.print(report.render(figures))
    for warning in report.warnings(figures):
        console.print(f"beware: {warning}", style="yellow", markup=False)


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(f"--extra-body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError("--extra-body must be a JSON object")
    return value


def _finite(value: Any) -> Any:
    """JSON has no infinity."""
    return "inf" if isinstance(value, float) and math.isinf(value) else value
