"""Kubernetes, Helm, CoreDNS, Prometheus, its adapter and KEDA, built from their Go modules.

A cluster's programs are usually downloaded; a machine that reaches package registries alone can
still build them, with every module pinned by `go.sum`. What was built lies in the cache under a
hash of its sources and of the compiler, so it is built once.
"""

import dataclasses
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cluster.cache import CACHE, say

_MODULES: Final = Path(__file__).parent / "go"
_OLDEST_GO: Final = (1, 26)
_KEY_LENGTH: Final = 16
KUBERNETES_VERSION: Final = "v1.36.3"


class CannotBuild(Exception):
    """A program cannot be built here; the message says what to install."""


@dataclasses.dataclass(frozen=True)
class Program:
    """A program of a Go module in `go/`."""

    name: str
    package: str = "."
    ldflags: str = ""
    cold_build: str = "seconds"
    """How long the first build takes on 2 cores: shown before it."""
    module: str = dataclasses.field(default="", repr=False)
    """Folder of `go/`; empty for the program's own name."""
    tags: str = dataclasses.field(default="", repr=False)
    """Build tags, separated by commas."""

    @property
    def folder(self) -> Path:
        """The module."""
        return _MODULES / (self.module or self.name)


def _version_flags() -> str:
    major, minor, _ = KUBERNETES_VERSION.removeprefix("v").split(".")
    values = {"gitVersion": KUBERNETES_VERSION, "gitMajor": major, "gitMinor": minor}
    return " ".join(f"-X k8s.io/component-base/version.{k}={v}" for k, v in values.items())


KUBERNETES: Final = Program("kubernetes", ldflags=_version_flags(), cold_build="7 minutes")
HELM: Final = Program("helm", package="helm.sh/helm/v4/cmd/helm", cold_build="3 minutes")
COREDNS: Final = Program("coredns", package="github.com/coredns/coredns", cold_build="2 minutes")
PAUSE: Final = Program("pause")

# Prometheus without the clouds' service discovery, which is most of its size.
_DISCOVERY: Final = "remove_all_sd,enable_kubernetes_sd"
_PROMETHEUS_COMMANDS: Final = "github.com/prometheus/prometheus/cmd"
PROMETHEUS: Final = Program(
    "prometheus",
    package=f"{_PROMETHEUS_COMMANDS}/prometheus",
    cold_build="3 minutes",
    tags=_DISCOVERY,
)
PROMTOOL: Final = Program(
    "promtool",
    package=f"{_PROMETHEUS_COMMANDS}/promtool",
    cold_build="a minute",
    module="prometheus",
    tags=_DISCOVERY,
)
_KEDA_COMMANDS: Final = "github.com/kedacore/keda/v2/cmd"
KEDA: Final = Program("keda", package=f"{_KEDA_COMMANDS}/operator", cold_build="6 minutes")
KEDA_ADAPTER: Final = Program(
    "keda-adapter", package=f"{_KEDA_COMMANDS}/adapter", cold_build="a minute", module="keda"
)
METRICS_SERVER: Final = Program(
    "metrics-server",
    package="sigs.k8s.io/metrics-server/cmd/metrics-server",
    cold_build="2 minutes",
)
ADAPTER_RULE: Final = Program("adapter-rule", cold_build="2 minutes")
"""Prometheus-adapter's provider of external metrics, which answers one question."""


def _environment() -> Mapping[str, str]:
    """Programs are static, so that they run in any image."""
    return {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"}


def find_go() -> tuple[str, str]:
    """The Go command and its version line. Raises `CannotBuild`."""
    found = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    wanted = ".".join(map(str, _OLDEST_GO))
    if found is None:
        raise CannotBuild(f"no `go` found: install Go {wanted} or later")
    line = subprocess.run([found, "version"], check=True, capture_output=True, text=True).stdout
    version = re.search(r"go(\d+)\.(\d+)", line)
    if version is None or tuple(map(int, version.groups())) < _OLDEST_GO:
        raise CannotBuild(f"{line.strip()} is too old: install Go {wanted} or later")
    return found, line.strip()


def is_built(program: Program) -> bool:
    """Whether `build` has nothing left to do."""
    try:
        return _place(program, find_go()[1]).exists()
    except CannotBuild:
        return False


def _place(program: Program, go_version: str) -> Path:
    sources = [path.read_bytes() for path in sorted(program.folder.iterdir())]
    tags = [program.tags.encode()] if program.tags else []
    what = [go_version.encode(), repr(program).encode(), *tags, *sources]
    key = hashlib.sha256(b"\0".join(what)).hexdigest()[:_KEY_LENGTH]
    return CACHE / "bin" / f"{program.name}-{key}"


def build(program: Program) -> Path:
    """Path of the built program. Quick when nothing changed. Raises `CannotBuild`."""
    go, version = find_go()
    built = _place(program, version)
    if built.exists():
        return built
    built.parent.mkdir(parents=True, exist_ok=True)
    say(f"Building {program.name} (on 2 cores {program.cold_build} the first time)")
    begin = time.monotonic()
    # Built beside its place and renamed, so that a build that was cut off leaves nothing half done.
    with tempfile.TemporaryDirectory(dir=built.parent) as folder:
        target = Path(folder) / program.name
        flags = ["-trimpath", "-buildvcs=false", "-ldflags", f"-s -w {program.ldflags}".strip()]
        flags += ["-tags", program.tags] if program.tags else []
        command = [go, "build", *flags, "-o", str(target), program.package]
        if subprocess.run(command, cwd=program.folder, env=_environment(), check=False).returncode:
            raise CannotBuild(f"{program.name} did not build; the lines above say why")
        target.rename(built)
    for old in built.parent.glob(f"{program.name}-{'?' * _KEY_LENGTH}"):
        if old != built:
            old.unlink()
    say(f"Built {program.name} in {time.monotonic() - begin:.0f} s")
    return built


COMPONENTS: Final = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kube-proxy",
    "kubelet",
    "kubectl",
)
"""What the program `kubernetes` acts as, by the name of the link that it is called through."""


def link_components(folder: Path) -> None:
    """Links every component's name in the new folder `folder`. Raises `CannotBuild`."""
    folder.mkdir(parents=True)
    program = build(KUBERNETES)
    for name in COMPONENTS:
        (folder / name).hardlink_to(program)  # goes on working after the cache was cleaned
