"""A file of replicas is followed through changes, faults and its own absence."""

import asyncio
import json

import pytest

from pagelet.protocol.router import Pool
from pagelet.router.replicas.discovery import Endpoint, FileDiscovery, StaticDiscovery
from pagelet.router.state import discoveries_of

A, B = Endpoint("a", "http://127.0.0.1:1"), Endpoint("b", "http://127.0.0.1:2")


def write(path, *endpoints) -> None:
    replace(path, json.dumps([{"id": each.id, "url": each.url} for each in endpoints]))


def replace(path, text) -> None:
    """In one step: half of a text would be one complaint more."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.rename(path)


async def test_a_fixed_list_is_told_once_without_doubles() -> None:
    found = [
        each async for each in StaticDiscovery(["http://h:1", "http://h:2", "http://h:1"]).watch()
    ]
    assert found == [[Endpoint("http://h:1", "http://h:1"), Endpoint("http://h:2", "http://h:2")]]


async def test_each_good_state_of_a_file_is_told_once(tmp_path, caplog) -> None:
    path = tmp_path / "replicas.json"
    sets = FileDiscovery(path).watch()

    async def following():
        return await asyncio.wait_for(anext(sets), 60)

    async def complained(times):
        async with asyncio.timeout(60):
            while caplog.text.count("waiting for a good one") < times:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    first = asyncio.create_task(following())
    await complained(1)
    write(path, A)
    assert await first == [A]
    changed = asyncio.create_task(following())
    twice = json.dumps([{"id": "a", "url": "u"}] * 2)
    split = json.dumps([{"id": "a\r\nSet-Cookie: b", "url": "u"}])
    bads = ("[{", '[{"id": "a"}]', twice, split, '[{"x": ' + "[" * 10_000)
    for number, bad in enumerate(bads, 2):
        replace(path, bad)
        await complained(number)
        assert not changed.done()
    path.unlink()
    await complained(7)
    write(path, B, A)
    assert await changed == [B, A]
    assert caplog.text.count("waiting for a good one") == 7
    emptied = asyncio.create_task(following())
    write(path)
    assert await emptied == []
    await sets.aclose()


def test_a_pool_without_a_source_is_refused() -> None:
    with pytest.raises(ValueError, match="'default'"):
        discoveries_of(Pool())
