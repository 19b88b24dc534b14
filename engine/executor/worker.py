"""One tensor-parallel rank as a process: `python -m pagelet.engine.executor.worker --config-fd N`.

Every rank gets every plan, keeps state rows of its own, and draws tokens from the same gathered
logits with exact arithmetic, so no token has to be sent from one rank to another.
"""

import argparse
import contextlib
import os
import socket
import sys
from typing import NoReturn

import msgspec

from pagelet.engine.errors import ConfigurationError
from pagelet.engine.executor.messages import (
    StepResult,
    WorkerFailed,
    WorkerLaunch,
    WorkerReady,
    WorkerStage,
)
from pagelet.engine.step import SchedulerOutput, TokenMasks
from pagelet.process.child import ParentLink
from pagelet.process.frames import recv_frame, send_frame


def serve(launch: WorkerLaunch, link: ParentLink, sock: socket.socket) -> NoReturn:
    """Loads this rank's shard and runs steps until the executor closes the socket."""
    from pathlib import Path

    import torch

    from pagelet.engine.executor.collectives import join_ranks
    from pagelet.engine.executor.load import load_runner
    from pagelet.engine.runner.device import choose_device
    from pagelet.engine.source import ModelFiles

    torch.set_num_threads(launch.num_threads)
    try:
        device = choose_device(launch.options.device, launch.rank)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        runner = load_runner(
            launch.options,
            ModelFiles(Path(launch.model_path), launch.model_format, ""),
            launch.config,
            launch.max_model_len,
            lambda text: send_frame(sock, WorkerStage(text)),
            launch.num_real_tokens,
            join_ranks(launch.rank, launch.size, launch.rendezvous, device),
        )
    except ConfigurationError as error:
        link.fail(str(error))
    send_frame(sock, WorkerReady(runner.layout, runner.num_blocks, runner.info))
    decoder = msgspec.msgpack.Decoder(SchedulerOutput)
    mask_decoder = msgspec.msgpack.Decoder(TokenMasks)

    def receive_masks() -> TokenMasks:
        return recv_frame(sock, mask_decoder)

    while True:
        try:
            plan = recv_frame(sock, decoder)
        except EOFError:
            # Not through the collectives' own shutdown, which waits for ranks that may hang.
            os._exit(0)
        output = runner.execute(plan, receive_masks)
        if launch.rank == 0:
            send_frame(sock, StepResult(output))


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--config-fd", type=int, required=True)
    launch, link = ParentLink.accept(parser.parse_args().config_fd, WorkerLaunch)
    # Read by libraries when torch is imported, which comes after.
    os.environ["OMP_NUM_THREADS"] = str(launch.num_threads)
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if sys.platform == "linux":
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    sock = socket.socket(fileno=launch.step_fd)
    try:
        serve(launch, link, sock)
    except Exception as error:
        with contextlib.suppress(OSError):
            send_frame(sock, WorkerFailed(repr(error)))
        raise


if __name__ == "__main__":
    main()
