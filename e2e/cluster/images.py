"""The images of `docker/Dockerfile` and of the cluster's own pods, built without a registry.

Debian's packages make the base image, and buildah keeps every layer, so that a change of our own
code builds the small uppermost layers again and nothing else.
"""

import dataclasses
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cluster import programs
from cluster.cache import CACHE, say
from cluster.node import PAUSE_IMAGE
from cluster.packages import install_packages

REPOSITORY: Final = Path(__file__).parents[2]
COREDNS_IMAGE: Final = "pagelet.dev/e2e/coredns:1"
PAGELET_IMAGES: Final = {
    name: f"pagelet.dev/e2e/{name}:1" for name in ("agent", "router", "operator")
}
SECOND_AGENT_IMAGE: Final = "pagelet.dev/e2e/agent:2"
"""The same under another name, as if it were a newer one."""
_CACHED_STAGES: Final = (
    "tools",
    "kernels",
    "agent-packages",
    "router-packages",
    "operator-packages",
)
"""What takes minutes to build and changes seldom: it has names, so that pruning leaves it alone."""
_STORE: Final = CACHE / "images"
_BASE_IMAGE: Final = "pagelet.dev/e2e/base:1"
_BASE_PACKAGES: Final = "python3,python3-venv,ca-certificates"
_DEBIAN: Final = "bookworm"
_CERTIFICATES: Final = "/etc/ssl/certs/ca-certificates.crt"


class BuildFailed(Exception):
    """An image did not build; the message says where the output is."""


@dataclasses.dataclass(frozen=True)
class Archive:
    """An image in a file that containerd can import."""

    image: str
    path: Path


def _buildah(*arguments: str) -> list[str]:
    """A buildah call with its store in the cache."""
    return ["buildah", f"--root={_STORE / 'root'}", f"--runroot={_STORE / 'run'}", *arguments]


def _run(command: Sequence[str], log: Path) -> None:
    """Runs a command that must work; `log` shows meanwhile how far it is."""
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "BUILDAH_ISOLATION": "chroot"}
    with log.open("w") as output:
        result = subprocess.run(
            command, check=False, stdout=output, stderr=subprocess.STDOUT, env=environment
        )
    if result.returncode:
        tail = log.read_text()[-3000:]
        raise BuildFailed(f"{command[0]} failed; all of its output is in {log}:\n{tail}")


def _image_id(image: str) -> str:
    """Empty if there is no such image."""
    command = _buildah("images", "--no-trunc", "--quiet", "--filter", f"reference={image}")
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _debian() -> Path:
    """A root file system with Python, as a tar file."""
    tar = CACHE / f"{_DEBIAN}.tar"
    if not tar.exists():
        install_packages("mmdebstrap")
        say(f"Making a base image of {_DEBIAN}'s packages (a minute)")
        partial = tar.with_suffix(".partial.tar")
        command = ["mmdebstrap", "--variant=minbase", f"--include={_BASE_PACKAGES}"]
        _run([*command, _DEBIAN, str(partial)], CACHE / f"{_DEBIAN}.log")
        partial.rename(tar)
    return tar


def _exported(image: str) -> Archive:
    """Writes an image to a file, unless that image is in it already."""
    stem = image.rpartition("/")[2].replace(":", "-")
    path = CACHE / "archives" / f"{stem}-{_image_id(image).removeprefix('sha256:')[:16]}.tar"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        for old in path.parent.glob(f"{stem}-*"):
            old.unlink()
        partial = path.with_suffix(".partial")
        partial.unlink(missing_ok=True)
        log = _STORE / f"{stem}-export.log"
        _run(_buildah("push", "--quiet", image, f"docker-archive:{partial}:{image}"), log)
        partial.rename(path)
    return Archive(image, path)


def of_one_program(image: str, program: programs.Program) -> Archive:
    """An image with a static program as its only file."""
    with tempfile.TemporaryDirectory() as context:
        shutil.copy2(programs.build(program), Path(context) / program.name)
        lines = ["FROM scratch", f"COPY {program.name} /", f'ENTRYPOINT ["/{program.name}"]']
        (Path(context) / "Dockerfile").write_text("\n".join(lines) + "\n")
        build = _buildah("build", "--layers", "--timestamp=0", "--tag", image, context)
        _run(build, _STORE / f"{program.name}.log")
    return _exported(image)


def cluster_archives() -> list[Archive]:
    """What every node needs to run pods and look up names."""
    install_packages("buildah")
    return [
        of_one_program(PAUSE_IMAGE, programs.PAUSE),
        of_one_program(COREDNS_IMAGE, programs.COREDNS),
    ]


def pagelet_archives(names: Sequence[str] = tuple(PAGELET_IMAGES)) -> list[Archive]:
    """Images of this repository's code as it is now."""
    install_packages("buildah")
    say(f"Building images (the first time takes minutes; logs are in {_STORE})")
    if not _image_id(_BASE_IMAGE):
        with tempfile.TemporaryDirectory(dir=CACHE) as context:
            os.link(_debian(), Path(context) / "debian.tar")
            (Path(context) / "Dockerfile").write_text("FROM scratch\nADD debian.tar /\n")
            _run(_buildah("build", "--tag", _BASE_IMAGE, context), _STORE / "base.log")
    for stage in _CACHED_STAGES:
        _build_target(stage, f"pagelet.dev/e2e/stage-{stage}:1")
    archives = []
    for name in names:
        say(f"Building the image {name}")
        begin = time.monotonic()
        _build_target(name, PAGELET_IMAGES[name])
        archives.append(_exported(PAGELET_IMAGES[name]))
        size = archives[-1].path.stat().st_size / 1e6
        say(f"Built the image {name}: {size:.0f} MB, {time.monotonic() - begin:.0f} s")
    # A build that was stopped has left its container, whose image could not be removed.
    _run(_buildah("rm", "--all"), _STORE / "prune.log")
    _run(_buildah("rmi", "--prune"), _STORE / "prune.log")
    return archives


def _build_target(target: str, image: str) -> None:
    command = _buildah(
        "build",
        "--layers",
        f"--volume={_CERTIFICATES}:{_CERTIFICATES}:ro",
        f"--build-arg=BASE={_BASE_IMAGE}",
        "--build-arg=ACCELERATOR=cpu",
        f"--target={target}",
        f"--tag={image}",
        f"--file={REPOSITORY / 'docker/Dockerfile'}",
        str(REPOSITORY),
    )
    _run(command, _STORE / f"{target}.log")
