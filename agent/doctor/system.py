"""The rest of the machine: limits, ports, and the Python packages that must fit together."""

import importlib.metadata
import resource
import socket
import sys

from packaging.requirements import Requirement

from pagelet.agent.doctor.checks import Finding

_FILES = 4096
_EXTRA = "engine"


def check_open_files() -> Finding:
    """How many connections the process may hold; the server raises the soft limit by itself."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = hard == resource.RLIM_INFINITY
    few = not unlimited and hard < _FILES
    return Finding(
        name="open files",
        status="warn" if few else "ok",
        summary=f"at most {'unlimited' if unlimited else hard}",
        facts={"soft": soft, "hard": None if unlimited else hard},
        advice=f"each connection takes one: raise the hard limit (ulimit -Hn) to {_FILES} or more"
        if few
        else "",
    )


def check_port(host: str, port: int) -> Finding:
    """Whether nothing listens on a port yet."""
    name = f"port {port}"
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return Finding(
                name=name,
                status="warn",
                summary=f"cannot be used on {host}: {error.strerror}",
                facts={"host": host, "port": port, "free": False},
                advice="serve on another with --port, or on a free one with --port 0",
            )
    return Finding(
        name=name,
        status="ok",
        summary=f"free on {host}",
        facts={"host": host, "port": port, "free": True},
    )


def check_packages() -> Finding:
    """Whether the installed packages are the versions that Pagelet's engine asks for."""
    versions: dict[str, str | None] = {}
    unfit = []
    for text in importlib.metadata.requires("pagelet") or []:
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": _EXTRA}):
            continue
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            version = None
        versions[requirement.name] = version
        if version is None:
            unfit.append(f"{requirement.name} is missing")
        elif not requirement.specifier.contains(version, prereleases=True):
            unfit.append(f"{requirement.name} {version} is not {requirement.specifier}")
    python = ".".join(map(str, sys.version_info[:3]))
    facts: dict[str, object] = {"python": python, "packages": versions}
    if unfit:
        return Finding(
            name="packages",
            status="fail",
            summary="; ".join(unfit),
            facts=facts,
            advice=f"install them together: pip install 'pagelet[{_EXTRA}]'",
        )
    return Finding(
        name="packages",
        status="ok",
        summary=f"Python {python}, torch {versions.get('torch')}, "
        f"{len(versions)} packages that fit together",
        facts=facts,
    )
