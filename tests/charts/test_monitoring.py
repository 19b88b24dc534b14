"""What the chart makes for monitoring, where its values ask for it."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.kubectl import helm_program
from cluster.programs import HELM, is_built

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts/pagelet"
ALL = ("podMonitor.enabled=true", "rules.enabled=true", "dashboards.enabled=true")


@pytest.fixture(scope="module")
def helm() -> str:
    """Its path."""
    if shutil.which("helm") or is_built(HELM):
        return helm_program()
    pytest.skip("Helm was not built here yet: `make e2e` does that and runs this test")


def rendered(helm: str, *values: str) -> list[dict[str, Any]]:
    """The chart's objects, with values of `monitoring`, or others where they begin with a dot."""
    settings = [
        f"--set={value[1:]}" if value.startswith(".") else f"--set=monitoring.{value}"
        for value in values
    ]
    command = [helm, "template", "pagelet", CHART, "--namespace=system", *settings]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    return [one for one in yaml.safe_load_all(ended.stdout) if one]


def of_kind(objects: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [one for one in objects if one["kind"] == kind]


def test_nothing_of_it_is_there_unless_asked_for(helm: str) -> None:
    objects = rendered(helm)
    for kind in ("PodMonitor", "PrometheusRule", "ConfigMap"):
        assert of_kind(objects, kind) == []


def test_monitors_choose_the_pods_that_the_operator_makes(helm: str) -> None:
    own, services = of_kind(rendered(helm, *ALL), "PodMonitor")
    (deployment,) = of_kind(rendered(helm), "Deployment")
    template = deployment["spec"]["template"]
    chosen = own["spec"]["selector"]["matchLabels"].items()
    assert chosen <= template["metadata"]["labels"].items()
    ports = [port["name"] for port in template["spec"]["containers"][0]["ports"]]
    assert own["spec"]["podMetricsEndpoints"][0]["port"] in ports
    golden = yaml.safe_load_all((ROOT / "tests/operator/golden/minimal.yaml").read_text())
    pods = [one["spec"]["template"] for one in golden if one["kind"] == "Deployment"]
    assert len(pods) == 2
    for pod in pods:
        chosen = services["spec"]["selector"]["matchLabels"].items()
        assert chosen <= pod["metadata"]["labels"].items()
        names = [port["name"] for port in pod["spec"]["containers"][0]["ports"]]
        assert services["spec"]["podMetricsEndpoints"][0]["port"] in names
        assert set(services["spec"]["podTargetLabels"]) <= pod["metadata"]["labels"].keys()
    assert services["spec"]["namespaceSelector"] == {"any": True}


def test_monitors_look_where_the_operator_serves(helm: str) -> None:
    _, services = of_kind(rendered(helm, *ALL, ".namespaces={a,b}"), "PodMonitor")
    assert services["spec"]["namespaceSelector"] == {"matchNames": ["a", "b"]}


def test_the_rule_is_the_file_of_alerts(helm: str) -> None:
    (rule,) = of_kind(rendered(helm, *ALL), "PrometheusRule")
    assert rule["spec"] == yaml.safe_load((CHART / "files/alerts.yaml").read_text())
    (rule,) = of_kind(
        rendered(helm, *ALL, "rules.runbooks=https://wiki.example.com/", "rules.labels.a=b"),
        "PrometheusRule",
    )
    assert rule["metadata"]["labels"]["a"] == "b"
    urls = [one["annotations"]["runbook_url"] for one in rule["spec"]["groups"][0]["rules"]]
    assert urls[0] == "https://wiki.example.com/no-replica.md"


def test_every_dashboard_is_a_config_map_for_grafanas_sidecar(helm: str) -> None:
    maps = of_kind(rendered(helm, *ALL), "ConfigMap")
    found: dict[str, Any] = {}
    for one in maps:
        assert one["metadata"]["labels"]["grafana_dashboard"] == "1"
        found |= {name: json.loads(text) for name, text in one["data"].items()}
    files = (CHART / "dashboards").glob("*.json")
    assert found == {file.name: json.loads(file.read_text()) for file in files}
