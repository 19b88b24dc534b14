"""What the operator tells of itself, and when it says that it should be started again."""

import re
import time
from pathlib import Path

from pagelet.operator.http import unhealthy
from pagelet.operator.metrics import Metrics

_DOCS = Path(__file__).resolve().parents[2] / "docs/observability.md"


def test_what_was_listed_long_ago_in_one_namespace_is_not_made_good_by_another() -> None:
    now = time.monotonic()
    listed = [("pods", now - 1000), ("services", now), ("pods", now), ("pods", now - 2000)]
    assert unhealthy(listed, 240, now - 5000) == "not listed for long: pods"
    assert unhealthy(listed, 1000, now - 5000) is None


def test_a_first_list_has_as_much_time_as_the_next_ones() -> None:
    now = time.monotonic()
    assert unhealthy([("pods", None)], 240, now - 100) is None
    assert unhealthy([("pods", None)], 240, now - 1000) == "not listed for long: pods"


def test_every_metric_is_documented_as_it_is() -> None:
    text = Metrics().render()
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    words = dict(re.findall(r"^# HELP (\S+) (.+)$", text, re.MULTILINE))
    rows = re.findall(
        r"^\| `(pagelet_operator_\w+)` \| (.+) \| (.+) \|$", _DOCS.read_text(), re.MULTILINE
    )
    assert rows == [(name, kind, words[name]) for name, kind in kinds.items()]
