"""Rules across fields, in Python. `tests/operator/test_crd_on_cluster.py` compares them with the
API server's."""

import pytest

from pagelet.protocol.inference_service.load import InvalidServices, read_service
from pagelet.protocol.inference_service.rules import RULES
from support.broken_services import BROKEN, ENTRY, SOUND, Broken, scaled


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


def test_times_that_no_clock_shows_are_refused_where_they_stand() -> None:
    entries = [ENTRY, ENTRY | {"timezone": "Mars/Base"}, ENTRY | {"end": "0 25 * * *"}]
    with pytest.raises(InvalidServices) as refused:
        read_service(scaled(engine="builtin", schedule=entries))
    assert refused.value.problems == [
        "spec.autoscaling.schedule[1].timezone: there is no time zone 'Mars/Base': such as "
        "Europe/Berlin, or UTC",
        "spec.autoscaling.schedule[2].end: '25' is no hour: 0 to 23",
    ]
