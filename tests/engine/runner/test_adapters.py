"""LoRA adapters in a runner: one batch of several and of none equals the merged models alone."""

import os

import msgspec
import pytest
import torch

from pagelet.engine.layers import lora as lora_module
from pagelet.engine.runner.model_runner import ModelRunner
from pagelet.engine.weights.adapter_config import read_adapter, read_scaling
from pagelet.kernels.lora import add_adapters
from pagelet.protocol.config import LoraOptions
from pagelet.protocol.errors import ModelSourceError
from support.adapters import ATTENTION, MLP, save_adapter
from support.fake_graphs import FakeGraphs
from support.hand_scheduler import HandScheduler
from support.tiny_models import tiny_config, tiny_options, tiny_transformers_model

KINDS = {
    "Llama": {},
    "Qwen2": {},
    "Qwen3": {},
    "Gemma3": {"sliding_window": 9},
}
PROMPT = [5, 17, 99, 3, 42, 8, 64, 23, 77, 1, 30, 12, 55]


def make(model, *, capacity=3, dtype="float64", quantization="auto", graphs=None):
    options = tiny_options()
    options.model.dtype, options.model.quantization = dtype, quantization
    options.cache.block_size = 8 if dtype == "float64" else 16
    options.lora = LoraOptions(enabled=True, max_loras=3, max_cpu_loras=capacity)
    options.cuda.cudagraph_capture_sizes = [1, 4]
    runner = ModelRunner(
        options, tiny_config(model), model.state_dict().items(), 128, graphs=graphs
    )
    return runner, HandScheduler(runner.layout, runner.num_blocks, options.cache.block_size)


def three_adapters(model, folder):
    """Of different ranks and modules: (adapter, merged model) each."""
    config = tiny_config(model)
    both = (*ATTENTION, *MLP)
    made = []
    for seed, (rank, targets, more) in enumerate(
        ((4, both, {}), (7, ("q_proj", "v_proj"), {}), (2, both[2:], {"use_rslora": True}))
    ):
        merged = save_adapter(folder / str(seed), model, seed, rank, targets, **more)
        made.append((read_adapter(f"a{seed}", folder / str(seed), config, 8), merged))
    return made


def greedy(model, prompt, count):
    with torch.inference_mode():
        ids = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            pad_token_id=0,
        )
    return ids[0, len(prompt) :].tolist()


def prompt_logprobs(model):
    with torch.inference_mode():
        logprobs = model(torch.tensor([PROMPT])).logits[0, :-1].log_softmax(-1)
    return logprobs.gather(1, torch.tensor(PROMPT[1:])[:, None])[:, 0].tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_one_batch_equals_merged_models_alone(kind, tmp_path):
    model = tiny_transformers_model(kind, **KINDS[kind])
    adapters = three_adapters(model, tmp_path)
    runner, hand = make(model)
    for number, (adapter, _) in enumerate(adapters):
        hand.add(number, PROMPT, lora=adapter, prompt_logprobs=0)
    hand.add(3, PROMPT, prompt_logprobs=0)
    found = [[] for _ in range(4)]
    # Chunks of different lengths, in an order in which adapters alternate.
    for parts in ({0: 5, 3: 2, 1: 13}, {2: 9, 3: 11, 0: 8}, *[[2, 0, 3, 1]] * 10):
        result = runner.execute(hand.plan(parts))
        hand.take(result)
        for sampled in result.sampled:
            entries = sampled.prompt_logprobs or ()
            found[sampled.request_id] += [entry.logprobs[0] for entry in entries]
    for number, merged in enumerate((*(m for _, m in adapters), model)):
        assert hand.finish(number)[:10] == greedy(merged, PROMPT, 10)
        assert found[number] == pytest.approx(prompt_logprobs(merged), abs=1e-4)
    first = [logprobs[3] for logprobs in found]
    assert min(abs(x - y) for i, x in enumerate(first) for y in first[:i]) > 0.01


