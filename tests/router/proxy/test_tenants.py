"""What replicas get to see of tenants, and which replicas their conversations meet."""

import asyncio
import json
import logging
import re

import pytest

from pagelet.protocol.api_keys import key_digest
from pagelet.protocol.router import ModelRoute, Pool
from pagelet.router.tenants.key_file import digest_entry
from support.scripted_replica import ScriptedReplica, whole


@pytest.fixture
def keys_file(tmp_path):
    """Tenants whose keys are their names."""
    return write_keys(tmp_path, a={}, b={})


def write_keys(folder, **tenants):
    """Tenants whose keys are their names, with what else is said of them."""
    entries = [
        {"name": name, "keys": [{"hash": digest_entry(key_digest(name))}]} | more
        for name, more in tenants.items()
    ]
    file = folder / "keys.json"
    file.write_text(json.dumps({"tenants": entries}))
    return {"api_keys_file": str(file)}


def key(tenant):
    return {"Authorization": f"Bearer {tenant}"}


async def salt_of(fleet, headers, **body):
    """The salt that the replica is given."""
    (replica,) = fleet.replicas
    response = await fleet.post(body, headers=headers)
    assert response.status_code == 200, response.text
    return replica.asked[-1].body["pagelet"]["cache_salt"]


async def test_replicas_are_given_a_salt_and_never_a_key(routed, keys_file) -> None:
    a, b = ({"Authorization": f"Bearer {name}"} for name in ("a", "b"))
    async with routed(ScriptedReplica(), config=keys_file) as fleet:
        plain, other = await salt_of(fleet, a), await salt_of(fleet, b)
        own = await salt_of(fleet, a, cache_salt="mine")
        assert len({plain, other, own}) == 3
        assert await salt_of(fleet, a) == plain
        assert await salt_of(fleet, {"x-api-key": "a"}) == plain
        assert await salt_of(fleet, b, cache_salt=plain) not in (plain, own)
        for asked in fleet.replicas[0].asked:
            seen = {name.lower() for name in asked.headers}
            assert not seen & {"authorization", "x-api-key"}


async def test_a_client_cannot_speak_for_the_router(routed, keys_file) -> None:
    async with routed(ScriptedReplica(), config=keys_file) as fleet:
        response = await fleet.post(
            {"pagelet": {"cache_salt": "stolen"}}, headers={"Authorization": "Bearer a"}
        )
        assert response.status_code == 400
        error = response.json()["error"]
        assert (error["param"], error["code"]) == ("pagelet", "unknown_parameter")
        assert fleet.replicas[0].asked == []


async def test_without_tenants_a_clients_salt_is_its_own(routed) -> None:
    async with routed(ScriptedReplica()) as fleet:
        assert await salt_of(fleet, {}, cache_salt="mine") == "mine"


async def test_several_models_are_one_list_and_each_has_its_replicas(routed) -> None:
    def routes(urls):
        return [
            ModelRoute(name=name, aliases=[f"{name}-latest"], pools=[Pool(replicas=[url])])
            for name, url in zip(("one", "two"), urls, strict=True)
        ]

    async with routed(config={"models": routes}) as fleet:
        replicas = fleet.replicas
        listed = (await fleet.client.get("/v1/models")).json()["data"]
        assert [model["id"] for model in listed] == ["one", "one-latest", "two", "two-latest"]
        for name, replica in (("one", replicas[0]), ("two-latest", replicas[1])):
            assert (await fleet.post({"model": name})).status_code == 200
            assert replica.asked[-1].body["model"] == "m", "the name that the replica knows"
        assert [len(replica.asked) for replica in replicas] == [1, 1]
        missing = await fleet.post({"model": "three"})
        assert missing.status_code == 404
        assert "'two-latest'" in missing.json()["error"]["message"]


async def test_all_turns_of_a_conversation_meet_one_revision(routed) -> None:
    def split(urls):
        stable = Pool(name="stable", weight=70, replicas=urls[:1])
        return [ModelRoute(pools=[stable, Pool(name="canary", weight=30, replicas=urls[1:])])]

    system = {"role": "system", "content": "the same for all " * 100}
    async with routed(config={"models": split}) as fleet:
        seen = []
        for number in range(40):
            messages = [system, {"role": "user", "content": f"question {number}"}]
            places = set()
            for turn in range(3):
                response = await fleet.post({"messages": messages}, "/v1/chat/completions")
                places.add(response.headers["x-pagelet-replica"])
                messages += [{"role": "assistant", "content": f"answer {turn}"}]
                messages += [{"role": "user", "content": f"and {turn}?"}]
            (place,) = places
            seen.append(place)
    canary = seen.count(fleet.replicas[1].url)
    assert 4 <= canary <= 20  # 12 are expected, with a deviation of 3


WITH_ADAPTER = {"served_model_names": ["m", "sql"], "adapters": {"sql": "digest"}}
LISTED = [{"id": "m", "parent": None}, {"id": "sql", "parent": "m"}]
"""As vLLM lists the same."""
USAGE = {"prompt_tokens": 30, "completion_tokens": 2}


