"""What a rank's process and its executor tell each other over their socket."""

from typing import Literal

import msgspec

from pagelet.engine.executor.topology import RankPlace
from pagelet.engine.kv.spec import KVLayout
from pagelet.engine.model_config import ModelConfig
from pagelet.engine.step import RunnerInfo, RunnerOutput, SchedulerOutput, TokenMasks
from pagelet.protocol.config import EngineOptions


class WorkerLaunch(msgspec.Struct, kw_only=True):
    """A worker's configuration, read with `ParentLink.accept`."""

    options: EngineOptions
    config: ModelConfig
    model_path: str
    model_format: Literal["safetensors", "gguf"]
    max_model_len: int
    num_real_tokens: int | None
    place: RankPlace
    device_index: int
    """Its GPU, among those that the process sees."""
    cpus: list[int]
    """Those that it may run on."""
    num_threads: int
    """Its share of them."""
    rendezvous: str
    """A URL with which the ranks find one another."""
    step_fd: int
    """The inherited socket of steps and results."""


class WorkerStep(msgspec.Struct, array_like=True, tag="step"):
    """To every rank: a step to run, after those sent before."""

    plan: SchedulerOutput


class WorkerMasks(msgspec.Struct, array_like=True, tag="masks"):
    """To the last stage: those of the plan sent before, and the very next message after it."""

    masks: TokenMasks


class WorkerTokens(msgspec.Struct, array_like=True, tag="tokens"):
    """To the stages before the last: tokens that it drew."""

    request_ids: list[int]
    positions: list[int]
    """Of each request's first one of them."""
    token_ids: list[list[int]]


ToWorker = WorkerStep | WorkerMasks | WorkerTokens


class WorkerStage(msgspec.Struct, array_like=True, tag="stage"):
    """What the start-up is at."""

    text: str


class WorkerReady(msgspec.Struct, array_like=True, tag="ready"):
    """The model is loaded."""

    layout: KVLayout
    num_blocks: int
    info: RunnerInfo


class StepResult(msgspec.Struct, array_like=True, tag="result"):
    """From the rank that reports."""

    output: RunnerOutput


class WorkerBeat(msgspec.Struct, array_like=True, tag="beat"):
    """Twice a second, from a thread beside the step loop: see `Progress`."""

    state: str
    changes: int


class WorkerFailed(msgspec.Struct, array_like=True, tag="failed"):
    """The worker's last words."""

    error: str


FromWorker = WorkerStage | WorkerReady | StepResult | WorkerBeat | WorkerFailed
