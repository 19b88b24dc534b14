"""What a model is for: as its files say, or the user, or an error that says what would work."""

import json

import pytest

from pagelet.engine.model_config import PoolingConfig
from pagelet.engine.source import ModelFiles
from pagelet.engine.weights.load_config import load_model_config
from pagelet.protocol.config import ModelOptions
from pagelet.protocol.errors import ModelSourceError

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 64,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "intermediate_size": 16,
    "max_position_embeddings": 64,
}
MODULES = [{"type": f"sentence_transformers.models.{kind}"} for kind in ("Transformer", "Pooling")]
POOLING = {"word_embedding_dimension": 16, "pooling_mode_cls_token": False}


def load(folder, config=(), modules=None, mode=None, **options):
    (folder / "config.json").write_text(json.dumps(CONFIG | dict(config)))
    if modules is not None:
        (folder / "modules.json").write_text(json.dumps(modules))
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling/config.json").write_text(json.dumps(POOLING | {mode: True}))
    files = ModelFiles(folder, "safetensors", "model")
    return load_model_config(files, ModelOptions(source="model", **options))


MEAN = {"modules": MODULES, "mode": "pooling_mode_mean_tokens"}
LAST = {"modules": MODULES, "mode": "pooling_mode_lasttoken"}
ONE_LABEL = {"architectures": ["LlamaForSequenceClassification"], "id2label": {"0": "relevant"}}
GEMMA = {"architectures": ["Gemma3TextForSequenceClassification"]}
WITHOUT_HEAD = {"architectures": ["Qwen3Model"]}


@pytest.mark.parametrize(
    ("setup", "head", "pooling"),
    [
        ({}, "lm", None),
        ({"config": WITHOUT_HEAD}, "none", PoolingConfig("embed")),
        ({"task": "embed", "pooling": "mean"}, "none", PoolingConfig("embed", "mean")),
        (MEAN, "none", PoolingConfig("embed", "mean")),
        (LAST, "none", PoolingConfig("embed", "last")),
        (LAST | {"pooling": "cls"}, "none", PoolingConfig("embed", "cls")),
        (LAST | {"task": "generate"}, "lm", None),
        ({"config": ONE_LABEL}, "score", PoolingConfig("score")),
        ({"config": GEMMA}, "score", PoolingConfig("score")),
        ({"score_tokens": ["no", "yes"]}, "lm", PoolingConfig("score", "last", ("no", "yes"))),
    ],
)
def test_what_a_model_is_for(setup, head, pooling, tmp_path):
    config = load(tmp_path, **setup)
    assert (config.head, config.pooling) == (head, pooling)
    assert config.num_labels == {"LlamaForCausalLM": 1, "Gemma3ForCausalLM": 2}.get(
        config.architecture, 0
    )


@pytest.mark.parametrize(
    ("setup", "words"),
    [
        ({"task": "score"}, "Qwen3ForCausalLM has no scores.*--score-tokens no,yes"),
        ({"config": WITHOUT_HEAD, "task": "generate"}, "only embeds.*leave --task generate out"),
        ({"config": GEMMA, "task": "generate"}, "only scores"),
        ({"config": ONE_LABEL, "score_tokens": ["no", "yes"]}, "leave --score-tokens out"),
        ({"score_tokens": ["no", "yes"], "task": "embed"}, "--score-tokens has no effect"),
        ({"pooling": "mean"}, "--pooling needs --task embed"),
        ({"modules": [*MODULES, {"type": "a.Dense"}], "mode": "x"}, "module Dense is not"),
        ({"modules": MODULES, "mode": "pooling_mode_max_tokens"}, "max_tokens is not supported"),
        ({"modules": {"type": "no list"}, "mode": "x"}, "is no list of modules"),
        ({"modules": [MODULES[1] | {"path": "2_Pooling"}], "mode": "x"}, "2_Pooling.*is missing"),
        ({"config": {"is_causal": False}}, "is_causal"),
    ],
)
def test_what_cannot_be_is_an_error_that_says_what_would_work(setup, words, tmp_path):
    with pytest.raises(ModelSourceError, match=words):
        load(tmp_path, **setup)
