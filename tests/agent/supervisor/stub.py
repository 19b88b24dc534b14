"""Stand-ins for the processes of a server, and a supervisor over them.

`python stub.py supervise FOLDER KEY=VALUE...` runs the supervisor; its children run `python
stub.py api|core`. Children note each start in FOLDER/starts and do as the configuration says. The
"API" answers each connection with its pid, or, for one that sends "slow", after a second.
"""

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from pagelet.agent.supervisor.managed import ManagedCore
from pagelet.agent.supervisor.startup_view import StartupView
from pagelet.agent.supervisor.supervisor import StartError, Supervisor
from pagelet.engine.core.heartbeat import HeartbeatWriter
from pagelet.process import managed
from pagelet.process.child import ChildProcess, ParentLink
from pagelet.process.listener import bind
from pagelet.process.managed import Managed

Config = dict[str, str]


def note_start(config: Config, role: str) -> None:
    with open(Path(config["folder"]) / "starts", "a") as file:
        file.write(f"{role} {os.getpid()}\n")


def run_core(config: Config, parent: ParentLink) -> None:
    note_start(config, "core")
    writer = HeartbeatWriter(config["heartbeat"])
    writer.stage("loading weights 45%")
    if (Path(config["folder"]) / "model is away").exists():
        parent.fail("the model is away")
    match config.get("core"):
        case "cannot work":
            parent.fail("--block-size 7: use 8, 16 or 32")
        case "crash":
            os._exit(3)
        case "leave an orphan":
            script = "sleep 600 & echo $! > " + str(Path(config["folder"]) / "orphan")
            subprocess.run(["sh", "-c", script], check=True)
        case "leave a daemon":
            subprocess.run(["sh", "-c", "setsid sleep 600 &"], check=True)
        case "ignore SIGTERM":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
    subprocess.Popen([sys.executable, __file__, "worker"])
    writer.ready(kv_cache_tokens=4096)
    hang = Path(config["folder"]) / "hang"
    while not hang.exists():
        writer.beat(step=0, step_began=0.0, num_unfinished=0)
        time.sleep(0.05)
    hang.unlink()
    writer.beat(step=7, step_began=time.monotonic(), num_unfinished=2)
    hung_step()


def hung_step() -> None:
    time.sleep(600)


def run_api(config: Config, parent: ParentLink) -> None:
    note_start(config, "api")
    busy: list[threading.Thread] = []
    listener = socket.socket(fileno=int(config["listen_fd"]))

    def drain(number: int, frame: object) -> None:
        for thread in busy:
            thread.join()
        if config.get("api") in ("never drains", "never ends"):
            time.sleep(600)
        os._exit(0)

    def answer(connection: socket.socket) -> None:
        with connection:
            if connection.recv(16) == b"slow":
                time.sleep(1)
            connection.sendall(str(os.getpid()).encode())

    def cut_off(number: int, frame: object) -> None:
        (Path(config["folder"]) / "cut off").touch()
        if config.get("api") != "never ends":
            os._exit(0)

    signal.signal(signal.SIGTERM, drain)
    signal.signal(signal.SIGQUIT, cut_off)
    parent.report_serving("stub")
    threading.Thread(target=beat, args=(parent,), daemon=True).start()
    while True:
        connection, _ = listener.accept()
        busy.append(threading.Thread(target=answer, args=(connection,)))
        busy[-1].start()


def beat(parent: ParentLink) -> None:
    while True:
        parent.beat()
        time.sleep(0.5)


def supervise(folder: str, **config: str) -> int:
    managed._STACK_DUMP_SECONDS = 5.0  # a busy machine may take long to print
    managed.SILENT_SECONDS = float(config.get("silent", "60"))  # type: ignore[misc]
    logging.basicConfig(level="INFO", format="%(message)s", stream=sys.stderr)
    listener = bind("127.0.0.1", 0)
    heartbeat = f"{folder}/heartbeat"
    config |= {"folder": folder, "heartbeat": heartbeat, "listen_fd": str(listener.fileno())}
    (Path(folder) / "port").write_text(str(listener.getsockname()[1]))

    def start_api() -> ChildProcess:
        return ChildProcess([__file__, "api"], config, pass_fds=[listener.fileno()])

    def start_core() -> ChildProcess:
        return ChildProcess([__file__, "core"], config)

    step_timeout = float(config.get("step_timeout", "60"))
    supervisor = Supervisor(
        Managed("API server", start_api),
        [ManagedCore("engine core 0", start_core, heartbeat, step_timeout)],
        drain_timeout=float(config.get("drain_timeout", "60")),
        view=StartupView("http://127.0.0.1/v1"),
    )
    try:
        return supervisor.run()
    except StartError as error:
        print(f"Error: {error}", file=sys.stderr)
        return error.exit_code


def main() -> None:
    role, *arguments = sys.argv[1:]
    if role == "supervise":
        folder, *settings = arguments
        sys.exit(supervise(folder, **dict(item.split("=", 1) for item in settings)))
    if role == "worker":
        time.sleep(600)
    config, parent = ParentLink.accept(int(arguments[-1]), Config)
    {"api": run_api, "core": run_core}[role](config, parent)


if __name__ == "__main__":
    main()
