"""What a tensor-parallel worker and its executor tell each other over their socket.

The executor sends the plan of each step, `SchedulerOutput`, and nothing else.
"""

from typing import Literal

import msgspec

from pagelet.engine.kv.spec import KVLayout
from pagelet.engine.model_config import ModelConfig
from pagelet.engine.step import RunnerInfo, RunnerOutput
from pagelet.protocol.config import EngineOptions


class WorkerLaunch(msgspec.Struct, kw_only=True):
    """A worker's configuration, read with `ParentLink.accept`."""

    options: EngineOptions
    config: ModelConfig
    model_path: str
    model_format: Literal["safetensors", "gguf"]
    max_model_len: int
    num_real_tokens: int | None
    rank: int
    size: int
    num_threads: int
    rendezvous: str
    """A file in a private folder, in which the ranks find one another."""
    step_fd: int
    """The inherited socket of steps and results."""


class WorkerStage(msgspec.Struct, array_like=True, tag="stage"):
    """What the start-up is at."""

    text: str


class WorkerReady(msgspec.Struct, array_like=True, tag="ready"):
    """The model is loaded."""

    layout: KVLayout
    num_blocks: int
    info: RunnerInfo


class StepResult(msgspec.Struct, array_like=True, tag="result"):
    """Rank 0 only: all ranks draw the same tokens, so one tells."""

    output: RunnerOutput


class WorkerFailed(msgspec.Struct, array_like=True, tag="failed"):
    """The worker's last words."""

    error: str


FromWorker = WorkerStage | WorkerReady | StepResult | WorkerFailed
