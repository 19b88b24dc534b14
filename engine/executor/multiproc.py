"""The executor of several ranks: a worker process each. Free of torch."""

import contextlib
import os
import shutil
import socket
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from pathlib import Path
from typing import Any

import msgspec

from pagelet.engine.errors import ConfigurationError, ExecutorFailed
from pagelet.engine.executor.messages import (
    FromWorker,
    StepResult,
    ToWorker,
    WorkerBeat,
    WorkerFailed,
    WorkerLaunch,
    WorkerMasks,
    WorkerReady,
    WorkerStage,
    WorkerStep,
    WorkerTokens,
)
from pagelet.engine.executor.nodes import (
    NodeServer,
    RankEnd,
    check_nodes,
    ranks_of_node,
)
from pagelet.engine.executor.numa import cpus_of_ranks
from pagelet.engine.executor.topology import make_places
from pagelet.engine.executor.watch import BEAT_SECONDS, RankWatch, is_stopped
from pagelet.engine.model_config import ModelConfig
from pagelet.engine.source import ModelFiles
from pagelet.engine.step import RunnerOutput, SchedulerOutput, TokenMasks
from pagelet.process.child import ChildProcess
from pagelet.process.frames import encode_frame, recv_frame
from pagelet.process.proc import describe_exit
from pagelet.protocol.config import EngineOptions, ParallelOptions

_EXIT_SECONDS = 0.5
"""How long after the end of a worker's socket its exit code is waited for."""
_NODE_EXIT_SECONDS = 2.0
"""The same where other nodes have to tell, as they do twice a second."""
_EXIT_POLL_SECONDS = 0.01