def test_steps_with_adapters_are_replayed_from_graphs_of_their_own(tmp_path, monkeypatch):
    """And on a GPU's kernels, in Triton's interpreter."""
    monkeypatch.setitem(add_adapters._by_device, "cpu", add_adapters.implementations["triton"])
    model = tiny_transformers_model("Llama")
    adapters = three_adapters(model, tmp_path)
    graphs = FakeGraphs()
    runner, hand = make(model, graphs=graphs)
    assert not runner._adapters.in_use
    for number, (adapter, _) in enumerate(adapters):
        hand.add(number, PROMPT, lora=adapter)
    hand.add(3, PROMPT)
    hand.take(runner.execute(hand.plan([0, 1, 2, 3])))
    assert graphs.replays == []
    for _ in range(3):
        hand.take(runner.execute(hand.plan([2, 0, 3, 1])))
    hand.take(runner.execute(hand.plan([1])))
    hand.take(runner.execute(hand.plan([3])))
    one, adapted_four, adapted_one = 1, 2, 3  # captured from the largest down, those without first
    assert graphs.replays == [adapted_four] * 3 + [adapted_one, one]
    for number, merged in enumerate((*(m for _, m in adapters), model)):
        answer = hand.finish(number)
        assert answer == greedy(merged, PROMPT, len(answer))
        assert len(answer) in (4, 5)


@pytest.mark.parametrize("context", ["captured", "rehearsed"])
def test_start_up_runs_the_kernels_of_adapters(context, monkeypatch):
    """All that a step with adapters may need, though there is none."""
    calls = []
    monkeypatch.setattr(
        lora_module, "add_adapters", lambda out, x, table, rows: calls.append((len(x), rows))
    )
    runner, hand = make(tiny_transformers_model("Llama"))
    batch = runner._adapters._batch
    with batch.captured() if context == "captured" else runner._adapters.rehearsed():
        hand.add(0, PROMPT)
        hand.take(runner.execute(hand.plan([0])))
        assert batch.rows.launched_blocks >= 1
    sites = len(runner._adapters._sites)
    assert [tokens for tokens, _ in calls] == [len(PROMPT)] * sites
    assert not runner._adapters.in_use
    hand.take(runner.execute(hand.plan([0])))
    assert len(calls) == sites, "a step without adapters pays nothing"


def test_recorded_programs_add_what_the_layers_add(tmp_path):
    model = tiny_transformers_model("Llama", head_dim=16).float()
    adapters = three_adapters(model, tmp_path)
    runner, hand = make(model, dtype="float32")
    assert "CPU library" in runner.info.kernels
    for number, (adapter, _) in enumerate(adapters):
        hand.add(number, PROMPT, lora=adapter, prompt_logprobs=0)
    hand.add(3, PROMPT, prompt_logprobs=0)
    result = runner.execute(hand.plan([2, 0, 3, 1]))
    found = {s.request_id: s.prompt_logprobs for s in result.sampled}
    for number, merged in enumerate((*(m for _, m in adapters), model)):
        logprobs = [entry.logprobs[0] for entry in found[number]]
        assert logprobs == pytest.approx(prompt_logprobs(merged), abs=2e-4)


def test_adapters_beyond_the_bound_are_read_again(tmp_path):
    model = tiny_transformers_model("Llama")
    adapters = three_adapters(model, tmp_path)
    runner, hand = make(model, capacity=1)
    for round_ in range(2):
        for number, (adapter, merged) in enumerate(adapters):
            request = 10 * round_ + number
            hand.add(request, PROMPT, lora=adapter)
            for _ in range(3):
                hand.take(runner.execute(hand.plan([request])))
            assert hand.finish(request) == greedy(merged, PROMPT, 3)
            assert len(runner._adapters) == 1


def test_an_adapter_that_is_gone_fails_its_request_alone(tmp_path):
    model = tiny_transformers_model("Llama")
    [(adapter, _), *_] = three_adapters(model, tmp_path)
    runner, hand = make(model)
    hand.add(0, PROMPT, lora=msgspec.structs.replace(adapter, path=str(tmp_path / "gone")))
    hand.add(1, PROMPT)
    gone, plain = runner.execute(hand.plan([0, 1])).sampled
    assert "adapter 'a0'" in gone.error
    assert gone.token_ids == []
    assert plain.token_ids == greedy(model, PROMPT, 1)


