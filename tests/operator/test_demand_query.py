"""The query that KEDA asks Prometheus, answered by promtool."""

import subprocess
from pathlib import Path

import yaml

from pagelet.operator.planning.autoscaling import demand_query
from pagelet.protocol.router_metrics import DEMAND
from support.plans import make_service
from support.prometheus import promtool

SERVICE = make_service(autoscaling={"maxReplicas": 5})
SCRAPED_SECONDS = 5
TOLD = {
    # One router is not scraped for 30 s, then it is replaced, and in the end nothing is known.
    ("a", "concurrency"): "3x9 stale _x5 0 stale _x40",
    ("a", "kv"): "0.5x9 stale _x5 0 stale _x40",
    ("b", "concurrency"): "_x17 2 2 2 stale _x40",
}
ANSWERS = {"20s": 3.0, "50s": 3.0, "75s": 3.0, "80s": 0.0, "85s": 2.0, "95s": 2.0, "145s": 2.0}
NO_ANSWER = ("165s", "240s")


def test_the_last_demand_stands_in_for_a_gap_and_no_longer(tmp_path: Path) -> None:
    def series(router: str, target: str) -> str:
        labels = f'namespace="default",service="service",pool="stable",target="{target}"'
        return f'{DEMAND}{{{labels},pod="{router}"}}'

    def case(time: str, samples: list[dict[str, object]]) -> dict[str, object]:
        return {"expr": demand_query(SERVICE), "eval_time": time, "exp_samples": samples}

    known = [case(time, [{"labels": "{}", "value": value}]) for time, value in ANSWERS.items()]
    test = {
        "interval": f"{SCRAPED_SECONDS}s",
        "input_series": [
            {"series": series(*who), "values": values} for who, values in TOLD.items()
        ],
        "promql_expr_test": known + [case(time, []) for time in NO_ANSWER],
    }
    (tmp_path / "test.yaml").write_text(yaml.safe_dump({"tests": [test]}))
    command = [promtool(), "test", "rules", "test.yaml"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stdout + ended.stderr
