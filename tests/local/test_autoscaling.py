"""`pagelet up` with `spec.autoscaling`: replicas come and go with the demand; no request fails."""

import json
import threading

import httpx
import openai

from support.local import Local
from support.processes import wait_for
from support.services import PATIENT, SERVICE

SCALED = (
    SERVICE.format(name="sim").replace("0.02", "0.08")
    + """\
    maxNumSeqs: 4
"""
    + PATIENT
    + """\
  autoscaling:
    minReplicas: 0
    maxReplicas: 3
    scaleDownSeconds: 2
    targets:
      concurrency: 2
"""
)


class Streams:
    """Answers that go on until they are closed or complete; `failed` has what went wrong."""

    def __init__(self, up: Local, count: int, max_tokens: int = 1900) -> None:
        self._up = up
        self._max_tokens = max_tokens
        self._closing = threading.Event()
        self._threads = [threading.Thread(target=self._read, args=(n,)) for n in range(count)]
        self.tokens = [0] * count
        self.failed: list[Exception] = []
        for thread in self._threads:
            thread.start()

    def _read(self, number: int) -> None:
        try:
            with (
                self._up.client() as client,
                client.completions.create(
                    model="sim",
                    prompt="Once",
                    max_tokens=self._max_tokens,
                    stream=True,
                    extra_body={"ignore_eos": True},
                ) as stream,
            ):
                for chunk in stream:
                    self.tokens[number] += bool(chunk.choices[0].text)
                    if self._closing.is_set():
                        return
        except openai.OpenAIError as error:
            self.failed.append(error)

    def go_on(self) -> None:
        """Until each has one more token."""
        before = list(self.tokens)
        wait_for(lambda: all(now > then for now, then in zip(self.tokens, before, strict=True)))

    def join(self) -> None:
        for thread in self._threads:
            thread.join()
        assert not self.failed

    def close(self) -> None:
        self._closing.set()
        self.join()


def count(up: Local, phase: str) -> int:
    return list(up.phases().values()).count(phase)


def test_replicas_follow_the_demand_from_zero_to_the_most_and_back(up: Local) -> None:
    up.write(SCALED)
    # Nobody asks: the last replica goes, and a request that comes then is held until one is back.
    up.start()
    wait_for(lambda: "sim: 1 to 0 replicas (demand: 0)" in up.said() and not up.phases())
    Streams(up, 1, max_tokens=5).join()

    # Six at once are three replicas' worth. When four have ended two replicas go, and the streams
    # that they had go on.
    staying, going = Streams(up, 2), Streams(up, 4)
    wait_for(lambda: count(up, "ready") == 3)
    going.close()
    wait_for(lambda: list(up.phases().values()) == ["ready"])
    staying.go_on()
    staying.close()
    wait_for(lambda: not up.phases())
    assert "sim: 0 to 1 replicas" in up.said()


def test_a_scaled_service_is_not_scaled_by_hand_and_keeps_its_count_when_it_is_no_longer(
    up: Local,
) -> None:
    up.write(SCALED.replace("minReplicas: 0", "minReplicas: 2"))
    refused = up.command("up", "-f", str(up.file), "--replicas", "3", code=1)
    assert "is scaled by its spec.autoscaling" in refused
    up.start().wait_phases("ready", "ready")
    url = up.status()["url"]  # type: ignore[index]
    demand = 'pagelet_router_demand_replicas{service="sim",model="sim",pool="stable",target="kv"}'
    assert demand in httpx.get(f"{url}/metrics", timeout=60).text
    assert "is scaled by its spec.autoscaling" in up.command("scale", "sim", "3", code=1)
    up.write(SCALED.partition("  autoscaling:")[0])
    up.command("up", "-f", str(up.file))
    (pool,) = json.loads(up.command("ps", "--json"))["pools"]
    assert pool["wanted"] == 2
    up.command("scale", "sim", "1")
