"""A Kubernetes cluster on this machine, for as long as this program runs.

    .venv/bin/python e2e/kube.py --nodes 0      # a control plane alone, ready in seconds
    .venv/bin/python e2e/kube.py                # and two nodes

It prints the kubeconfig's path, and stops the cluster at Ctrl-C, SIGTERM or the end of its parent.
"""

import argparse
import signal
import sys
from types import FrameType
from typing import NoReturn

from cluster.cache import say
from cluster.local import CannotRun, local_cluster
from cluster.packages import PackagesMissing
from cluster.programs import CannotBuild
from cluster.sandbox import SandboxFailed


def _interrupt(signum: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def main() -> int:
    """Exit code 0 after an orderly end, 1 with a reason where there is no cluster."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=2, help="how many nodes (default: 2)")
    parser.add_argument("--name", default="dev", help="tells clusters on one machine apart")
    arguments = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        with local_cluster(arguments.name, nodes=arguments.nodes) as cluster:
            say("Ready. Ctrl-C stops it. In another terminal:")
            print(f"\nexport KUBECONFIG={cluster.kubeconfig}", flush=True)
            print(f"export PATH={cluster.layout.folder / 'bin'}:$PATH\n", flush=True)
            signal.pause()
    except KeyboardInterrupt:
        return 0
    except (CannotBuild, CannotRun, PackagesMissing, SandboxFailed) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
