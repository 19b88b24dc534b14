"""`/healthz` and `/metrics` of the operator."""

import time
from collections.abc import Callable, Iterable
from typing import Final

from aiohttp import web

from pagelet.operator.metrics import Metrics
from pagelet.protocol.exposition import CONTENT_TYPE

_LATE_LISTS: Final = 3


def unhealthy(
    listed_at: Iterable[tuple[str, float | None]], relist_seconds: float, started_at: float
) -> str | None:
    """Why an operator should be restarted: what it knows of the cluster is far too old. None if it
    is well. `listed_at` are kinds, once for each namespace, and when they were listed last; times
    are those of `time.monotonic`."""
    oldest = time.monotonic() - _LATE_LISTS * relist_seconds
    late = dict.fromkeys(
        name for name, when in listed_at if (started_at if when is None else when) < oldest
    )
    return f"not listed for long: {', '.join(late)}" if late else None


async def serve(
    host: str, port: int, metrics: Metrics, why_unhealthy: Callable[[], str | None]
) -> web.AppRunner:
    """Serves until the runner is cleaned up."""

    async def healthz(request: web.Request) -> web.Response:
        reason = why_unhealthy()
        return web.Response(text=reason or "ok", status=503 if reason else 200)

    async def render(request: web.Request) -> web.Response:
        return web.Response(body=metrics.render().encode(), headers={"Content-Type": CONTENT_TYPE})

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/metrics", render)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    return runner
