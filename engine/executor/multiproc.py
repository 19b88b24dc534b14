"""The executor of several ranks: a worker process each. Free of torch."""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from pathlib import Path
from typing import Any

import msgspec

from pagelet.engine.errors import ConfigurationError, ExecutorFailed
from pagelet.engine.executor.messages import (
    FromWorker,
    StepResult,
    WorkerFailed,
    WorkerLaunch,
    WorkerReady,
    WorkerStage,
)
from pagelet.engine.model_config import ModelConfig
from pagelet.engine.source import ModelFiles
from pagelet.engine.step import RunnerOutput, SchedulerOutput, TokenMasks
from pagelet.process.child import ChildProcess
from pagelet.process.frames import encode_frame, recv_frame
from pagelet.process.proc import describe_exit
from pagelet.protocol.config import EngineOptions

_EXIT_SECONDS = 0.5
"""How long after the end of a worker's socket its exit code is waited for."""


class MultiprocExecutor:
    """Implements `Executor` with `tensor_parallel_size` workers.

    A worker that ends or raises takes the others with it: what they still had in common is gone.
    All futures then fail with `ExecutorFailed`, which names the rank and how it ended.
    """

    def __init__(
        self,
        options: EngineOptions,
        files: ModelFiles,
        config: ModelConfig,
        max_model_len: int,
        stage: Callable[[str], None],
        num_real_tokens: int | None = None,
    ) -> None:
        """Starts the workers and waits until all have loaded their shards. Call it from a thread
        that lives as long as the executor. Raises `ConfigurationError` or `ExecutorFailed`."""
        self._stage = stage
        self._lock = threading.Lock()
        self._pending: deque[Future[RunnerOutput]] = deque()
        self._error: Exception | None = None
        self._workers: list[ChildProcess] = []
        self._sockets: list[socket.socket] = []
        self._readers: list[threading.Thread] = []
        self._folder = Path(tempfile.mkdtemp(prefix="pagelet-ranks-"))
        size = options.parallel.tensor_parallel_size
        self._ready: list[Future[WorkerReady]] = [Future() for _ in range(size)]
        try:
            for rank in range(size):
                self._start_worker(
                    WorkerLaunch(
                        options=options,
                        config=config,
                        model_path=str(files.path),
                        model_format=files.format,
                        max_model_len=max_model_len,
                        num_real_tokens=num_real_tokens,
                        rank=rank,
                        size=size,
                        num_threads=max(1, len(os.sched_getaffinity(0)) // size),
                        rendezvous=str(self._folder / "rendezvous"),
                        step_fd=-1,
                    )
                )
            ready = [future.result() for future in self._ready]
        except BaseException:
            self.close()
            raise
        self.info = ready[0].info
        self.layout = ready[0].layout
        self.num_blocks = ready[0].num_blocks

    @property
    def worker_pids(self) -> list[int]:
        """Process ids, by rank."""
        return [worker.pid for worker in self._workers]

    def execute(
        self, plan: SchedulerOutput, masks: Future[TokenMasks] | None = None
    ) -> Future[RunnerOutput]:
        """See `Executor`. Masks are the next frame after their plan: no later plan is sent before
        the step that they wait for has ended."""
        future: Future[RunnerOutput] = Future()
        with self._lock:
            if self._error is not None:
                future.set_exception(self._error)
                return future
            self._pending.append(future)
        self._send(plan)
        if masks is not None:
            masks.add_done_callback(self._send_masks)
        return future

    def _send(self, message: SchedulerOutput | TokenMasks) -> None:
        frame = encode_frame(message)
        for sock in self._sockets:
            with contextlib.suppress(OSError):  # the rank is gone, as its reader finds out
                sock.sendall(frame)

    def _send_masks(self, masks: Future[TokenMasks]) -> None:
        if not masks.cancelled():
            self._send(masks.result())

    def close(self) -> None:
        """See `Executor`. Nothing in a worker needs saving, so it is killed."""
        self._fail(ExecutorFailed("the executor was closed"))
        for worker in self._workers:
            worker.wait()
            worker.close()
        for reader in self._readers:
            reader.join()
        for sock in self._sockets:
            sock.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start_worker(self, launch: WorkerLaunch) -> None:
        ours, theirs = socket.socketpair()
        self._sockets.append(ours)
        with theirs:
            launch.step_fd = theirs.fileno()
            worker = ChildProcess(
                ["-m", "pagelet.engine.executor.worker"], launch, pass_fds=[launch.step_fd]
            )
        self._workers.append(worker)
        reader = threading.Thread(
            target=self._read, args=(launch.rank,), name=f"rank-{launch.rank}", daemon=True
        )
        self._readers.append(reader)
        reader.start()

    def _read(self, rank: int) -> None:
        """A thread a rank: what it says, until its socket ends."""
        sock = self._sockets[rank]
        decoder: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)
        try:
            while True:
                match recv_frame(sock, decoder):
                    case WorkerStage(text):
                        if rank == 0:
                            self._stage(text)
                    case WorkerReady() as ready:
                        self._ready[rank].set_result(ready)
                    case StepResult(output):
                        with self._lock:
                            future = self._pending.popleft()
                        future.set_result(output)
                    case WorkerFailed(error):
                        self._fail(self._find_cause(rank, error))
                        return
        except (OSError, EOFError, ValueError):
            self._fail(self._find_cause(rank, None))

    def _find_cause(self, rank: int, last_words: str | None) -> Exception:
        """Why a rank ended. One that is killed makes the others raise: then it is the cause."""
        ended = self._workers[rank]
        with contextlib.suppress(subprocess.TimeoutExpired):
            ended.wait(_EXIT_SECONDS)
        for other, worker in enumerate(self._workers):
            if (code := worker.poll()) is not None and code < 0:
                return ExecutorFailed(f"rank {other} ended with {describe_exit(code)}")
        if ended.failure is not None:
            return ConfigurationError(ended.failure)
        if last_words is not None:
            return ExecutorFailed(f"rank {rank} failed: {last_words}")
        if ended.returncode is None:
            return ExecutorFailed(f"rank {rank} closed its connection")
        return ExecutorFailed(f"rank {rank} ended with {describe_exit(ended.returncode)}")

    def _fail(self, error: Exception) -> None:
        """Ends all workers; everything waited for fails with the first error."""
        with self._lock:
            if self._error is None:
                self._error = error
            waiting: list[Future[Any]] = [*self._pending, *self._ready]
            self._pending.clear()
        for worker in self._workers:
            worker.kill_group()
        for future in waiting:
            with contextlib.suppress(InvalidStateError):  # it was done already
                future.set_exception(self._error)
