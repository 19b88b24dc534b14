"""Whose an object is."""

from typing import Any

import pytest

from pagelet.operator.ownership import stranger

OURS = {"metadata": {"name": "a", "uid": "1"}}
LABELS = {"app.kubernetes.io/managed-by": "pagelet-operator", "pagelet.dev/service": "a"}


def owned(kind: str, name: str, **owner: Any) -> dict[str, Any]:
    return {"ownerReferences": [{"kind": kind, "name": name, "uid": "2", **owner}]}


@pytest.mark.parametrize(
    ("metadata", "whose"),
    [
        (owned("InferenceService", "a", controller=True), None),
        ({"labels": LABELS}, None),
        ({"labels": LABELS} | owned("Backup", "b"), None),
        ({}, "the operator did not make it"),
        ({"labels": LABELS | {"pagelet.dev/service": "b"}}, "the operator did not make it"),
        (
            {"labels": LABELS} | owned("InferenceService", "b", controller=True),
            "it belongs to InferenceService b",
        ),
        (owned("Release", "a", controller=True), "it belongs to Release a"),
    ],
)
def test_an_object_is_the_services_or_a_strangers(
    metadata: dict[str, Any], whose: str | None
) -> None:
    assert stranger({"metadata": metadata}, OURS) == whose
