"""An API process that answers no more is replaced, and its engine goes on."""

import os
import signal
from pathlib import Path

from support.fleet import IMPATIENT, MODEL, client, replica, running
from support.processes import wait_for

API, CORE = "pagelet.agent.serve", "pagelet.engine.core.process"


def test_it_is_replaced(tmp_path: Path) -> None:
    with running(replica(tmp_path / "log", program=IMPATIENT)) as server:
        (api,), (core,) = server.processes(API), server.processes(CORE)
        os.kill(api, signal.SIGSTOP)
        wait_for(lambda: server.processes(API) not in ([api], []))
        assert "API server is hung: no sign of life for" in server.log
        server.wait_ready()
        with client(server) as asking:
            answer = asking.completions.create(model=MODEL, prompt="Hello", max_tokens=4)
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 4
        assert server.processes(CORE) == [core]
