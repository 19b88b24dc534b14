"""Rules across fields, in Python. `tests/operator/test_crd_on_cluster.py` compares them with the
API server's."""

import pytest

from pagelet.protocol.inference_service.load import InvalidServices, read_service
from pagelet.protocol.inference_service.rules import RULES
from support.broken_services import BROKEN, SOUND, Broken


@pytest.mark.parametrize("case", BROKEN, ids=lambda case: case.id)
def test_a_broken_rule_says_what_to_change(case: Broken) -> None:
    with pytest.raises(InvalidServices) as caught:
        read_service(case.body)
    assert caught.value.problems == [f"{case.path}: {case.words}"]


@pytest.mark.parametrize("body", SOUND)
def test_what_keeps_the_rules_is_taken(body: dict[str, object]) -> None:
    read_service(body)


def test_every_rule_is_broken_by_some_case() -> None:
    for rule in RULES:
        start = rule.message.split("{")[0]
        assert any(start in case.words for case in BROKEN), rule.message
