"""One rank as a process: `python -m pagelet.engine.executor.worker --config-fd N`.

Every rank gets every plan and keeps state rows of its own. Those of the last pipeline stage draw
tokens from the same gathered logits with exact arithmetic, so none has to tell the others; the
stages before it are told by the executor.
"""

import argparse
import contextlib
import os
import select
import socket
import sys
import threading
import time
from typing import NoReturn

import msgspec

from pagelet.engine.errors import ConfigurationError
from pagelet.engine.executor.messages import (
    FromWorker,
    ToWorker,
    WorkerBeat,
    WorkerFailed,
    WorkerLaunch,
    WorkerReady,
    WorkerStage,
)
from pagelet.engine.executor.progress import Progress
from pagelet.engine.executor.step_loop import StepLoop
from pagelet.engine.executor.watch import BEAT_SECONDS
from pagelet.process.child import ParentLink
from pagelet.process.frames import recv_frame, send_frame

_THIS_MACHINE = ("file:", "tcp://127.", "tcp://localhost:")
"""Where ranks meet that need no network between machines."""


class ExecutorLink:
    """The worker's end of its socket to the executor."""

    def __init__(self, sock: socket.socket, progress: Progress) -> None:
        """Begins to send heartbeats, from a thread of its own."""
        self._socket = sock
        self._lock = threading.Lock()
        self._progress = progress
        self._decoder: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()

    def send(self, message: FromWorker) -> None:
        """Blocks until the kernel has all of it."""
        with self._lock:
            send_frame(self._socket, message)

    def receive(self) -> ToWorker:
        """Blocks for the next message. Raises `EOFError` when the executor is gone."""
        return recv_frame(self._socket, self._decoder)

    def has_message(self) -> bool:
        """Whether `receive` would find one on its way, or the end."""
        return bool(select.select([self._socket], [], [], 0)[0])

    def _beat(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self.send(WorkerBeat(self._progress.state, self._progress.changes))
                time.sleep(BEAT_SECONDS)


def serve(
    launch: WorkerLaunch, parent: ParentLink, link: ExecutorLink, progress: Progress
) -> NoReturn:
    """Loads this rank's shard and runs steps until the executor closes the socket."""
    from pathlib import Path

    import torch

    from pagelet.engine.executor.collectives import join_ranks
    from pagelet.engine.executor.gpu_order import gpu_of_rank
    from pagelet.engine.runner.device import choose_device
    from pagelet.engine.source import ModelFiles

    try:
        from pagelet.engine.executor.load import load_runner
    except ValueError as error:  # PAGELET_KERNELS, which operations read when they are imported
        parent.fail(str(error))
    torch.set_num_threads(launch.num_threads)
    try:
        index = launch.device_index
        device = choose_device(launch.options.device, index)
        if device.type == "cuda":
            here = launch.place.size // launch.options.parallel.nnodes
            index = gpu_of_rank(index, here, launch.place.tp_size)
            device = choose_device(launch.options.device, index)
            torch.cuda.set_device(device)
        expert_parallel = launch.options.parallel.enable_expert_parallel
        ranks = join_ranks(
            launch.place, launch.rendezvous, device, progress, expert_parallel=expert_parallel
        )
        runner = load_runner(
            launch.options,
            ModelFiles(Path(launch.model_path), launch.model_format, ""),
            launch.config,
            launch.max_model_len,
            lambda text: link.send(WorkerStage(text)),
            launch.num_real_tokens,
            index,
            ranks,
        )
    except ConfigurationError as error:
        parent.fail(str(error))
    link.send(WorkerReady(runner.layout, runner.num_blocks, runner.info))
    StepLoop(runner, link, progress, reports=launch.place.reports).run()
    # Not through the collectives' own shutdown, which waits for ranks that may hang.
    os._exit(0)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--config-fd", type=int, required=True)
    launch, parent = ParentLink.accept(parser.parse_args().config_fd, WorkerLaunch)
    os.sched_setaffinity(0, launch.cpus)
    progress = Progress()
    link = ExecutorLink(socket.socket(fileno=launch.step_fd), progress)
    # Read by libraries when torch is imported, which comes after.
    os.environ["OMP_NUM_THREADS"] = str(launch.num_threads)
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if sys.platform == "linux" and launch.rendezvous.startswith(_THIS_MACHINE):
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    try:
        serve(launch, parent, link, progress)
    except Exception as error:
        with contextlib.suppress(OSError):
            link.send(WorkerFailed(repr(error)))
        raise


if __name__ == "__main__":
    main()