def test_an_adapter_whose_files_have_changed_fails_its_request_alone(tmp_path):
    model = tiny_transformers_model("Llama")
    [(adapter, _), *_] = three_adapters(model, tmp_path)
    # Of another shape, so that it would not even multiply.
    save_adapter(tmp_path / "0", tiny_transformers_model("Llama", hidden_size=16), 0, 4, ATTENTION)
    runner, hand = make(model)
    hand.add(0, PROMPT, lora=adapter)
    hand.add(1, PROMPT)
    changed, plain = runner.execute(hand.plan([0, 1])).sampled
    assert "files have changed: load it again" in changed.error
    assert plain.token_ids == greedy(model, PROMPT, 1)


@pytest.mark.parametrize("pattern", ["(", "q_proj)", "*", "(?P<n>x)(?P<n>y)", "a{99999999999}"])
def test_an_alpha_pattern_that_is_no_regular_expression_is_refused(pattern, tmp_path):
    model = tiny_transformers_model("Llama")
    save_adapter(tmp_path, model, 0, 4, ("q_proj",), alpha_pattern={pattern: 3})
    with pytest.raises(ModelSourceError, match="no regular expression"):
        read_adapter("a", tmp_path, tiny_config(model), 8)


@pytest.mark.parametrize(
    "pattern",
    ["(.+)+x", "(?:a|a)*x", "(.?){50}x", ".*" * 9 + "x", "(.|.)" * 30 + "x", ".?" * 40, "a" * 999],
)
def test_an_alpha_pattern_that_may_match_for_ever_is_refused(pattern, tmp_path):
    model = tiny_transformers_model("Llama")
    save_adapter(tmp_path, model, 0, 4, ("q_proj",), alpha_pattern={pattern: 3})
    with pytest.raises(ModelSourceError, match="may take for ever to match: name the modules"):
        read_adapter("a", tmp_path, tiny_config(model), 8)


@pytest.mark.parametrize(
    "pattern",
    [
        "q_proj",
        "layers.0.self_attn.q_proj",
        r"model\.layers\.\d+\.self_attn\..*",
        r".*\.(0|1|2[0-9])\.self_attn\.(q|k|v)_proj",
    ],
)
def test_alpha_patterns_as_people_write_them_are_taken(pattern, tmp_path):
    model = tiny_transformers_model("Llama")
    save_adapter(tmp_path, model, 0, 4, ("q_proj",), alpha_pattern={pattern: 3})
    scaling = read_scaling(tmp_path)
    assert scaling.factor("model.layers.0.self_attn.q_proj", 4) == 3 / 4


def test_a_pipe_in_place_of_a_configuration_is_refused(tmp_path):
    model = tiny_transformers_model("Llama")
    os.mkfifo(tmp_path / "adapter_config.json")
    with pytest.raises(ModelSourceError, match="is not a file"):
        read_adapter("a", tmp_path, tiny_config(model), 8)


@pytest.mark.parametrize(("quantization", "nearer"), [("int8", 4), ("int4", 1.4)])
def test_adapters_of_a_quantised_base_are_near_the_merged_models(quantization, nearer, tmp_path):
    model = tiny_transformers_model("Llama", head_dim=16).float()
    adapters = three_adapters(model, tmp_path)
    runner, hand = make(model, dtype="float32", quantization=quantization)
    assert runner.info.quantization == quantization
    for number, (adapter, _) in enumerate(adapters):
        hand.add(number, PROMPT, lora=adapter, prompt_logprobs=0)
    hand.add(3, PROMPT, prompt_logprobs=0)
    result = runner.execute(hand.plan([2, 0, 3, 1]))
    models = [merged for _, merged in adapters] + [model]
    for sampled in result.sampled:
        found = torch.tensor([entry.logprobs[0] for entry in sampled.prompt_logprobs])
        away = [(found - torch.tensor(prompt_logprobs(each))).abs().mean() for each in models]
        own = away.pop(sampled.request_id)
        assert min(away) > nearer * own
