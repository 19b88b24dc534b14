"""The thread pool: more threads than cores, callers at the same time, a fork, and rest."""

import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch

from pagelet.kernels.cpu.library import library
from pagelet.kernels.linear.cpu import linear
from pagelet.kernels.linear.packed import pack_linear

SetThreads = Callable[[int], None]
Product = Callable[[], bool]


@pytest.fixture
def threads() -> Iterator[SetThreads]:
    before = library().threads
    yield library().set_threads
    library().set_threads(before)


@pytest.fixture
def product() -> Product:
    """A function that computes a product on all threads and checks it against one thread's."""
    generator = torch.Generator().manual_seed(0)
    packed = pack_linear(torch.randn(300, 64, generator=generator), "f32")
    x = torch.randn(3, 64, generator=generator)
    before = library().threads
    library().set_threads(1)
    expected = linear(x, packed)
    library().set_threads(before)
    return lambda: torch.equal(linear(x, packed), expected)


def test_many_more_threads_than_cores(tier: str, threads: SetThreads, product: Product) -> None:
    threads(12)
    assert all(product() for _ in range(500))
    threads(2)
    assert all(product() for _ in range(500))


def test_callers_at_the_same_time(tier: str, threads: SetThreads, product: Product) -> None:
    threads(3)
    right: list[bool] = []
    callers = [
        threading.Thread(target=lambda: right.append(all(product() for _ in range(200))))
        for _ in range(4)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert right == [True] * 4


def test_workers_sleep_when_there_is_nothing_to_do(
    tier: str, threads: SetThreads, product: Product
) -> None:
    threads(4)
    assert product()
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.1  # three spinning workers would use 1.5 s of CPU
    assert product()


SCRIPT = """
import os, sys, torch
from pagelet.kernels.cpu.library import library
from pagelet.kernels.linear.cpu import linear
from pagelet.kernels.linear.packed import pack_linear
library().set_threads(3)
packed, x = pack_linear(torch.randn(300, 64), "f32"), torch.randn(3, 64)
expected = linear(x, packed)
"""


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT + textwrap.dedent(script)],
        timeout=120,
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def test_a_forked_child_has_no_workers_and_computes_alone(tier: str) -> None:
    done = run(
        """
        child = os.fork()
        if child == 0:
            os._exit(0 if torch.equal(linear(x, packed), expected) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert torch.equal(linear(x, packed), expected)
        """
    )
    assert done.returncode == 0, done.stderr


def test_the_process_ends_while_workers_wait(tier: str) -> None:
    assert run("sys.exit(7)").returncode == 7
