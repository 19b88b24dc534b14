"""The roofline's prediction for this machine beside steps that were measured on it."""

import dataclasses
from collections.abc import Iterator

from pagelet.bench.offline.limits import MachineLimits, measure_limits
from pagelet.bench.offline.measure import Sizes, engine_options, measure, model_cost
from pagelet.bench.offline.model_cost import ModelCost
from pagelet.bench.progress import Progress
from pagelet.bench.roofline.hardware import Hardware
from pagelet.bench.roofline.model import Assumptions, Roofline
from pagelet.process.host_memory import read_host_memory
from pagelet.protocol.config import ModelOptions


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One phase at one batch size, in seconds."""

    phase: str
    batch: int
    predicted: float
    measured: float


def this_machine(limits: MachineLimits, kind: str) -> Hardware:
    """By what was measured of it. Raises ValueError if it has no rate for the type of weights."""
    rate = limits.gemm(kind)
    if rate is None:
        raise ValueError(f"the rate of this machine for {kind} could not be measured")
    memory = read_host_memory().total
    return Hardware("this machine", memory, limits.read_bytes, {kind: rate}, 1.0, False)


def predict(roofline: Roofline, phase: str, batch: int, sizes: Sizes) -> float:
    """Seconds of a prefill of `batch` prompts, or of a decode step, in the middle of the run."""
    if phase == "prefill":
        return batch * roofline.ttft_seconds(sizes.prompt_len)
    return roofline.decode_seconds(batch, sizes.prompt_len + sizes.decode_steps // 2)


def compare(
    model: ModelOptions, sizes: Sizes, assumed: Assumptions, progress: Progress
) -> Iterator[Comparison]:
    """Measures the machine, then the engine. Raises what `measure` raises, and ValueError."""
    options = engine_options(model, sizes)
    cost, device = model_cost(options)
    limits = measure_limits(device, progress)
    roofline = _roofline(cost, limits, assumed)
    for found in measure(options, sizes, cost, limits, progress):
        prompts = found.batch * sizes.prompt_len
        seconds = (
            prompts / found.tokens_per_second if found.step_ms is None else found.step_ms / 1e3
        )
        predicted = predict(roofline, found.phase, found.batch, sizes)
        yield Comparison(found.phase, found.batch, predicted, seconds)


def _roofline(cost: ModelCost, limits: MachineLimits, assumed: Assumptions) -> Roofline:
    return Roofline(cost, this_machine(limits, cost.kind), 1, assumed)
