"""Who acts, of several operators: never two at a time, however slow the API server is."""

import asyncio
import types
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagelet.operator import leader
from pagelet.operator.kube.client import NotFound
from pagelet.operator.kube.resources import Object
from pagelet.operator.leader import DURATION_SECONDS, Leader, LostLease
from support.virtual_time import VirtualTimeLoop

answers = st.tuples(st.floats(0, 6), st.floats(0, 6), st.booleans())
"""Seconds until the API server writes, from then until it answers, and whether it writes at all."""


class SlowApi:
    """An API server with one Lease. It is away once its answers have run out."""

    def __init__(self, script: list[tuple[float, float, bool]]) -> None:
        self._script = script
        self._lease: Object | None = None
        self.written_at = 0.0

    async def get(self, *_: Any) -> Object:
        if self._lease is None:
            raise NotFound(404, "NotFound", "no lease")
        return {"spec": dict(self._lease["spec"])}

    async def create(self, resource: object, namespace: str, made: Object) -> None:
        await self.replace(resource, made)

    async def replace(self, resource: object, made: Object) -> None:
        writes_in, answers_in, writes = self._script.pop(0) if self._script else (60.0, 0.0, False)
        await asyncio.sleep(writes_in)
        if not writes:
            raise OSError("away")
        self._lease, self.written_at = made, asyncio.get_running_loop().time()
        await asyncio.sleep(answers_in)


@given(st.lists(answers, max_size=12))
def test_the_holder_ends_before_another_may_begin(
    script: list[tuple[float, float, bool]],
) -> None:
    api = SlowApi([(0.0, 0.0, True), *script])

    async def act() -> None:
        await asyncio.Event().wait()

    async def lead() -> float:
        with pytest.raises(LostLease):
            await Leader(api, "n", "one").lead(act)  # type: ignore[arg-type]
        return asyncio.get_running_loop().time()

    with (
        asyncio.Runner(loop_factory=VirtualTimeLoop) as runner,
        pytest.MonkeyPatch.context() as patch,
    ):
        clock = types.SimpleNamespace(monotonic=runner.get_loop().time)
        patch.setattr(leader, "time", clock)
        ended_at = runner.run(lead())
    assert ended_at < api.written_at + DURATION_SECONDS


def test_an_answer_that_comes_late_loses_nothing() -> None:
    """As while an API server starts again: several tries fail, and the next one in time counts."""
    away = [(0.1, 0.0, False)] * 4
    api = SlowApi([(0.0, 0.0, True), *away, (0.5, 0.5, True)])

    async def lead() -> tuple[float, float]:
        async def act() -> None:
            await asyncio.Event().wait()

        with pytest.raises(LostLease):
            await Leader(api, "n", "one").lead(act)  # type: ignore[arg-type]
        return api.written_at, asyncio.get_running_loop().time()

    with (
        asyncio.Runner(loop_factory=VirtualTimeLoop) as runner,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(leader, "time", types.SimpleNamespace(monotonic=runner.get_loop().time))
        written_at, ended_at = runner.run(lead())
    assert 8 < written_at < ended_at
