import io
import json

import msgspec
from rich.console import Console

from pagelet.router.explain import Explanations
from pagelet.router.explain_view import explain
from pagelet.router.record import RequestRecord
from pagelet.router.routing.types import Candidate, Decision


def record(request_id, tenant="acme", **fields):
    return RequestRecord(
        request_id=request_id, trace_id="t", method="POST", path="/p", tenant=tenant, **fields
    )


def found(explanations, request_id, tenant, admin=False):
    data = explanations.find(request_id, tenant, admin=admin)
    return None if data is None else json.loads(data)


def test_a_tenant_finds_its_own_requests_and_an_admin_all():
    explanations = Explanations()
    explanations.add(record("r1"))
    explanations.add(record("r2", "umbrella"))
    assert found(explanations, "r1", "acme")["tenant"] == "acme"
    assert found(explanations, "r1", "umbrella") is None
    assert found(explanations, "r1", "umbrella", admin=True)["tenant"] == "acme"
    assert found(explanations, "none", "acme", admin=True) is None
    assert explanations.not_found("r1").status == 404


def test_no_tenant_takes_the_place_of_anothers_request():
    explanations = Explanations()
    explanations.add(record("same", "acme", prompt_tokens=1))
    explanations.add(record("same", "umbrella", prompt_tokens=2))
    assert found(explanations, "same", "acme")["prompt_tokens"] == 1
    assert found(explanations, "same", "umbrella")["prompt_tokens"] == 2
    assert found(explanations, "same", "other", admin=True)["prompt_tokens"] == 2


def test_only_the_newest_are_remembered():
    explanations = Explanations(capacity=3)
    for number in range(5):
        explanations.add(record(str(number)))
    explanations.add(record("2"))
    explanations.add(record("5"))
    remembered = [n for n in range(6) if found(explanations, str(n), "acme")]
    assert remembered == [2, 4, 5]


def test_a_running_request_is_explained_as_far_as_it_came():
    explanations, running = Explanations(), record("r")
    explanations.add(running)
    running.note("admitted")
    told = found(explanations, "r", "acme")
    assert (told["status"], told["seconds"]) == (0, None)
    assert told["timeline"][0]["what"] == "admitted"
    assert "began" not in told


def test_people_see_every_candidate_and_what_happened():
    story = record(
        "r-1",
        model="sql",
        adapter_of="m",
        pool="p",
        status=200,
        prompt_tokens=512,
        cached_tokens=384,
    )
    candidates = [
        Candidate("http://a", 400, 0.25, 0.2, 0.5, 3.0, 0.5, "holds the longest prefix"),
        Candidate("http://b", 0, 0.0, 1.2, 1.25, 0.0, 1.25),
    ]
    first = story.decided(Decision("http://a", "cached prefix", 400, 0.5, candidates))
    first.outcome = "the connection was lost"
    story.decided(Decision("http://b", "least time", 0, 1.25, candidates[1:])).outcome = "completed"
    story.note("resume", "death")
    story.seconds, story.ttft_seconds, story.completion_tokens = 2.5, 0.02, 7
    copy = msgspec.json.decode(msgspec.json.encode(story), type=RequestRecord)
    console = Console(width=300, record=True, file=io.StringIO())
    for part in explain(copy):
        console.print(part)
    text = console.export_text()
    for words in (
        *("r-1", "tenant acme", "model sql", "512 prompt tokens", "0 predicted, 384 found"),
        *("cached prefix; the connection was lost", "least time; completed", "over after 2.50 s"),
        "an adapter of m",
        *("holds the longest prefix", "250.0 ms", "resume death", "7 generated"),
    ):
        assert words in text
    assert text.index("http://a", text.index("hit tokens")) < text.index("1.25 s")
