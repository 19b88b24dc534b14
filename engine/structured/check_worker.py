"""Where a grammar that nobody has compiled yet is compiled, and may end the process."""

import contextlib
import os
import random
import resource
import socket
import threading
from collections.abc import Iterator
from typing import Final, NoReturn

import msgspec
import numpy as np

from pagelet.engine.structured.backend import TOO_SLOW, GrammarError, Matcher
from pagelet.engine.structured.compile import Compiler, mask_words
from pagelet.engine.structured.vocabulary import Vocabulary
from pagelet.process.frames import recv_frame, send_frame
from pagelet.process.priority import run_when_idle
from pagelet.protocol.structured import Grammar

_WALK_TOKENS: Final = 48


class Job(msgspec.Struct, array_like=True):
    """A grammar, and for how many seconds it may have the priority of other work."""

    grammar: Grammar
    head_start: float


class Finding(msgspec.Struct, array_like=True):
    """What came of a grammar; `error` is empty if it compiles."""

    error: str


def work(sock: socket.socket, compiler: Compiler, memory_bytes: int) -> NoReturn:
    """Answers each `Job` that comes by a `Finding`, until the other side is gone. Native code that
    wants more than `memory_bytes` aborts this process."""
    decoder = msgspec.msgpack.Decoder(Job)
    try:
        while True:
            job = recv_frame(sock, decoder)
            send_frame(sock, Finding(_try(job, compiler, memory_bytes)))
    except (EOFError, OSError):
        os._exit(0)


def _try(job: Job, compiler: Compiler, memory_bytes: int) -> str:
    """In a thread of its own: its priority can be taken, and could not be given back."""
    found: list[str] = []

    def compile_() -> None:
        if job.head_start <= 0:
            run_when_idle(threading.get_native_id())
        found.append(_error(compiler, job.grammar, memory_bytes))

    thread = threading.Thread(target=compile_)
    thread.start()
    thread.join(max(job.head_start, 0.0))
    if thread.is_alive() and thread.native_id is not None:
        run_when_idle(thread.native_id)
    thread.join()
    [error] = found
    return error


def _error(compiler: Compiler, grammar: Grammar, memory_bytes: int) -> str:
    try:
        with _memory_bound(memory_bytes):
            matcher = compiler.compile(grammar)
            if grammar.backend == "xgrammar":  # the other library bounds its masks itself
                _walk(matcher, compiler.vocabulary)
    except GrammarError as error:
        return str(error) or "the grammar is not valid"
    except MemoryError:
        return "it takes too much memory"
    return ""


def _walk(matcher: Matcher, vocabulary: Vocabulary) -> None:
    """Raises `GrammarError` if the masks of an answer, some of many, take too long."""
    row = np.zeros(mask_words(vocabulary.size), np.int32)
    draws = random.Random(0)
    for _ in range(_WALK_TOKENS):
        if not matcher.fill(row):
            break
        bits = np.unpackbits(row.view(np.uint8), count=vocabulary.size, bitorder="little")
        bits[list(vocabulary.eos_token_ids)] = 0
        allowed = np.flatnonzero(bits)
        if not len(allowed) or not matcher.accept(int(draws.choice(allowed))):
            break
    if matcher.error == TOO_SLOW:
        raise GrammarError(TOO_SLOW)


@contextlib.contextmanager
def _memory_bound(extra: int) -> Iterator[None]:
    """The address space may grow by `extra` bytes."""
    with open("/proc/self/statm") as statm:
        now = int(statm.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + extra, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
