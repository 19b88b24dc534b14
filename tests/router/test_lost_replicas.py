"""Nothing is lost with a replica: it is killed, hangs, drains or is taken away, and clients see
whole answers, equal to those of an undisturbed run."""

import asyncio
import concurrent.futures
import json
import signal
import threading

import httpx
import pytest

from support.fleet import MODEL, in_order, replica, router, write_replicas
from support.processes import wait_for
from support.streams import receive_all

NUM_STREAMS = 32


class Fleet:
    """Two replicas behind a router, which finds them in a file."""

    def __init__(self, folder) -> None:
        self.file = folder / "replicas.json"
        self.replicas = {
            name: replica(
                folder / f"{name}.log",
                *("--drain-timeout", "0.5", "--simulated-token-seconds", "0.0002"),
            )
            for name in ("a", "b")
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
        lines = httpx.get(f"{self.router.url}/metrics", timeout=60).text.splitlines()
        found = [line for line in lines if f'state="{state}"' in line]
        return sum(int(float(line.split()[-1])) for line in found)

    def metric(self, name: str) -> float:
        lines = httpx.get(f"{self.router.url}/metrics", timeout=60).text.splitlines()
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


async def disturbed(fleet, receive, count, disturb):
    """What `receive` gets while something happens in the midst of `count` answers: asked for again
    if they have ended before anybody saw them run."""
    while True:
        answers = asyncio.create_task(receive())
        generating = asyncio.create_task(wait_until_generating(fleet, count // 4))
        await asyncio.wait((answers, generating), return_when=asyncio.FIRST_COMPLETED)
        if not answers.done():
            await generating
            await asyncio.to_thread(disturb)
            return await answers
        generating.cancel()


async def wait_until_generating(fleet, count):
    url = f"{fleet.replicas['a'].url}/metrics"
    async with httpx.AsyncClient(timeout=60) as client:
        while True:
            text = (await client.get(url)).text
            running = [line for line in text.splitlines() if "num_requests_running{" in line]
            if float(running[0].split()[-1]) >= count:
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

    def receive():
        return receive_all(fleet.router.url, range(NUM_STREAMS))

    answers = asyncio.run(disturbed(fleet, receive, NUM_STREAMS, lambda: disturb(fleet)))
    check(answers, undisturbed)
    assert fleet.metric("pagelet_router_resumes_total") > resumes


def complete(url, prompt, post=httpx.post, **fields):
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 5, "seed": 1} | fields
    return post(f"{url}/v1/completions", json=body, timeout=60)


def explained(fleet, response):
    request_id = response.headers["x-request-id"]
    return httpx.get(f"{fleet.router.url}/v1/explain/{request_id}", timeout=60).json()


NAMED_EVENTS = 12


def named_request(number):
    """Path and body: text, or the call of a tool whose arguments follow a schema."""
    most = {"max_output_tokens": 120} if number % 2 else {"max_tokens": 120}
    body = {"model": MODEL, "stream": True, "temperature": 1.0, "seed": number} | most
    ask = f"Question {number}: why?"
    schema = {"type": "object", "properties": {"why": {"type": "string"}}, "required": ["why"]}
    calls = number % 4 > 1
    if number % 2:
        tool = {"type": "function", "name": "say", "parameters": schema}
        body |= {"input": ask} | ({"tools": [tool], "tool_choice": "required"} if calls else {})
        return "/v1/responses", body
    tool = {"name": "say", "input_schema": schema}
    body |= {"messages": [{"role": "user", "content": ask}]}
    body |= {"tools": [tool], "tool_choice": {"type": "any"}} if calls else {}
    return "/v1/messages", body


async def receive_named(client, number):
    """One stream: its events by name, repeats as one; its text; how it ended."""
    path, body = named_request(number)
    answer = await client.post(path, json=body, headers={"x-request-id": f"named-{number}"})
    assert answer.status_code == 200, answer.text
    told = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
    assert not any("error" in event["type"] for event in told), told[-1]
    if number % 2:
        assert [event["sequence_number"] for event in told] == list(range(len(told)))
    kinds = [event["type"] for event in told]
    kinds = [kind for before, kind in zip(["", *kinds], kinds, strict=False) if kind != before]
    texts = [event.get("delta") or {} for event in told]
    texts = [
        each if isinstance(each, str) else each.get("text") or each.get("partial_json") or ""
        for each in texts
    ]
    if number % 2:
        end = told[-1]["response"]
        usage = end["usage"]["output_tokens"], end["usage"]["total_tokens"]
        end = {"output": end["output"], "status": end["status"], "usage": usage}
    else:
        end = {"delta": told[-2]["delta"], "tokens": told[-2]["usage"]["output_tokens"]}
    return kinds, "".join(texts), end


async def receive_all_named(fleet):
    limits = httpx.Limits(max_connections=NAMED_EVENTS)
    async with httpx.AsyncClient(base_url=fleet.router.url, timeout=60, limits=limits) as client:
        return await asyncio.gather(*(receive_named(client, n) for n in range(NAMED_EVENTS)))


def test_responses_and_messages_go_on_too(fleet) -> None:
    def receive():
        return receive_all_named(fleet)

    undisturbed = asyncio.run(receive())
    before = fleet.metric("pagelet_router_resumes_total")
    answers = asyncio.run(disturbed(fleet, receive, NAMED_EVENTS, fleet.replicas["a"].kill))
    assert answers == undisturbed
    assert fleet.metric("pagelet_router_resumes_total") > before


@pytest.mark.parametrize("stream", [False, True])
def test_prompts_that_a_killed_replica_was_reading_are_read_by_another(fleet, stream) -> None:
    prompts = [f"{number} " * 800 for number in range(8)]

    def texts(responses):
        return [text_of(response.text.removesuffix("data: [DONE]\n\n")) for response in responses]

    def text_of(body):
        chunks = [json.loads(chunk.removeprefix("data: ")) for chunk in body.strip().split("\n\n")]
        return "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])

    # With one client, which is there already, they come together.
    with concurrent.futures.ThreadPoolExecutor(8) as threads, httpx.Client(timeout=60) as asking:
        # Each is read anew: none of it is cached from before.
        jobs = [
            threads.submit(
                complete, fleet.router.url, f"{stream} {prompt}", asking.post, stream=stream
            )
            for prompt in prompts
        ]
        wait_for(lambda: fleet.metric("pagelet_router_inflight_uncached_prefill_tokens") > 4000)
        fleet.replicas["a"].kill()
        responses = [job.result() for job in jobs]
    assert {response.status_code for response in responses} == {200}
    assert any(explained(fleet, response)["retries"] for response in responses)
    again = [
        complete(fleet.replicas["b"].url, f"{stream} {prompt}", stream=stream) for prompt in prompts
    ]
    assert texts(responses) == texts(again)


def test_a_replica_that_restarts_is_known_to_hold_nothing(fleet) -> None:
    prompt = "what both of them know " * 40

    def hits(response):
        candidates = explained(fleet, response)["attempts"][0]["candidates"]
        return {each["replica_id"]: each["hit_tokens"] for each in candidates}

    for _ in range(2):
        complete(fleet.router.url, prompt)
    assert min(hits(complete(fleet.router.url, prompt)).values()) > 100
    fleet.replicas["a"].kill()
    fleet.replicas["a"].start()
    fleet.wait_for_both()
    # Until a probe tells that it is another one, it is taken for what it was.
    wait_for(lambda: hits(complete(fleet.router.url, prompt)).get("a") == 0)
    assert hits(complete(fleet.router.url, prompt))["b"] > 100


def test_a_router_that_is_killed_leaves_nothing_behind_and_serves_again(fleet) -> None:
    fleet.router.signal(signal.SIGKILL)
    fleet.router.kill()  # returns when the last process of it is gone
    fleet.router.start()
    fleet.router.wait_ready()
    fleet.wait_for_both()
    assert complete(fleet.router.url, "hello").status_code == 200


def test_replicas_restart_one_after_the_other_and_no_request_fails(fleet) -> None:
    stop, failed, answered = threading.Event(), [], [0] * 4

    def ask(number):
        with httpx.Client(timeout=60) as client:
            while not stop.is_set():
                prompt = f"{number} asks {answered[number]}"
                body = {"model": MODEL, "prompt": prompt, "max_tokens": 20, "seed": 1}
                body["stream"] = answered[number] % 2 == 0
                response = client.post(f"{fleet.router.url}/v1/completions", json=body)
                done = b"data: [DONE]" in response.content or not body["stream"]
                if response.status_code != 200 or not done:
                    failed.append(response.text)
                answered[number] += 1

    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        asking = [threads.submit(ask, number) for number in range(4)]
        for name in ("a", "b"):
            before = sum(answered)
            wait_for(lambda before=before: sum(answered) > before + 20)
            fleet.replicas[name].stop()
            fleet.replicas[name].start()
            fleet.wait_for_both()
        stop.set()
        for job in asking:
            job.result()
    assert failed == []
