"""What replicas get to see of tenants, and which replicas their conversations meet."""

import json

import pytest

from pagelet.protocol.api_keys import key_digest
from pagelet.protocol.router import ModelRoute, Pool
from pagelet.router.tenants.key_file import digest_entry
from support.scripted_replica import ScriptedReplica


@pytest.fixture
def keys_file(tmp_path):
    """Tenants whose keys are their names."""
    tenants = [
        {"name": name, "keys": [{"hash": digest_entry(key_digest(name))}]} for name in ("a", "b")
    ]
    file = tmp_path / "keys.json"
    file.write_text(json.dumps({"tenants": tenants}))
    return {"api_keys_file": str(file)}


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
