"""Nothing is lost with a replica: it is killed, hangs, drains or is taken away, and clients see
whole answers, equal to those of an undisturbed run."""

import asyncio
import signal

import httpx
import pytest

from support.fleet import in_order, replica, router, write_replicas
from support.processes import wait_for
from support.streams import receive_all

NUM_STREAMS = 32


class Fleet:
    """Two replicas behind a router, which finds them in a file."""

    def __init__(self, folder) -> None:
        self.file = folder / "replicas.json"
        self.replicas = {
            name: replica(folder / f"{name}.log", "--drain-timeout", "0.5") for name in ("a", "b")
        }
        pool = {"replicas_file": str(self.file)}
        self.config = {
            "models": [{"pools": [pool]}],
            "routing": {"policy": "round_robin"},
            "proxy": {"health_interval": 0.25, "idle_timeout": 4, "connect_timeout": 2},
        }
        self.router = router(folder / "router.log", self.config)
        self.say(self.replicas)

    def say(self, replicas) -> None:
        write_replicas(self.file, replicas)

    def wait_for_both(self) -> None:
        wait_for(lambda: self.state_count("ready") == 2)

    def state_count(self, state: str) -> int:
        lines = httpx.get(f"{self.router.url}/metrics").text.splitlines()
        found = [line for line in lines if f'state="{state}"' in line]
        return sum(int(float(line.split()[-1])) for line in found)

    def metric(self, name: str) -> float:
        lines = httpx.get(f"{self.router.url}/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


@pytest.fixture(scope="module")
def shared_fleet(tmp_path_factory):
    fleet = Fleet(tmp_path_factory.mktemp("fleet"))
    try:
        in_order([*fleet.replicas.values(), fleet.router])
        yield fleet
    finally:
        for command in (*fleet.replicas.values(), fleet.router):
            command.close()


@pytest.fixture
def fleet(shared_fleet):
    """With both replicas in good health, however the test before left them."""
    for each in shared_fleet.replicas.values():
        if each.is_running:
            each.signal_tree(signal.SIGCONT)
        else:
            each.start()
    shared_fleet.say(shared_fleet.replicas)
    shared_fleet.wait_for_both()
    return shared_fleet


@pytest.fixture(scope="module")
def undisturbed(shared_fleet):
    shared_fleet.wait_for_both()
    answers = asyncio.run(receive_all(shared_fleet.router.url, range(NUM_STREAMS)))
    assert all(answer.is_whole for answer in answers)
    assert {answer.replica for answer in answers} == {"a", "b"}
    return [answer.answer for answer in answers]


async def disturbed(fleet, disturb):
    """The answers while something happens in their midst."""
    answers = asyncio.create_task(receive_all(fleet.router.url, range(NUM_STREAMS)))
    running = wait_until_generating(fleet)
    await running
    await asyncio.to_thread(disturb)
    return await answers


async def wait_until_generating(fleet):
    url = f"{fleet.replicas['a'].url}/metrics"
    async with httpx.AsyncClient() as client:
        while True:
            text = (await client.get(url)).text
            running = [line for line in text.splitlines() if "num_requests_running{" in line]
            if float(running[0].split()[-1]) >= NUM_STREAMS // 4:
                return
            await asyncio.sleep(0.05)


def check(answers, undisturbed):
    for number, (answer, expected) in enumerate(zip(answers, undisturbed, strict=True)):
        assert answer.is_whole, (number, answer.error)
        assert answer.answer == expected, number


@pytest.mark.parametrize(
    "disturb",
    [
        pytest.param(lambda fleet: fleet.replicas["a"].kill(), id="killed"),
        pytest.param(lambda fleet: fleet.replicas["a"].signal_tree(signal.SIGSTOP), id="hung"),
        pytest.param(lambda fleet: fleet.replicas["a"].stop(), id="drained too briefly"),
        pytest.param(lambda fleet: fleet.say({"b": fleet.replicas["b"]}), id="taken away"),
    ],
)
def test_streams_go_on_where_a_replica_left_them(fleet, undisturbed, disturb) -> None:
    resumes = fleet.metric("pagelet_router_resumes_total")
    answers = asyncio.run(disturbed(fleet, lambda: disturb(fleet)))
    check(answers, undisturbed)
    assert fleet.metric("pagelet_router_resumes_total") > resumes
