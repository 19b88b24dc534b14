"""Tries to compile grammars: `python -m pagelet.engine.structured.check_process --config-fd N`.

It is the one place where a grammar that nobody has compiled yet is compiled, and may die of it.
"""

import argparse
import contextlib
import os
import resource
import socket
from collections.abc import Iterator

import msgspec

from pagelet.engine.load_tokenizer import load_tokenizer
from pagelet.engine.source import resolve_model, resolve_tokenizer
from pagelet.engine.structured.backend import GrammarError
from pagelet.engine.structured.compile import Compiler
from pagelet.engine.structured.vocabulary import make_vocabulary
from pagelet.engine.weights.load_config import load_model_config
from pagelet.process.child import ParentLink
from pagelet.process.frames import recv_frame, send_frame
from pagelet.protocol.config import EngineOptions
from pagelet.protocol.errors import ModelSourceError
from pagelet.protocol.structured import Grammar


class CheckLaunch(msgspec.Struct, kw_only=True):
    """The configuration, read with `ParentLink.accept`."""

    options: EngineOptions
    memory_bytes: int
    """What a grammar may take beyond what the process has."""
    requests_fd: int
    """The inherited socket of grammars and verdicts."""


class Verdict(msgspec.Struct, array_like=True):
    """What came of a grammar; `error` is empty if it compiles."""

    error: str


@contextlib.contextmanager
def _memory_bound(extra: int) -> Iterator[None]:
    """The address space may grow by `extra` bytes. Native code that wants more aborts the process,
    which is what the parent waits for."""
    with open("/proc/self/statm") as statm:
        now = int(statm.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + extra, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


def _check(compiler: Compiler, grammar: Grammar, memory_bytes: int) -> Verdict:
    compiler.backend(grammar.backend)  # the library's own memory does not count
    try:
        with _memory_bound(memory_bytes):
            compiler.compile(grammar)
    except GrammarError as error:
        return Verdict(str(error) or "the grammar is not valid")
    except MemoryError:
        return Verdict("it takes too much memory")
    return Verdict("")


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
    compiler.backend("llguidance")
    sock = socket.socket(fileno=launch.requests_fd)
    send_frame(sock, Verdict("ready"))
    decoder = msgspec.msgpack.Decoder(Grammar)
    with contextlib.suppress(EOFError):
        while True:
            grammar = recv_frame(sock, decoder)
            if grammar.backend == "xgrammar":
                compiler.backend("xgrammar")
                send_frame(
                    sock, Verdict("loaded")
                )  # its import takes seconds: the clock starts now
            send_frame(sock, _check(compiler, grammar, launch.memory_bytes))


if __name__ == "__main__":
    main()
