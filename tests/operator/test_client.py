"""What the operator's client sends is what the API server reads."""

import json
from typing import Any

import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from pagelet.operator.kube.client import encoded
from support.cluster import Api

ODD = '\N{PILE OF POO} \x7f\x85\x9f\u2028\u2029\ufeff\ufffd\uffff \\ud83d\\udca9 \\ " \t\n\r é 名前'
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


@given(TEXT)
@example(ODD)
def test_a_body_is_the_same_in_json_and_in_yaml(text: str) -> None:
    body = {"data": {"text": text}}
    sent = encoded(body)
    assert json.loads(sent) == body
    assert yaml.load(sent, yaml.CSafeLoader) == body


def test_half_a_character_is_sent_as_none() -> None:
    assert json.loads(encoded({"a": "\ud800"})) == {"a": "?"}


async def test_texts_are_applied_as_they_are(api: Api, namespace: str) -> None:
    metadata = {"name": "texts", "namespace": namespace}
    made: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    applied = await api.apply(made | {"data": {"text": ODD}}, force=True)
    assert applied["data"] == {"text": ODD}
