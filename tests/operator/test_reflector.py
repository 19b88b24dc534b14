"""What is known of the cluster, from lists, watches and our own changes in any order."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import kopf
import pytest
from aiohttp import web

from pagelet.operator.kube.client import ApiError, Client, NotFound
from pagelet.operator.kube.reflector import Reflector
from pagelet.operator.kube.resources import DEPLOYMENTS, Object


def made(name: str, version: int, value: int = 0) -> Object:
    metadata = {"namespace": "n", "name": name, "resourceVersion": str(version)}
    return {"metadata": metadata, "value": value}


class Script:
    """An API server that answers as a test says: a list, then the changes until the next list."""

    def __init__(self, *acts: Any) -> None:
        self.acts = list(acts)
        self.over = asyncio.Event()

    async def list_all(self, *_: Any, **__: Any) -> tuple[list[Object], str]:
        if not self.acts:
            self.over.set()
            await asyncio.Event().wait()
        found = self.acts.pop(0)
        if isinstance(found, Exception):
            raise found
        return found, "1"

    async def watch(self, *_: Any, **__: Any) -> AsyncIterator[tuple[str, Object]]:
        for change in self.acts.pop(0) if self.acts else []:
            if isinstance(change, Exception):
                raise change
            yield change


async def reflect(*acts: Any) -> tuple[Reflector, list[tuple[Any, Any]]]:
    """A reflector at the end of a script, and the changes that it told."""
    script = Script(*acts)
    changes: list[tuple[Any, Any]] = []

    def changed(before: Object | None, after: Object | None) -> None:
        changes.append((before and before["value"], after and after["value"]))

    reflector = Reflector(
        script,  # type: ignore[arg-type]
        DEPLOYMENTS,
        None,
        changed,
        keep=lambda found: {"value": found["value"]},
    )
    running = asyncio.ensure_future(reflector.run())
    await asyncio.wait_for(script.over.wait(), 30)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return reflector, changes


async def test_a_list_makes_good_what_a_watch_missed() -> None:
    reflector, changes = await reflect(
        [made("a", 1, 1), made("b", 1, 1)],
        [("MODIFIED", made("a", 2, 2)), ("ADDED", made("c", 3, 1)), ("DELETED", made("c", 4, 1))],
        [made("a", 5, 3)],  # b was deleted and nobody said so
    )
    assert {key[1]: found["value"] for key, found in reflector.objects.items()} == {"a": 3}
    assert changes == [(None, 1), (None, 1), (1, 2), (None, 1), (1, None), (1, None), (2, 3)]


async def test_what_has_not_changed_is_not_told_again() -> None:
    again = made("a", 2, 1)
    _, changes = await reflect([made("a", 1, 1)], [("MODIFIED", again)], [again])
    assert changes == [(None, 1)]


async def test_an_old_version_is_gone_and_the_list_begins_anew() -> None:
    gone = ApiError(410, "Expired", "too old")
    reflector, changes = await reflect([made("a", 1, 1)], [gone], [made("a", 9, 2)])
    assert changes == [(None, 1), (1, 2)]
    assert reflector.listed.is_set()


async def test_a_kind_that_the_cluster_does_not_have_is_an_empty_list() -> None:
    script = Script(NotFound(404, "NotFound", "no such kind"))
    reflector = Reflector(script, DEPLOYMENTS, None, lambda *_: None)  # type: ignore[arg-type]
    running = asyncio.ensure_future(reflector.run())
    await asyncio.wait_for(reflector.listed.wait(), 30)
    assert reflector.objects == {}
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_our_own_change_is_not_undone_by_news_from_before_it() -> None:
    script = Script()
    reflector = Reflector(script, DEPLOYMENTS, None, lambda *_: None)  # type: ignore[arg-type]
    reflector.saw(made("a", 1, 1))
    reflector.saw(made("a", 7, 2))  # the answer to an apply
    reflector.saw(made("a", 5, 1))  # a watch that lags
    assert reflector.objects["n", "a"]["value"] == 2


def listed(version: int) -> bytes:
    metadata = {"resourceVersion": str(version)}
    return json.dumps({"metadata": metadata, "items": [made("a", version)]}).encode()


@pytest.mark.parametrize(
    ("act", "broken"),
    [
        ("list", b'{"metadata": {"resour'),
        ("list", b"\xff"),
        ("watch", b'{"type": "MODIFIED", "obj'),
        ("watch", b"\xff"),
        ("watch", b"[]"),
        ("watch", b"1"),
        ("watch", b'{"type": "ADDED"}'),
        pytest.param("watch", b" " * (3 << 20), id="too long"),
    ],
)
async def test_a_broken_answer_is_made_good_by_the_next_list(
    act: str, broken: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pagelet.operator.kube.reflector._FIRST_PAUSE", 0.01)
    acts = [broken, listed(2)] if act == "list" else [listed(1), broken + b"\n", listed(2)]
    over, ended = asyncio.Event(), asyncio.Event()

    async def answer(_: web.Request) -> web.Response:
        if not acts:
            over.set()
            await ended.wait()
            return web.Response()
        return web.Response(body=acts.pop(0), content_type="application/json")

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    client = Client(lambda: kopf.ConnectionInfo(server=f"http://127.0.0.1:{port}"))
    versions: list[str] = []

    def changed(_: Object | None, after: Object | None) -> None:
        versions.append(after["metadata"]["resourceVersion"] if after else "gone")

    running = asyncio.ensure_future(Reflector(client, DEPLOYMENTS, None, changed).run())
    waiting = asyncio.ensure_future(over.wait())
    try:
        await asyncio.wait((running, waiting), timeout=60, return_when=asyncio.FIRST_COMPLETED)
        assert not running.done(), running.exception()
        assert versions == (["2"] if act == "list" else ["1", "2"])
    finally:
        ended.set()
        for task in (running, waiting):
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        await client.close()
        await runner.cleanup()
