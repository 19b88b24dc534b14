"""What a replica keeps while it takes no requests: its engine starts anew, or it drains."""

import os
import signal
from pathlib import Path
from typing import Any

import httpx

from support.local import Local
from support.processes import arguments_of, wait_for
from support.services import SERVICE

KEEPING = SERVICE.format(name="sim").replace("engine:", "engine:\n    responseStore: 1Mi")


def engines_of(replica: int) -> list[int]:
    """The processes of a replica's engine core, by the pid of the replica: one, or none while it
    waits to be started again."""
    children = Path(f"/proc/{replica}/task/{replica}/children").read_text().split()
    return [int(pid) for pid in children if "pagelet.engine.core.process" in arguments_of(int(pid))]


def test_they_are_found_until_their_replica_is_gone(up: Local) -> None:
    up.write(KEEPING)
    up.start().wait_phases("ready")
    status = up.status()
    assert status is not None
    with httpx.Client(base_url=f"{status['url']}/v1", timeout=60) as client:

        def respond(**options: object) -> Any:
            """The router may not have seen the replica yet."""
            body = {"model": "sim", "input": "hi", **options}

            def answer() -> Any:
                response = client.post("/responses", json=body)
                return response.json() if response.is_success else None

            return wait_for(answer)

        kept = respond(store=True, max_output_tokens=8)

        def ask() -> httpx.Response:
            return client.get(f"/responses/{kept['id']}")

        def found() -> bool:
            answer = ask()
            assert answer.status_code == 200, answer.text
            return bool(answer.json() == kept)

        assert found()
        [(name, replica)] = up.replicas().items()
        killed = engines_of(replica["pid"])
        os.kill(killed[0], signal.SIGKILL)
        wait_for(lambda: found() and engines_of(replica["pid"]) not in ([], killed))
        wait_for(lambda: found() and up.phases()[name] == "ready")
        short = respond(background=True, max_output_tokens=1)["id"]
        running = respond(background=True, max_output_tokens=1500)["id"]
        up.write(KEEPING.replace("1Mi", "2Mi"))
        wait_for(lambda: found() and up.phases()[name] == "draining")
        for _ in range(5):
            assert found()
        assert client.get(f"/responses/{running}").json()["status"] == "in_progress"
        assert client.post(f"/responses/{running}/cancel").json()["status"] == "cancelled"
        # It has long ended, and its replica waits for somebody to ask for it.
        assert client.get(f"/responses/{short}").json()["status"] == "incomplete"
        wait_for(lambda: name not in up.phases())
        gone = wait_for(lambda: answer if (answer := ask()).status_code != 200 else None)
        assert gone.status_code == 404
        assert " gone" in gone.json()["error"]["message"]
