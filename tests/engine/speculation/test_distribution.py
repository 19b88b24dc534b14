"""Tokens that were drawn where drafts were verified have the model's distribution."""

import math

import pytest
import torch

from pagelet.engine.core.core import EngineCore
from pagelet.engine.executor.inproc import InprocExecutor
from pagelet.engine.model_config import ModelConfig
from pagelet.engine.runner.draft_model import DraftSource
from pagelet.engine.runner.model_runner import ModelRunner
from pagelet.engine.weights.hf_config import model_config_from_hf
from pagelet.protocol.engine import EngineCoreOutput, EngineCoreRequest
from pagelet.protocol.sampling import SamplingParams
from pagelet.protocol.speculation import SpeculationOptions
from support.tiny_models import TINY, tiny_options

ALLOWED = [40, 41, 42]
PROMPT = [40, 41, 42, 40, 40, 42, 41, 41, 42, 42, 40, 41, 42]
_VALUE_AT_1E_4 = 31.8
"""Of the chi-square distribution with 8 degrees of freedom."""


NGRAM = SpeculationOptions(
    method="ngram", num_speculative_tokens=2, prompt_lookup_min=1, adaptive=False
)
DRAFT = SpeculationOptions(
    method="draft_model", model="tiny", num_speculative_tokens=2, adaptive=False
)


def llama(num_layers: int) -> ModelConfig:
    raw = {**TINY, "num_hidden_layers": num_layers, "architectures": ["LlamaForCausalLM"]}
    return model_config_from_hf(raw)


@pytest.fixture(scope="module", params=[NGRAM, DRAFT], ids=["ngram", "draft_model"])
def core(request):
    torch.set_num_threads(1)
    options = tiny_options(num_blocks=300, load_format="dummy")
    options.scheduler.max_num_seqs, options.scheduler.max_num_batched_tokens = 48, 1024
    options.scheduler.max_step_seconds = 100.0
    options.speculation = request.param
    # Another model, so that its drafts are wrong often enough.
    draft = DraftSource(llama(1), None) if request.param is DRAFT else None
    executor = InprocExecutor(lambda: ModelRunner(options, llama(2), None, 96, draft=draft))
    core = EngineCore(options, executor, 96)
    yield core
    core.close()


def run(
    core: EngineCore, prompts: list[list[int]], drafts: list[int] | None = None, **params: object
) -> list[EngineCoreOutput]:
    """Every request's whole answer; `drafts` gets how many drafts were right in each step."""
    for index, prompt in enumerate(prompts):
        sampling = SamplingParams(seed=7919 * index, **params)
        core.add(
            EngineCoreRequest(
                request_id=index, external_id="", prompt_token_ids=prompt, params=sampling
            )
        )
    outputs = [EngineCoreOutput(index, []) for index in range(len(prompts))]
    while core.has_work:
        step = core.step()
        if drafts is not None and step.stats.speculation is not None:
            drafts.append(step.stats.speculation.num_accepted_tokens)
        for output in step.outputs:
            outputs[output.request_id].new_token_ids += output.new_token_ids
            outputs[output.request_id].logprobs = output.logprobs
    return outputs


def probabilities(core: EngineCore, prompt: list[int]) -> list[float]:
    """Of the allowed tokens."""
    (output,) = run(core, [prompt], temperature=0.0, max_tokens=1, logprobs=TINY["vocab_size"])
    assert output.logprobs is not None
    entry = output.logprobs[0]
    known = dict(zip(entry.token_ids, entry.logprobs, strict=True))
    weights = [math.exp(known[token]) for token in ALLOWED]
    return [weight / sum(weights) for weight in weights]


def test_pairs_of_tokens_have_the_distribution_of_the_model(core) -> None:
    first = probabilities(core, PROMPT)
    second = [probabilities(core, [*PROMPT, token]) for token in ALLOWED]
    count = 900
    drafts: list[int] = []
    answers = run(
        core,
        [PROMPT] * count,
        drafts,
        temperature=1.0,
        max_tokens=4,
        allowed_token_ids=ALLOWED,
        ignore_eos=True,
    )
    seen = dict.fromkeys([(a, b) for a in ALLOWED for b in ALLOWED], 0)
    for answer in answers:
        seen[answer.new_token_ids[0], answer.new_token_ids[1]] += 1
    distance = 0.0
    for i, a in enumerate(ALLOWED):
        for j, b in enumerate(ALLOWED):
            expected = count * first[i] * second[i][j]
            assert expected > 5
            distance += (seen[a, b] - expected) ** 2 / expected
    assert distance < _VALUE_AT_1E_4
    assert sum(drafts) > count // 4
