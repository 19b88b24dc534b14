"""From a step's tensors to its messages, without the device ever waiting for the host.

A step is launched: its operations are queued, and its results are copied to the host on a stream of
their own. Whoever wants them waits for that copy alone, while the next step is queued behind.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch

from pagelet.engine.runner.logprobs import entries
from pagelet.engine.runner.prompt_logprobs import PromptLogprobs
from pagelet.engine.runner.sampler import Sampled
from pagelet.engine.step import RunnerOutput, SampledToken, SchedulerOutput

BROKEN = (
    "the model's logits for this request are not finite numbers, or it allows none of the tokens"
)
_BROKEN_VECTOR = "the model's vector for this request is not of finite numbers"


class HostCopies(Protocol):
    """How results come to the host."""

    asynchronous: bool
    """Whether there is anything to wait for."""

    def begin(self, tensors: Sequence[torch.Tensor]) -> Callable[[], list[torch.Tensor]]:
        """Starts to copy what the current stream will have computed by now. The function that is
        returned waits, in any thread, and gives the copies."""
        ...


class NoCopies:
    """Implements `HostCopies` where the device is the host."""

    asynchronous = False

    def begin(self, tensors: Sequence[torch.Tensor]) -> Callable[[], list[torch.Tensor]]:
        """See `HostCopies`."""
        return lambda: list(tensors)


class CudaCopies:
    """Implements `HostCopies` with a second stream, so that the next step's operations, which are
    queued on the first, do not delay them."""

    asynchronous = True

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def begin(self, tensors: Sequence[torch.Tensor]) -> Callable[[], list[torch.Tensor]]:
        """See `HostCopies`."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        # Blocking: a waiting thread sleeps, and does not take a core from the scheduler.
        done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        copies = []
        with torch.cuda.stream(self._stream):
            for tensor in tensors:
                copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
                copies.append(copy.copy_(tensor, non_blocking=True))
                # The allocator must not give its memory away before the copy is made.
                tensor.record_stream(self._stream)
            done.record(self._stream)

        def wait() -> list[torch.Tensor]:
            done.synchronize()
            return copies

        return wait


def make_copies(device: torch.device) -> HostCopies:
    """Those for a device."""
    return CudaCopies(device) if device.type == "cuda" else NoCopies()


class Launched(Protocol):
    """A step that the device has, or had."""

    def result(self) -> RunnerOutput:
        """What the step brought, in the plan's order; this is where the host waits."""
        ...


@dataclasses.dataclass(frozen=True)
class EndedStep:
    """Implements `Launched` for what was computed at once."""

    output: RunnerOutput

    def result(self) -> RunnerOutput:
        """See `Launched`."""
        return self.output


class LaunchedStep:
    """Implements `Launched` for a step whose operations are queued."""

    def __init__(
        self,
        plan: SchedulerOutput,
        sampling: Sequence[int],
        sampled: Sampled | None,
        of_prompts: PromptLogprobs,
        pooled: Mapping[int, torch.Tensor],
        copies: HostCopies,
        failed: Mapping[int, str],
    ) -> None:
        """`sampling` are the requests of the rows of `sampled`, by index in the plan: one with
        drafts has a row after each of them. `failed` says why others, also by index, cannot go
        on."""
        self._plan = plan
        self._sampling = sampling
        self._sampled = sampled
        self._of_prompts = of_prompts
        self._pooled = pooled
        self._failed = failed
        tensors: list[torch.Tensor] = []
        if sampled is not None:
            tensors += [sampled.token_ids, sampled.broken]
            if sampled.logprobs is not None:
                tensors += sampled.logprobs.tensors
        for chunk in of_prompts.chunks:
            tensors += [*chunk.rows.tensors, chunk.broken]
        tensors += pooled.values()
        self._wait = copies.begin(tensors)
        self._output: RunnerOutput | None = None

    def wait(self) -> list[SampledToken]:
        """What the step brought, in the plan's order, to be added to before others get it."""
        self._output = self.result()
        return self._output.sampled

    def result(self) -> RunnerOutput:
        """See `Launched`."""
        if self._output is not None:
            return self._output
        copies = iter(self._wait())
        results = [SampledToken(entry.request_id, []) for entry in self._plan.scheduled]
        if self._sampled is not None:
            tokens, broken = next(copies).tolist(), next(copies).tolist()
            accepted = self._accept(results, tokens, broken)
            if (of_tokens := self._sampled.logprobs) is not None:
                found = entries(next(copies), next(copies), next(copies), of_tokens.counts)
                for order, entry in zip(self._sampled.with_logprobs, found, strict=True):
                    if order in accepted:
                        result = results[self._sampling[order]]
                        result.logprobs = [*(result.logprobs or ()), entry]
        for index in self._of_prompts.requests:
            results[index].prompt_logprobs = []
        for chunk in self._of_prompts.chunks:
            found = entries(next(copies), next(copies), next(copies), chunk.rows.counts)
            for index, entry, bad in zip(chunk.requests, found, next(copies).tolist(), strict=True):
                result = results[index]
                if bad:
                    results[index] = SampledToken(result.request_id, [], error=BROKEN)
                elif result.prompt_logprobs is not None:
                    result.prompt_logprobs.append(entry)
        for index, vector in zip(self._pooled, copies, strict=True):
            if vector.isfinite().all():
                results[index].pooled = vector.numpy().tobytes()
            else:
                results[index].error = _BROKEN_VECTOR
        for index, why in self._failed.items():
            results[index] = SampledToken(results[index].request_id, [], error=why)
        return RunnerOutput(self._plan.step, results)

    def _accept(
        self, results: Sequence[SampledToken], tokens: Sequence[int], broken: Sequence[bool]
    ) -> set[int]:
        """Gives each request its tokens, up to the first that is not the draft in its place: what
        was drawn after that followed a token that is not there. Returns the rows that count."""
        accepted: set[int] = set()
        ended: set[int] = set()
        for order, index in enumerate(self._sampling):
            if index in ended:
                continue
            token_ids = results[index].token_ids
            drafts = self._plan.scheduled[index].draft_token_ids
            place = len(token_ids)
            if broken[order]:
                ended.add(index)
                if place == 0:  # else the next step comes to it again
                    results[index].error = BROKEN
                continue
            token_ids.append(tokens[order])
            accepted.add(order)
            if place >= len(drafts) or drafts[place] != tokens[order]:
                ended.add(index)
        return accepted
