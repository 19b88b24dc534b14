"""How much the replicas can compute together: what the rate of a trace is a share of."""

import asyncio
import random
from collections.abc import Sequence

import uvloop

from pagelet.bench.load.run import Load, RunResult, run_completions
from pagelet.bench.load.workload import Session, Turn, Workload
from pagelet.bench.routers.replicas import MODEL_NAME, Replicas
from pagelet.bench.routing.replica import Hardware
from pagelet.bench.server import ServerFailed

_REQUESTS, _CONCURRENCY = 12, 6
_PROMPT_TOKENS, _ANSWER_TOKENS = 512, 32


def simulated_arguments(hardware: Hardware) -> list[str]:
    """Arguments of `pagelet serve` for a replica that takes that time for its steps."""
    return [
        *("--runner", "simulated"),
        *("--simulated-step-seconds", str(hardware.step_seconds)),
        *("--simulated-token-seconds", str(hardware.token_seconds)),
        *("--max-num-batched-tokens", str(hardware.max_num_batched_tokens)),
        *("--max-num-seqs", str(hardware.max_num_seqs)),
    ]


def measure_speed(replicas: Replicas, words: Sequence[str]) -> float:
    """Tokens a second, of prompts and answers, of all replicas together under full load of prompts
    that share nothing. Raises `ServerFailed`."""
    rng = random.Random(0)

    def workload() -> Workload:
        prompts = [" ".join(rng.choices(words, k=_PROMPT_TOKENS)) for _ in range(_REQUESTS)]
        turns = [Turn(prompt, _ANSWER_TOKENS) for prompt in prompts]
        return Workload("full load", tuple(Session((turn,)) for turn in turns))

    async def load_all() -> list[RunResult]:
        load = Load(concurrency=_CONCURRENCY)
        return await asyncio.gather(
            *(
                run_completions(target.url, MODEL_NAME, workload(), load)
                for target in replicas.targets
            )
        )

    results = uvloop.run(load_all())
    records = [record for result in results for record in result.records]
    for record in records:
        if not record.ok:
            raise ServerFailed(f"a request failed: {record.error_detail}")
    tokens = sum(record.prompt_tokens + record.output_tokens for record in records)
    return tokens / max(result.duration for result in results)
