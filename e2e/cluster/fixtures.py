"""Clusters for tests: `from cluster.fixtures import control_plane` in a `conftest.py`.

`E2E_KUBECONFIG=PATH` has the tests use that cluster in place of one of their own.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.local import CannotRun, check_machine, local_cluster


@pytest.fixture(scope="session")
def control_plane() -> Iterator[Path]:
    """Kubeconfig of a cluster's administrator; there need be no node that runs pods."""
    given = os.environ.get("E2E_KUBECONFIG")
    if given:
        yield Path(given)
        return
    try:
        check_machine()
    except CannotRun as error:
        pytest.skip(str(error))
    worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
    with local_cluster(f"api-{worker}", nodes=0) as cluster:
        yield cluster.kubeconfig
