"""The cluster of tests that need an API server and no more: a fixture of `tests/conftest.py`.

Such tests do not build Kubernetes, which takes minutes: they run where it was built, and `make e2e`
builds it and runs them too.

`E2E_KUBECONFIG=PATH` has the tests use that cluster in place of one of their own.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.local import CannotRun, check_machine, local_cluster
from cluster.packages import PackagesMissing
from cluster.programs import KUBERNETES, is_built
from cluster.sandbox import SandboxFailed


@pytest.fixture(scope="session")
def control_plane() -> Iterator[Path]:
    """Kubeconfig of a cluster's administrator; there need be no node that runs pods."""
    given = os.environ.get("E2E_KUBECONFIG")
    if given:
        yield Path(given)
        return
    if not is_built(KUBERNETES):
        pytest.skip("Kubernetes was not built here yet: `make e2e` does that and runs this test")
    worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
    try:
        check_machine()
        with local_cluster(f"api-{worker}", nodes=0) as cluster:
            yield cluster.kubeconfig
    except (CannotRun, PackagesMissing, SandboxFailed) as error:
        pytest.skip(f"there is no cluster here: {error}")
