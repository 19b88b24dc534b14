"""Debian packages that a node and the images need."""

import os
import shutil
import subprocess
from typing import Final

from cluster.cache import say

_PROGRAMS: Final = {
    "containerd": "containerd",
    "runc": "runc",
    "containernetworking-plugins": "/usr/lib/cni/ptp",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "buildah": "buildah",
    "mmdebstrap": "mmdebstrap",
}
"""What each package is wanted for."""


class PackagesMissing(Exception):
    """Something is to be installed by hand; the message says what."""


def install_packages(*names: str) -> None:
    """Installs what is missing, as root on Debian. Raises `PackagesMissing`."""
    missing = [name for name in names if shutil.which(_PROGRAMS[name]) is None]
    if not missing:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise PackagesMissing(f"install these first: {' '.join(missing)}")
    say(f"Installing {' '.join(missing)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing]
    for command in (["apt-get", "update", "-qq"], install):
        result = subprocess.run(
            command, check=False, capture_output=True, text=True, env=environment
        )
        if result.returncode:
            raise PackagesMissing(f"{' '.join(command)} failed: {result.stderr.strip()}")
