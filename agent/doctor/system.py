"""The rest of the machine: limits, ports, and the Python packages that must fit together."""

import importlib.metadata
import resource
import sys

from packaging.requirements import Requirement

from pagelet.agent.doctor.checks import Finding
from pagelet.process.listener import ListenError, bind

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
    facts: dict[str, object] = {"host": host, "port": port}
    try:
        bind(host, port).close()
    except ListenError as error:
        return Finding(name="port", status="warn", summary=str(error), facts=facts)
    return Finding(name="port", status="ok", summary=f"{port} is free on {host}", facts=facts)


def check_packages() -> Finding:
    """Whether the packages that Pagelet's engine asks for are there, in versions that fit."""
    versions: dict[str, str | None] = {}
    missing, unfit = [], []
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
            missing.append(f"{requirement.name} is missing")
        elif not requirement.specifier.contains(version, prereleases=True):
            unfit.append(f"{requirement.name} {version} is not {requirement.specifier}")
    python = ".".join(map(str, sys.version_info[:3]))
    facts: dict[str, object] = {"python": python, "packages": versions}
    if missing or unfit:
        return Finding(
            name="packages",
            status="fail" if missing else "warn",
            summary="; ".join(missing + unfit),
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