async def requests_by_model(fleet, tenant):
    """{(model, status): requests} of a tenant."""
    pattern = rf'^pagelet_router_requests_total{{model="(.+)",tenant="{tenant}",code="(.+)"}} (.+)$'
    text = (await fleet.client.get("/metrics")).text
    found = re.findall(pattern, text, re.MULTILINE)
    return {(model, int(code)): float(count) for model, code, count in found}


@pytest.mark.parametrize("pagelet", [True, False])
async def test_an_adapter_is_billed_and_explained_under_its_own_name(
    routed, keys_file, caplog, pagelet
) -> None:
    caplog.set_level(logging.INFO, logger="pagelet.access")
    replica = ScriptedReplica(pagelet=pagelet)
    replica.models = LISTED
    replica.claims, replica.answer = WITH_ADAPTER, whole({"choices": [], "usage": USAGE})
    async with routed(replica, config=keys_file) as fleet:
        for model in ("m", "sql", "sql"):
            response = await fleet.post({"model": model}, headers=key("a"))
            assert response.status_code == 200
        assert await requests_by_model(fleet, "a") == {("m", 200): 1, ("sql", 200): 2}
        usage = (await fleet.client.get("/v1/usage", headers=key("a"))).json()["data"]
        assert [(row["model"], row["requests"], row["prompt_tokens"]) for row in usage] == [
            ("m", 1, 30),
            ("sql", 2, 60),
        ]
        path = f"/v1/explain/{response.headers['x-request-id']}"
        story = (await fleet.client.get(path, headers=key("a"))).json()
        assert (story["model"], story["adapter_of"]) == ("sql", "m")
        pools = (await fleet.client.get("/metrics")).text
        assert 'pagelet_router_inflight_answers{model="m",pool="default"}' in pools
        assert 'pagelet_router_inflight_answers{model="sql"' not in pools, "it has no pool"
    logged = [getattr(line, "model", None) for line in caplog.records if line.msg == "request"]
    assert [model for model in logged if model] == ["m", "sql", "sql"]


@pytest.mark.parametrize("pagelet", [True, False])
async def test_requests_that_are_refused_count_for_the_model_that_they_name(
    routed, tmp_path, pagelet
) -> None:
    tenants = {
        "none": {"models": ["other"]},
        "base": {"models": ["m"]},
        "few": {"limits": {"tokens_per_minute": 10}},
        "once": {"limits": {"requests_per_minute": 1}},
    }
    replica = ScriptedReplica(pagelet=pagelet)
    replica.claims, replica.models = WITH_ADAPTER, LISTED
    route = {"aliases": ["alias"]}
    async with routed(replica, route=route, config=write_keys(tmp_path, **tenants)) as fleet:

        async def count(tenant, *models, **body):
            for model in models:
                await fleet.post({"model": model} | body, headers=key(tenant))
            return await requests_by_model(fleet, tenant)

        refused = await count("none", "m", "alias", "sql", "nowhere")
        assert refused == {("m", 403): 2, ("sql", 403): 1, ("unknown", 404): 1}
        assert await count("base", "alias", "sql") == {("m", 200): 1, ("sql", 403): 1}
        over = await count("few", "m", "sql", max_tokens=100)
        assert over == {("m", 429): 1, ("sql", 429): 1}
        # What is one request too many is not read.
        assert await count("once", "m", "m") == {("m", 200): 1, ("unknown", 429): 1}


async def test_models_that_all_have_a_parent_are_models(routed) -> None:
    """Such as fine-tuned ones of a server that tells what they were made of."""
    replica = ScriptedReplica(pagelet=False)
    replica.models = [{"id": "tuned", "parent": "base"}, {"id": "other", "parent": "base"}]
    async with routed(replica) as fleet:
        listed = (await fleet.client.get("/v1/models")).json()["data"]
        assert [(each["id"], each["parent"]) for each in listed] == [
            ("tuned", None),
            ("other", None),
        ]


async def test_a_request_that_waited_for_the_first_replica_gets_the_adapter_that_it_names(
    routed,
) -> None:
    replica = ScriptedReplica()
    replica.claims = WITH_ADAPTER
    await replica.start()
    await replica.stop()  # its port is known, and nothing more
    models = [ModelRoute(pools=[Pool(replicas=[replica.url])])]
    async with routed(wait=False, config={"models": models}) as fleet:
        (pool,) = fleet.state.pools.values()
        waiting = asyncio.create_task(fleet.post({"model": "sql"}))
        await fleet.wait_for(lambda: pool.room.num_waiting + pool.room.num_held)
        await replica.start()
        try:
            assert (await waiting).status_code == 200
        finally:
            await replica.stop()
        assert replica.asked[-1].body["model"] == "sql", "the base does not answer in its place"
        assert await requests_by_model(fleet, "anonymous") == {("sql", 200): 1}
