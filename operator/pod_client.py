"""Asks pods over HTTP what they say of themselves.

A service's owner chooses what runs in its pods, so an answer is bounded in time and size, and leads
the operator nowhere else.
"""

import asyncio
from typing import Final

import aiohttp

from pagelet.operator.kube.client import UNREACHABLE
from pagelet.operator.kube.resources import Object
from pagelet.operator.planning.objects import HTTP_PORT

_TIMEOUT: Final = aiohttp.ClientTimeout(total=3, connect=1)
_AT_ONCE: Final = 16
_MOST_BYTES: Final = 16 << 20
"""Of an answer: far beyond the metrics of a router with all the tenants that those tell apart."""

NO_ANSWER: Final = (ValueError, *UNREACHABLE)
"""What `PodClient.get` raises, and readers of what it returns."""


class PodClient:
    """Some questions at a time. Close it in the end."""

    def __init__(self, port: int = HTTP_PORT) -> None:
        """`port` is that of all pods."""
        self._port = port
        # What is not compressed cannot become larger than what is read.
        self._session = aiohttp.ClientSession(
            timeout=_TIMEOUT, headers={"Accept-Encoding": "identity"}, auto_decompress=False
        )
        self._limit = asyncio.Semaphore(_AT_ONCE)

    async def close(self) -> None:
        """Ends connections."""
        await self._session.close()

    async def get(self, pod: Object, path: str) -> bytes:
        """The body of a pod that has an address. Raises one of `NO_ANSWER`, also for another status
        than 200."""
        url = f"{_host_of(pod)}:{self._port}{path}"
        async with self._limit, self._session.get(url, allow_redirects=False) as response:
            if response.status != 200:
                raise ValueError(f"HTTP {response.status} for {path}")
            body = bytearray()
            async for data in response.content.iter_any():
                body += data
                if len(body) > _MOST_BYTES:
                    raise ValueError(f"{path} has more than {_MOST_BYTES} bytes")
            return bytes(body)


def _host_of(pod: Object) -> str:
    address = pod["status"]["podIP"]
    return f"http://[{address}]" if ":" in address else f"http://{address}"
