"""A real Prometheus, where one was built or is installed."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from cluster.programs import PROMETHEUS, PROMTOOL, Program, build, is_built
from pagelet.bench.server import HOST, free_port
from support.processes import wait_for


def promtool() -> str:
    """Its path. Skips the test where there is none."""
    return program_path(PROMTOOL)


def program_path(program: Program) -> str:
    """Skips the test where it was not built; `E2E_BUILD=1` has it built, which takes minutes."""
    if is_built(program) or os.environ.get("E2E_BUILD"):
        return str(build(program))
    if (found := shutil.which(program.name)) is not None:
        return found
    pytest.skip(f"{program.name} was not built here yet: `make e2e` does that")


NAMESPACE = "test"
"""Label of everything that is scraped, as in a cluster."""


class Prometheus:
    """What runs at `url`."""

    def __init__(self, url: str) -> None:
        self.url = url

    def query(self, promql: str) -> list[dict[str, Any]]:
        """The samples of an instant query, each with its labels in `metric`."""
        answer = httpx.get(f"{self.url}/api/v1/query", params={"query": promql}, timeout=30).json()
        assert answer["status"] == "success", f"{promql}: {answer.get('error')}"
        data = answer["data"]
        return [{"metric": {}}] if data["resultType"] == "scalar" else list(data["result"])

    def firing(self) -> set[str]:
        """Names of the alerts that fire or are about to."""
        alerts = httpx.get(f"{self.url}/api/v1/alerts", timeout=30).json()["data"]["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts}


@contextlib.contextmanager
def prometheus(
    folder: Path, jobs: Mapping[str, Sequence[str]], rules: Sequence[Path] = ()
) -> Iterator[Prometheus]:
    """Scrapes `jobs`, of addresses HOST:PORT, every second. Skips the test where there is none."""
    program = program_path(PROMETHEUS)
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(path) for path in rules],
        "scrape_configs": [
            {
                "job_name": job,
                "static_configs": [{"targets": list(targets), "labels": {"namespace": NAMESPACE}}],
            }
            for job, targets in jobs.items()
        ],
    }
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(config))
    address = f"{HOST}:{free_port()}"
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(
            [program, f"--config.file={file}", f"--web.listen-address={address}",
             f"--storage.tsdb.path={folder / 'tsdb'}"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )  # fmt: skip
    url = f"http://{address}"
    try:
        wait_for(lambda: _is_ready(url, process))
        yield Prometheus(url)
    finally:
        process.terminate()
        process.wait(30)


def _is_ready(url: str, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, "Prometheus ended: its log lies beside its configuration"
    try:
        return httpx.get(f"{url}/-/ready", timeout=5).status_code == 200
    except httpx.TransportError:
        return False
