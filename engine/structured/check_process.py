"""Tries to compile grammars: `python -m pagelet.engine.structured.check_process --config-fd N`.

It loads what it takes once, and leaves the compiling to processes that it forks.
"""

import argparse
import resource
import socket

import msgspec

from pagelet.engine.load_tokenizer import load_tokenizer
from pagelet.engine.source import resolve_model, resolve_tokenizer
from pagelet.engine.structured.check_lanes import Answer, CheckLanes
from pagelet.engine.structured.compile import Compiler
from pagelet.engine.structured.vocabulary import make_vocabulary
from pagelet.engine.weights.load_config import load_model_config
from pagelet.process.child import ParentLink
from pagelet.process.frames import send_frame
from pagelet.protocol.config import EngineOptions
from pagelet.protocol.errors import ModelSourceError
from pagelet.protocol.structured import GrammarBackend

READY = Answer(-1, "", True, False)
"""Its first frame."""


class CheckLaunch(msgspec.Struct, kw_only=True):
    """The configuration, read with `ParentLink.accept`."""

    options: EngineOptions
    backend: GrammarBackend
    """The library that all of its grammars are for."""
    tasks_fd: int
    """The inherited socket of tasks and answers."""


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--config-fd", type=int, required=True)
    launch, link = ParentLink.accept(parser.parse_args().config_fd, CheckLaunch)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # an abort is a verdict here
    try:
        files = resolve_model(launch.options)
        tokenizer = load_tokenizer(resolve_tokenizer(launch.options, files))
        compiler = Compiler(
            make_vocabulary(load_model_config(files, launch.options.model), tokenizer)
        )
    except ModelSourceError as error:
        link.fail(str(error))
    compiler.backend(launch.backend)  # its own memory and time do not count
    limits = launch.options.structured
    with socket.socket(fileno=launch.tasks_fd) as sock:
        send_frame(sock, READY)
        CheckLanes(sock, compiler, limits.compile_seconds, limits.compile_memory_bytes).run()


if __name__ == "__main__":
    main()
