"""The step that needs the most memory, to be run once at the start where that is quick.

A GPU's kernels, libraries and allocator need what they need: no formula knows all of it. So the
largest chunk of a prompt and the largest batch to sample for are run together, and the peak of what
this process had allocated is what every later step may need. What other processes do in that moment
does not matter to it (vllm-project/vllm#55169).
"""

import gc
from collections.abc import Callable

import torch

from pagelet.engine.kv.spec import KVLayout
from pagelet.engine.step import NewRequestData, ScheduledRequest, SchedulerOutput
from pagelet.protocol.config import SchedulerOptions
from pagelet.protocol.sampling import SamplingParams

NUM_BLOCKS = 2
"""Of the KV cache that the step runs on: the null block, and one that is everybody's."""
_GREEDIEST = SamplingParams(
    temperature=1.0,
    top_p=0.9,
    top_k=1000,
    min_p=0.01,
    repetition_penalty=1.1,
    logprobs=20,
    seed=0,
    allowed_token_ids=[0],
)


def worst_step(
    options: SchedulerOptions,
    max_model_len: int,
    layout: KVLayout,
    block_size: int,
    drafts: int = 0,
) -> tuple[SchedulerOutput, SchedulerOutput]:
    """The plan of that step, and one that frees its rows again.

    As many requests as may run, each of which samples with every filter; all tokens that they do
    not need themselves are the last chunk of one prompt that ends where a sequence must, and of
    further ones where one prompt cannot be so long. The last of them are `drafts`, as far as there
    are so many: tokens are sampled after each of those, too.
    """
    num_requests = min(options.max_num_seqs, options.max_num_batched_tokens)
    spare = options.max_num_batched_tokens - num_requests
    end = max(1, max_model_len - 1)  # with a place for the token that is drawn
    tokens, blocks = [0] * max_model_len, [1] * -(-max_model_len // block_size)
    new, scheduled = [], []
    for request_id in range(num_requests):
        count = 1 + min(spare, end - 1)
        spare -= count - 1
        tables = [blocks for _ in layout.groups]
        guesses = [0] * min(drafts, count - 1)
        drafts -= len(guesses)
        new.append(NewRequestData(request_id, tokens, 1, _GREEDIEST, [], tables))
        scheduled.append(
            ScheduledRequest(
                request_id, end - count, count, end < max_model_len, draft_token_ids=guesses
            )
        )
    total = sum(entry.num_tokens for entry in scheduled)
    plan = SchedulerOutput(0, new, scheduled, [], total)
    return plan, SchedulerOutput(0, [], [], list(range(num_requests)), 0)


def warm_up_sizes(max_tokens: int) -> list[int]:
    """Numbers of tokens, ascending, of steps to run before requests come: powers of two, and the
    largest. Kernels choose tiles by the number of rows, and of a mixture by those of an expert, and
    are compiled when they first run, for which no request should wait."""
    return sorted({1 << power for power in range(max_tokens.bit_length())} | {max_tokens})


def measurable(device: torch.device) -> bool:
    """Whether to run it: on a CPU it takes seconds, and would be most of the start."""
    return device.type == "cuda"


def peak_bytes(function: Callable[[], object], device: torch.device) -> int:
    """The most that `function` had on a GPU at once, beside what was there before: of what the
    allocator had taken from the driver, which is more than tensors had of it. What it freed is
    given back to the driver."""
    gc.collect()
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    allocated, reserved = torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)
    torch.cuda.reset_peak_memory_stats(device)
    function()
    torch.cuda.synchronize(device)
    peak = max(
        torch.cuda.max_memory_allocated(device) - allocated,
        torch.cuda.max_memory_reserved(device) - reserved,
    )
    torch.cuda.empty_cache()
    return peak