class MultiprocExecutor:
    """Implements `Executor` with a worker a rank: `tensor_parallel_size` in each of
    `pipeline_parallel_size` stages.

    A worker that ends, raises or hangs takes the others with it: what they still had in common is
    gone. All futures then fail with `ExecutorFailed`, which names the rank and what became of it.
    With several nodes this is the head, and the ranks of the others connect to it.
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
        self._send_lock = threading.Lock()
        self._pending: deque[tuple[SchedulerOutput, Future[RunnerOutput]]] = deque()
        self._error: Exception | None = None
        self._closed = threading.Event()
        self._workers: dict[int, ChildProcess] = {}
        """This machine's, by rank."""
        self._sockets: dict[int, socket.socket] = {}
        self._threads: list[threading.Thread] = []
        self._folder = Path(tempfile.mkdtemp(prefix="pagelet-ranks-"))
        self._places = make_places(options.parallel)
        self._ready: list[Future[WorkerReady]] = [Future() for _ in self._places]
        one_machine = options.parallel.nnodes == 1
        self._watch = RankWatch(self._places, self._is_stopped, one_machine=one_machine)
        self._nodes: NodeServer | None = None
        rendezvous = f"file://{self._folder / 'rendezvous'}"
        parallel = options.parallel
        own = ranks_of_node(parallel, 0)
        cpus = cpus_of_ranks(len(own), os.sched_getaffinity(0))
        try:
            if parallel.nnodes > 1:
                check_nodes(parallel)
                self._nodes = NodeServer(parallel)
                rendezvous = self._nodes.rendezvous
            launches = [
                WorkerLaunch(
                    options=options,
                    config=config,
                    model_path=str(files.path),
                    model_format=files.format,
                    max_model_len=max_model_len,
                    num_real_tokens=num_real_tokens,
                    place=place,
                    device_index=place.rank,
                    cpus=cpus[place.rank % len(own)],
                    num_threads=max(1, len(os.sched_getaffinity(0)) // len(own)),
                    rendezvous=rendezvous,
                    step_fd=-1,
                )
                for place in self._places
            ]
            for rank in own:
                self._start_worker(launches[rank])
            if self._nodes is not None:
                self._gather_nodes(self._nodes, launches, parallel)
            self._start_thread(self._watch_ranks, "rank-watch")
            ready = [future.result() for future in self._ready]
        except BaseException:
            self.close()
            raise
        infos = [each.info for each in ready]
        self.info = msgspec.structs.replace(
            infos[-1],
            held_bytes=min(info.held_bytes for info in infos),
            step_bytes=max(info.step_bytes for info in infos),
        )
        self.layout = ready[0].layout
        self.num_blocks = ready[0].num_blocks

    @property
    def worker_pids(self) -> list[int]:
        """Process ids on this machine, by rank."""
        return [worker.pid for worker in self._workers.values()]

    def execute(
        self, plan: SchedulerOutput, masks: Future[TokenMasks] | None = None
    ) -> Future[RunnerOutput]:
        """See `Executor`. Masks are the next message after their plan: no later plan is sent before
        the step that they wait for has ended."""
        future: Future[RunnerOutput] = Future()
        with self._lock:
            if self._error is not None:
                future.set_exception(self._error)
                return future
            self._pending.append((plan, future))
        self._send(WorkerStep(plan))
        if masks is not None:
            masks.add_done_callback(self._send_masks)
        return future

    def _send(self, message: ToWorker) -> None:
        """To those ranks that it is for."""
        frame = encode_frame(message)
        with self._send_lock:
            for place in self._places:
                if isinstance(message, WorkerMasks) and not place.is_last_stage:
                    continue
                if isinstance(message, WorkerTokens) and place.is_last_stage:
                    continue
                with contextlib.suppress(OSError):  # the rank is gone, as its reader finds out
                    self._sockets[place.rank].sendall(frame)

    def _send_masks(self, masks: Future[TokenMasks]) -> None:
        if not masks.cancelled():
            self._send(WorkerMasks(masks.result()))

    def check(self) -> None:
        """See `Executor`."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """See `Executor`. Nothing in a worker needs saving, so it is killed."""
        self._closed.set()
        self._fail(ExecutorFailed("the executor was closed"))
        for worker in self._workers.values():
            worker.wait()
            worker.close()
        for thread in self._threads:
            thread.join()
        for sock in self._sockets.values():
            sock.close()
        if self._nodes is not None:
            self._nodes.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start_worker(self, launch: WorkerLaunch) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            launch.step_fd = theirs.fileno()
            worker = ChildProcess(
                ["-m", "pagelet.engine.executor.worker"], launch, pass_fds=[launch.step_fd]
            )
        self._workers[launch.place.rank] = worker
        self._listen_to(launch.place.rank, ours)

    def _gather_nodes(
        self, nodes: NodeServer, launches: Sequence[WorkerLaunch], parallel: ParallelOptions
    ) -> None:
        """Waits for the other nodes and their ranks."""
        of_nodes = {
            node: [launches[rank] for rank in ranks_of_node(parallel, node)]
            for node in range(1, parallel.nnodes)
        }
        for rank, sock in nodes.gather(of_nodes, self._stage, self.check).items():
            self._listen_to(rank, sock)
        nodes.watch(lambda node: self._fail(ExecutorFailed(f"node {node} is gone")))

    def _listen_to(self, rank: int, sock: socket.socket) -> None:
        self._sockets[rank] = sock
        self._start_thread(lambda: self._read(rank), f"rank-{rank}")

    def _start_thread(self, run: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _is_stopped(self, rank: int) -> bool:
        if rank in self._workers:
            return is_stopped(self._workers[rank].pid)
        return self._nodes is not None and self._nodes.is_stopped(rank)

    def _watch_ranks(self) -> None:
        """A thread that looks for ranks that hang."""
        while not self._closed.wait(BEAT_SECONDS):
            with self._lock:
                fault = None if self._error is not None else self._watch.fault()
            if fault is not None:
                self._fail(ExecutorFailed(fault))

    def _read(self, rank: int) -> None:
        """A thread a rank: what it says, until its socket ends."""
        sock = self._sockets[rank]
        decoder: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)
        try:
            while True:
                match recv_frame(sock, decoder):
                    case WorkerBeat(state, changes):
                        with self._lock:
                            self._watch.beat(rank, state, changes)
                    case WorkerStage(text):
                        if rank == 0:
                            self._stage(text)
                    case WorkerReady() as ready:
                        self._ready[rank].set_result(ready)
                    case StepResult(output):
                        self._take_result(output)
                    case WorkerFailed(error):
                        self._fail(self._find_cause(rank, error))
                        return
        except (OSError, EOFError, ValueError):
            self._fail(self._find_cause(rank, None))

    def _take_result(self, output: RunnerOutput) -> None:
        with self._lock:
            if not self._pending:  # all that was waited for has failed
                return
            plan, future = self._pending.popleft()
        if self._places[-1].pp_size > 1:
            # Before the result is known here, hence before any plan that builds upon it.
            self._send(_drawn_tokens(plan, output))
        with contextlib.suppress(InvalidStateError):  # it failed meanwhile
            future.set_result(output)

    def _find_cause(self, rank: int, last_words: str | None) -> Exception:
        """Why a rank ended. One that is killed makes the others raise: then it is the cause."""
        here = self._nodes is None
        deadline = time.monotonic() + (_EXIT_SECONDS if here else _NODE_EXIT_SECONDS)
        while True:
            end = self._end_of(rank)
            for other in self._places:
                killed = self._end_of(other.rank)
                if killed is not None and killed.returncode < 0:
                    return ExecutorFailed(f"{other} ended with {describe_exit(killed.returncode)}")
            if (here and end is not None) or time.monotonic() > deadline:
                break
            time.sleep(_EXIT_POLL_SECONDS)
        place = self._places[rank]
        if end is not None and end.failure is not None:
            return ConfigurationError(end.failure)
        if last_words is not None:
            return ExecutorFailed(f"{place} failed: {last_words}")
        if end is None:
            return ExecutorFailed(f"{place} closed its connection")
        return ExecutorFailed(f"{place} ended with {describe_exit(end.returncode)}")

    def _end_of(self, rank: int) -> RankEnd | None:
        """How a rank's process ended, as far as is known."""
        if rank not in self._workers:
            return None if self._nodes is None else self._nodes.end_of(rank)
        worker = self._workers[rank]
        code = worker.poll()
        return None if code is None else RankEnd(code, worker.failure)

    def _fail(self, error: Exception) -> None:
        """Ends all workers; everything waited for fails with the first error."""
        with self._lock:
            if self._error is None:
                self._error = error
            waiting: list[Future[Any]] = [*(future for _, future in self._pending), *self._ready]
            self._pending.clear()
        for worker in self._workers.values():
            worker.kill_group()
        if self._nodes is not None:
            self._nodes.release()
        for rank, sock in list(self._sockets.items()):
            if rank not in self._workers:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
        for future in waiting:
            with contextlib.suppress(InvalidStateError):  # it was done already
                future.set_exception(self._error)


def _drawn_tokens(plan: SchedulerOutput, output: RunnerOutput) -> WorkerTokens:
    """What the stages before the last need of a step's results."""
    tokens = WorkerTokens([], [], [])
    for entry, sampled in zip(plan.scheduled, output.sampled, strict=True):
        if sampled.token_ids:
            tokens.request_ids.append(entry.request_id)
            known = entry.num_computed_tokens + entry.num_tokens - len(entry.draft_token_ids)
            tokens.positions.append(known)
            tokens.token_ids.append(sampled.token_ids)
    return tokens
