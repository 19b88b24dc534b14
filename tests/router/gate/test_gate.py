"""What the gate does to real requests, of the official client, in front of a real server."""

import json
import subprocess
import time

import httpx
import openai
import pytest

from pagelet.protocol.api_keys import key_digest, new_key
from pagelet.router.tenants.key_file import digest_entry
from support.fleet import MODEL, PAGELET, client, metrics, replica, router, running
from support.processes import wait_for

TOKEN_SECONDS = 0.0005
"""Of simulated time: what tells a prompt that is computed from one that is cached."""
SECRET_WORD = "xylophone"

KEYS = {name: new_key() for name in ("a", "b", "poor", "other", "admin", "revoked")}
TENANTS = [
    {"name": "a"},
    {"name": "b"},
    {"name": "poor", "limits": {"requests_per_minute": 2, "tokens_per_minute": 100_000}},
    {"name": "other", "models": ["another-model"]},
    {"name": "admin", "admin": True},
    {"name": "revoked"},
]


def write_keys(file, *, without=()):
    tenants = [
        tenant | {"keys": [{"hash": digest_entry(key_digest(KEYS[tenant["name"]]))}]}
        for tenant in TENANTS
        if tenant["name"] not in without
    ]
    file.write_text(json.dumps({"tenants": tenants}))


PUBLIC = "Answer briefly and politely. " * 20


def config(replica_url, **fields):
    route = {
        "name": MODEL,
        "aliases": ["default"],
        "pools": [{"replicas": [replica_url]}],
        "shared_prefixes": [f"<|im_start|>system\n{PUBLIC}<|im_end|>\n"],
    }
    return {"models": [route]} | fields


@pytest.fixture(scope="module")
def backend(tmp_path_factory):
    log = tmp_path_factory.mktemp("replica") / "log"
    slow = ("--simulated-token-seconds", str(TOKEN_SECONDS))
    with running(replica(log, *slow, step_seconds=0)) as server:
        yield server


@pytest.fixture(scope="module")
def keys_file(tmp_path_factory):
    file = tmp_path_factory.mktemp("keys") / "keys.json"
    write_keys(file)
    return file


@pytest.fixture(scope="module")
def gate(backend, keys_file):
    settings = config(backend.url, api_keys_file=str(keys_file))
    log = keys_file.parent / "log"
    with running(router(log, settings, "--log-level", "debug")) as server:
        yield server


def ask(server, tenant, prompt="Count to three.", **fields):
    with client(server, KEYS[tenant]) as asking:
        return asking.chat.completions.with_raw_response.create(
            model=fields.pop("model", MODEL),
            messages=[{"role": "user", "content": prompt}],
            **({"max_tokens": 1} | fields),
        )


def models(server, key):
    with client(server, key) as asking:
        return [model.id for model in asking.models.list()]


# Keys


def test_no_key_a_wrong_key_and_a_revoked_key_get_401(gate, keys_file):
    assert httpx.get(f"{gate.url}/v1/models", timeout=60).status_code == 401
    with pytest.raises(openai.AuthenticationError) as wrong:
        models(gate, "pgl-wrong")
    assert wrong.value.code == "invalid_api_key"
    assert wrong.value.type == "invalid_request_error"
    assert models(gate, KEYS["revoked"])
    write_keys(keys_file, without=["revoked"])

    def is_revoked():
        try:
            models(gate, KEYS["revoked"])
        except openai.AuthenticationError:
            return True
        return False

    wait_for(is_revoked)
    assert models(gate, KEYS["a"])


def test_a_model_that_is_not_allowed_gets_403_and_is_not_listed(gate):
    for name in (MODEL, "default"):
        with pytest.raises(openai.PermissionDeniedError) as denied:
            ask(gate, "other", model=name)
        assert denied.value.code == "model_not_allowed"
        assert denied.value.param == "model"
    assert models(gate, KEYS["other"]) == []
    with pytest.raises(openai.NotFoundError, match=MODEL):
        ask(gate, "a", model="unknown")
    assert models(gate, KEYS["a"]) == [MODEL, "default"]
    assert ask(gate, "a", model="default").parse().model == MODEL


def test_over_the_limit_gets_429_and_every_answer_tells_of_the_limits(gate):
    first = ask(gate, "poor").headers
    assert first["x-ratelimit-limit-requests"] == "2"
    assert first["x-ratelimit-remaining-requests"] == "1"
    assert first["x-ratelimit-reset-requests"]
    assert first["x-ratelimit-limit-tokens"] == "100000"
    assert 99_000 < int(first["x-ratelimit-remaining-tokens"]) < 100_000
    with pytest.raises(openai.BadRequestError) as invalid:
        ask(gate, "poor", temperature=-1)
    assert invalid.value.response.headers["x-ratelimit-remaining-requests"] == "0"
    with pytest.raises(openai.RateLimitError) as limited:
        ask(gate, "poor")
    assert limited.value.code == "rate_limit_exceeded"
    headers = limited.value.response.headers
    assert 1 <= int(headers["retry-after"]) <= 30
    assert headers.get_list("x-ratelimit-remaining-requests") == ["0"]
    assert "x-ratelimit-limit-requests" not in ask(gate, "a").headers


# Isolation

PROMPT = f"{SECRET_WORD} " * 300


