"""`pagelet up`: checks the file, and has it run here, in the background, or where it runs yet."""

import asyncio
import contextlib
import dataclasses
import logging
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from rich.console import Console

from pagelet.local import client
from pagelet.local.control import ControlError
from pagelet.local.log_files import RotatingHandler
from pagelet.local.machine import visible_gpus
from pagelet.local.screen import Lines, Screen
from pagelet.local.state_dir import AlreadyRuns, Owner, StateDir
from pagelet.local.supervisor import Supervisor
from pagelet.local.wanted import MOST_REPLICAS, Wanted, read_wanted
from pagelet.process.listener import ListenError, bind, url
from pagelet.process.logs import TextFormatter
from pagelet.process.runtime_dir import RuntimeDir
from pagelet.protocol.inference_service.load import InvalidServices

_DEFAULT_HOST = "127.0.0.1"
_DEFAULT_PORT = 8000
_POLL_SECONDS = 0.1
_ENDS_SECONDS = 1.0
"""That a supervisor that gives up may take to end."""

log = logging.getLogger("pagelet.local")


class UpFailed(Exception):
    """It does not run; the message says why and what to change."""


@dataclasses.dataclass(frozen=True)
class UpOptions:
    """What `pagelet up` is asked for."""

    file: Path
    host: str | None
    """None: 127.0.0.1, or where it listens already."""
    port: int | None
    """None: 8000, or where it listens already."""
    state_dir: Path
    replicas: Sequence[str]
    """In place of the file's numbers: `NAME=N`, or `N` for a file of one service."""


def up(options: UpOptions, console: Console, *, detach: bool) -> int:
    """Runs what the file asks for; returns the exit code. Raises `UpFailed` or
    `UnusableStateDir`."""
    try:
        wanted = read_wanted(options.file, len(visible_gpus()))
    except InvalidServices as error:
        raise UpFailed(str(error)) from None
    replicas = _parse_replicas(options.replicas, wanted)
    state = StateDir(options.state_dir)
    owner = state.owner()
    if owner is not None:
        return _apply(owner, options, replicas, state, console)
    if detach:
        return _in_background(options, state, console)
    return _here(options, wanted, replicas, state, console)


def _here(
    options: UpOptions, wanted: Wanted, replicas: dict[str, int], state: StateDir, console: Console
) -> int:
    """Runs it in this process until it is told to end."""
    host = _DEFAULT_HOST if options.host is None else options.host
    port = _DEFAULT_PORT if options.port is None else options.port
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(state.hold())
            listener = stack.enter_context(bind(host, port))
        except AlreadyRuns:
            raise UpFailed(f"another `pagelet up` has just started in {state.path}") from None
        except ListenError as error:
            raise UpFailed(str(error)) from None
        try:
            runtime = RuntimeDir()
        except OSError as error:
            raise UpFailed(
                f"there is no place for temporary files: {error.strerror or error}; free some "
                "space, or have TMPDIR name another folder"
            ) from None
        stack.callback(runtime.close)
        _log_to(state.log_path("supervisor"))
        view = stack.enter_context(Screen(console) if console.is_terminal else Lines(console))
        log.addHandler(view)
        supervisor = Supervisor(
            options.file.resolve(),
            wanted,
            state,
            runtime,
            host=host,
            listener=listener,
            url=url(listener).removesuffix("/v1"),
            replicas=replicas,
            show=view.show,
        )
        returncode = asyncio.run(supervisor.run())
    if supervisor.failures:
        raise UpFailed("\n".join(supervisor.failures))
    if console.is_terminal:
        console.print(f"Stopped. Logs are in {state.logs}", markup=False, soft_wrap=True)
    return returncode


def _in_background(options: UpOptions, state: StateDir, console: Console) -> int:
    """Starts it as a process of its own session, and waits until all is ready."""
    command = [sys.executable, "-P", "-m", "pagelet.cli", "up", "--file", str(options.file)]
    command += ["--state-dir", str(options.state_dir)]
    if options.host is not None:
        command += ["--host", options.host]
    if options.port is not None:
        command += ["--port", str(options.port)]
    for count in options.replicas:
        command += ["--replicas", count]
    with state.open_start_up() as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=output,
            start_new_session=True,
        )
        while state.owner() is None:
            if process.poll() is not None:
                raise UpFailed(_last_words(output))
            time.sleep(_POLL_SECONDS)
        try:
            return _wait(state, console)
        except UpFailed:
            # It may have given up between two looks, and then it knows better why.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_ENDS_SECONDS)
                raise UpFailed(_last_words(output)) from None
            raise


def _last_words(output: IO[bytes]) -> str:
    """Why a process that was started in the background has ended."""
    output.seek(0)
    words = output.read().decode(errors="replace").replace("\0", "").strip()
    return words.removeprefix("Error: ") or "it ended at once"


def _apply(
    owner: Owner,
    options: UpOptions,
    replicas: dict[str, int],
    state: StateDir,
    console: Console,
) -> int:
    """Has the supervisor that runs take the file over."""
    if owner.file != str(options.file.resolve()):
        raise UpFailed(
            f"{owner.file} runs here already; end it with `{state.command('down')}`, or give this "
            "file a --state-dir and a --port of its own"
        )
    port = urlsplit(owner.url).port
    if options.host not in (None, owner.host) or options.port not in (None, 0, port):
        raise UpFailed(
            f"it listens on {owner.host}, port {port}, already; leave --host and --port out, or "
            f"end it with `{state.command('down')}` first"
        )
    try:
        client.apply(state)
        for pool, count in replicas.items():
            client.scale(state, pool, count)
    except (client.NothingRuns, ControlError) as error:
        raise UpFailed(str(error)) from None
    return _wait(state, console)


def _wait(state: StateDir, console: Console) -> int:
    try:
        status = client.wait_settled(state, lambda line: console.print(line, markup=False))
    except client.GivesUp as error:
        client.wait_ended(state)
        raise UpFailed(str(error)) from None
    except (client.NothingRuns, ControlError) as error:
        logs, down = state.command("logs"), state.command("down")
        raise UpFailed(f"{error}\n(see `{logs}`; `{down}` ends it)") from None
    for warning in status.warnings:
        console.print(f"Warning: {warning}", markup=False, soft_wrap=True)
    for pool in status.pools:
        console.print(f"{pool.name}: {pool.ready} of {pool.wanted} ready at {status.url}/v1")
    return 0


def _parse_replicas(counts: Sequence[str], wanted: Wanted) -> dict[str, int]:
    parsed = {}
    for text in counts:
        name, equals, number = text.rpartition("=")
        if not equals and len(wanted.pools) == 1:
            name = next(iter(wanted.pools))
        if name not in wanted.pools or not number.isdecimal():
            names = ", ".join(wanted.pools)
            raise UpFailed(f"--replicas {text}: write NAME=NUMBER with a name of {names}")
        if wanted.pools[name].is_scaled:
            raise UpFailed(
                f"--replicas {text}: {name} is scaled by its spec.autoscaling; change minReplicas "
                "and maxReplicas there, or take it out"
            )
        if len(number) > len(str(MOST_REPLICAS)) or int(number) > MOST_REPLICAS:
            raise UpFailed(f"--replicas {text}: one machine takes at most {MOST_REPLICAS}")
        parsed[name] = int(number)
    return parsed


def _log_to(path: Path) -> None:
    handler = RotatingHandler(path)
    handler.setFormatter(TextFormatter("supervisor"))
    logging.getLogger().addHandler(handler)
    log.setLevel(logging.INFO)
