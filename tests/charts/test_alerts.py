"""The alerts: each fires by its own fault, asks for metrics that are there, and has a runbook."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.exported import exported_samples, names_in
from support.prometheus import promtool

ROOT = Path(__file__).parents[2]
FILE = ROOT / "charts/pagelet/files/alerts.yaml"
UNIT_TEST = Path(__file__).with_name("alerts.test.yaml")
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(FILE.read_text())["groups"] for rule in group["rules"]
]


def test_promtool_accepts_the_rules_and_each_fires_by_its_fault_alone() -> None:
    program = promtool()
    for command in (["check", "rules", FILE], ["test", "rules", UNIT_TEST.name]):
        ended = subprocess.run(
            [program, *command], cwd=UNIT_TEST.parent, capture_output=True, text=True, timeout=120
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr


def test_every_alert_is_made_to_fire_by_the_unit_test() -> None:
    fired = re.findall(r'alertname="(\w+)"', UNIT_TEST.read_text())
    assert {rule["alert"] for rule in RULES} == set(fired)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_an_alert_asks_for_metrics_that_are_exported(rule: dict[str, Any]) -> None:
    names = names_in(rule["expr"])
    assert names
    assert names <= exported_samples()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_an_alert_has_a_severity_and_a_runbook_that_names_it(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning")
    page = ROOT / rule["annotations"]["runbook_url"]
    assert rule["alert"] in page.read_text().splitlines()[0]


def test_no_runbook_is_left_over() -> None:
    pages = {rule["annotations"]["runbook_url"] for rule in RULES}
    assert {f"docs/runbooks/{path.name}" for path in (ROOT / "docs/runbooks").iterdir()} == pages
