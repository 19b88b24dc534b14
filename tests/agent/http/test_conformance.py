"""Where OpenAI's API, or HTTP, says how an answer looks and a client may depend on it."""

import httpx
import openai
import pytest

from .conftest import DIRECT_AND_ROUTED
from .real_engine import replica, simulated

MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def replica_server():
    with replica(simulated()) as server:
        yield server


def test_errors_have_openais_types(serve):
    server = serve(api_keys=["k"], rate_limit=1)
    with (
        server.openai(api_key="wrong", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError) as wrong,
    ):
        client.models.list()
    assert (wrong.value.type, wrong.value.code) == ("invalid_request_error", "invalid_api_key")
    with server.openai(api_key="k", max_retries=0) as client:
        client.chat.completions.create(model="tiny", messages=MESSAGES)
        with pytest.raises(openai.RateLimitError) as many:
            client.chat.completions.create(model="tiny", messages=MESSAGES)
    assert (many.value.type, many.value.code) == ("requests", "rate_limit_exceeded")


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics", "/v1/models", "/v1/models/tiny"])
def test_the_head_alone_can_be_asked_for(server, path):
    got, head = server.get(path), httpx.head(server.url + path, timeout=60)
    assert head.status_code == got.status_code == 200
    assert head.headers["content-type"] == got.headers["content-type"]
    assert head.content == b""
    if path.startswith("/v1"):
        assert head.headers["content-length"] == str(len(got.content))


def test_the_head_of_what_is_not_there(server):
    assert httpx.head(f"{server.url}/v1/models/gpt", timeout=60).status_code == 404
    refused = httpx.head(f"{server.url}/v1/chat/completions", timeout=60)
    assert refused.status_code == 405
    assert refused.headers["allow"] == "POST"


@DIRECT_AND_ROUTED
def test_what_is_not_allowed_is_told_with_what_is(server):
    for path, asked, allowed in (
        ("/v1/chat/completions", ("GET", "PUT", "DELETE", "OPTIONS"), {"POST"}),
        ("/v1/models", ("POST", "DELETE"), {"GET", "HEAD"}),
        ("/v1/models/tiny", ("POST", "PATCH"), {"GET", "HEAD"}),
        ("/health", ("POST",), {"GET", "HEAD"}),
        ("/ping", ("PUT",), {"GET", "HEAD"}),
        ("/v1/responses/resp_1", ("PUT", "PATCH"), {"GET", "HEAD", "DELETE"}),
    ):
        for method in asked:
            answer = httpx.request(method, server.url + path, timeout=60)
            assert answer.status_code == 405, (method, path)
            told = set(answer.headers["allow"].split(", "))
            # A router leaves it to its replicas which of a response's paths takes a POST.
            assert told - {"POST"} == allowed - {"POST"}
            assert method not in told
            assert answer.json()["error"]["code"] == "method_not_allowed"


def test_browsers_may_read_the_limits(serve):
    server = serve(cors_origins=["*"], rate_limit=5)
    body = {"model": "tiny", "messages": MESSAGES}
    headers = {"Origin": "https://app.example"}
    answer = server.post("/v1/chat/completions", json=body, headers=headers)
    exposed = {
        name.strip().lower() for name in answer.headers["access-control-expose-headers"].split(",")
    }
    limits = {name for name in answer.headers if name.startswith("x-ratelimit")}
    assert len(limits) == 3
    assert limits < exposed


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        (
            "/v1/chat/completions",
            {"messages": MESSAGES, "max_completion_tokens": 0},
            "max_completion_tokens must be",
        ),
        (
            "/v1/responses",
            {"input": "x", "max_output_tokens": 0},
            "max_output_tokens must be",
        ),
        (
            "/v1/responses",
            {
                "input": "x",
                "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": 5}}},
            },
            "text.format",
        ),
        (
            "/v1/messages",
            {
                "messages": MESSAGES,
                "max_tokens": 5,
                "output_config": {"format": {"type": "json_schema", "schema": {"anyOf": []}}},
            },
            "output_config.format: ",
        ),
        ("/v1/chat/completions", {"messages": []}, "'messages' needs at least 1 item, and has 0"),
        ("/v1/completions", {"prompt": []}, "'prompt' needs at least 1 item, and has 0"),
        (
            "/v1/chat/completions",
            {
                "messages": MESSAGES,
                "tools": [{"type": "function", "function": {"name": "f"}}] * 129,
            },
            "'tools' takes at most 128 items",
        ),
    ],
)
def test_errors_name_what_the_client_sent(replica_server, path, body, words):
    answer = replica_server.post(path, json={"model": "tiny"} | body, timeout=60)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(words)