def cached(server, tenant, prompt, **fields):
    usage = ask(server, tenant, prompt, **fields).parse().usage
    return usage.prompt_tokens_details.cached_tokens


def hits(backend):
    return sum(
        value for name, value in metrics(backend).items() if "vllm:prefix_cache_hits_total" in name
    )


def test_a_tenant_never_hits_anothers_cache_whatever_salt_it_sends(gate, backend):
    prompt = "counted " + PROMPT
    ask(gate, "a", prompt)
    assert cached(gate, "a", prompt) > 200
    before = hits(backend)
    for salt in (None, "a", KEYS["a"]):
        assert cached(gate, "b", prompt, extra_body={"cache_salt": salt}) == 0
    assert hits(backend) == before
    assert cached(gate, "a", prompt, extra_body={"cache_salt": "own"}) == 0
    assert cached(gate, "a", prompt, extra_body={"cache_salt": "own"}) > 200


def test_only_a_declared_prefix_is_shared_among_tenants(gate):
    system = {"role": "system", "content": PUBLIC}
    question = {"role": "user", "content": "shared " + PROMPT}

    def cached_by(tenant):
        with client(gate, KEYS[tenant]) as asking:
            answer = asking.chat.completions.create(
                model=MODEL, messages=[system, question], max_tokens=1
            )
            return answer.usage.prompt_tokens_details.cached_tokens

    cached_by("a")
    declared, whole = cached_by("b"), cached_by("a")
    assert 64 < declared < 160, "the public text has some 120 tokens"
    assert whole > 2 * declared


def test_the_time_of_an_answer_tells_nothing_of_another_tenants_prompts(gate):
    """A prompt that is computed takes its simulated time at least; a cached one need not."""

    def share_of_its_time(asking, prompt):
        began = time.monotonic()
        messages = [{"role": "user", "content": prompt}]
        answer = asking.chat.completions.create(model=MODEL, messages=messages, max_tokens=1)
        return (time.monotonic() - began) / (answer.usage.prompt_tokens * TOKEN_SECONDS)

    others = []
    with client(gate, KEYS["a"]) as a, client(gate, KEYS["b"]) as b:
        for number in range(4):
            prompt = f"{number} timed {PROMPT}"
            share_of_its_time(a, prompt)
            others.append(share_of_its_time(b, prompt))
        # A simulated step may end a little early by this process's clock.
        assert min(others) >= 0.95
        # On a busy machine it may take some tries to see that a cached prompt takes less.
        wait_for(lambda: share_of_its_time(a, prompt) < 0.95)


# What is told


def test_a_request_is_explained_to_its_tenant_and_to_admins(gate):
    request_id = ask(gate, "a", extra_headers={"X-Request-Id": "explained-1"}).headers[
        "x-request-id"
    ]
    assert request_id == "explained-1"

    def explain(key, *arguments, code=0):
        command = [PAGELET, "explain", request_id, "--router", gate.url, *arguments]
        result = subprocess.run(
            [*command, "--api-key", key], check=False, capture_output=True, text=True
        )
        assert result.returncode == code, result.stderr
        return result.stdout + result.stderr

    for tenant in ("a", "admin"):
        table = explain(KEYS[tenant])
        assert request_id in table
        assert "completed" in table
        assert "hit tokens" in table
    told = json.loads(explain(KEYS["a"], "--json"))
    (attempt,) = told["attempts"]
    assert attempt["outcome"] == "completed"
    assert [found["replica_id"] for found in attempt["candidates"]] == [attempt["replica_id"]]
    assert (told["tenant"], told["model"], told["status"]) == ("a", MODEL, 200)
    assert told["completion_tokens"] == 1
    assert told["seconds"] >= told["ttft_seconds"] > 0
    assert "No recent request" in explain(KEYS["b"], code=1)
    assert "Incorrect API key" in explain("wrong", code=1)


def test_requests_and_tokens_are_counted_by_tenant(gate):
    ask(gate, "a", "counted by tenant", max_tokens=7)
    found = metrics(gate)
    requests = 'pagelet_router_requests_total{model="sim",tenant="a",code="200"}'
    assert found[requests] >= 1
    labels = '{model="sim",tenant="a"}'
    assert found[f"pagelet_router_generated_tokens_total{labels}"] >= 7
    assert found[f"pagelet_router_prompt_tokens_total{labels}"] > 7
    assert found['pagelet_router_replicas{model="sim",pool="default",state="ready"}'] == 1
    assert found['pagelet_router_time_to_first_token_seconds_count{model="sim"}'] >= 1


def test_a_trace_goes_on_to_the_replica(gate):
    trace = "0af7651916cd43dd8448eb211c80319c"
    ask(
        gate,
        "a",
        extra_headers={"traceparent": f"00-{trace}-b7ad6b7169203331-01", "X-Request-Id": "traced"},
    )
    wait_for(lambda: f"trace_id={trace}" in gate.log)


def test_no_key_and_no_prompt_is_in_the_logs(gate, backend):
    ask(gate, "a", f"secret {PROMPT}")
    with pytest.raises(openai.BadRequestError):
        ask(gate, "a", PROMPT, temperature=-3)
    wait_for(lambda: "status=400" in gate.log)
    for server in (gate, backend):
        log = server.log
        assert SECRET_WORD not in log
        assert not any(key in log for key in KEYS.values())
        assert "pgl-wrong" not in log
    assert "tenant=a" in gate.log
