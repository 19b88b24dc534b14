"""Responses that clients asked to keep: in memory, bounded, each for its owner alone."""

import asyncio
import contextlib
import dataclasses
import math
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

import msgspec

from pagelet.protocol.errors import InvalidRequest
from pagelet.protocol.openai.response_object import ResponseObject

MOST_SECONDS: Final = 24 * 3600.0
"""How long a response is kept at most."""
_FETCH_SECONDS: Final = 60.0
"""How long a drain waits after the end of a response in the background for somebody to ask what it
came to: clients ask again every few seconds, and it is nowhere else."""
_OVERHEAD: Final = 1024
"""Bytes that a response takes beside its JSON, about."""
_ITEM_OVERHEAD: Final = 512
"""And each of its items, with an id of the longest."""
Owner = tuple[str, str]
"""An API key, as `RequestContext.client` calls it, and the tenant that a router names."""


@dataclasses.dataclass(slots=True)
class StoredResponse:
    """`body` is its JSON, and `items` that of its input, what came before included."""

    body: bytes
    items: bytes
    stored: float
    background: bool = False
    job: asyncio.Task[None] | None = None
    """What still works on it, in the background."""
    item_ids: list[str] = dataclasses.field(default_factory=list)
    """Of its input and its output, each once."""
    wanted_until: float = -math.inf
    """Till when somebody may ask for it first, since it ended in the background."""

    @property
    def size(self) -> int:
        """In bytes, about."""
        items = _ITEM_OVERHEAD * len(self.item_ids)
        return len(self.body) + len(self.items) + items + _OVERHEAD

    def all_items(self) -> list[Any]:
        """Of its input and its output."""
        output: list[Any] = msgspec.json.decode(self.body)["output"]
        return [*msgspec.json.decode(self.items), *output]

    def conversation(self) -> list[Any]:
        """The items that a next request goes on from: of an answer that broke off, what there is of
        it, but for a call that nobody can have answered. Raises `InvalidRequest` while it is still
        being written."""
        response = msgspec.json.decode(self.body)
        if response["status"] == "in_progress":
            raise InvalidRequest(
                f"Previous response with id {response['id']!r} is in progress: ask for it until it "
                "has another status, or cancel it, and then go on from it.",
                "previous_response_id",
                "previous_response_in_progress",
            )
        return [
            item
            for item in self.all_items()
            if (item["type"], item["status"]) != ("function_call", "incomplete")
        ]


class ResponseStore:
    """Room is taken from the owner who has most: the oldest of its responses goes. Owned by one
    event loop."""

    def __init__(self, max_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.mark = secrets.token_hex(6)
        """In the ids of all that is kept here: tells a router whom to ask."""
        self._max_bytes = max_bytes
        self._clock = clock
        self._responses: dict[Owner, OrderedDict[str, StoredResponse]] = {}
        """The oldest first."""
        self._sizes: dict[Owner, int] = {}
        self._items: dict[Owner, dict[str, dict[str, None]]] = {}
        """The responses that have an item, by the item's id: first the one with which it came."""
        self._jobs: set[asyncio.Task[None]] = set()
        self._asked = asyncio.Event()

    def new_id(self, request_id: str) -> str:
        """For the response to a request."""
        return f"resp_{self.mark}_{request_id}"

    def keep(
        self, owner: Owner, response: ResponseObject, items: list[Any], *, background: bool = False
    ) -> StoredResponse:
        """Keeps it, as long as there is room for it."""
        stored = StoredResponse(
            response.model_dump_json().encode(),
            msgspec.json.encode(items),
            self._clock(),
            background,
        )
        self.delete(owner, response.id)
        self._responses.setdefault(owner, OrderedDict())[response.id] = stored
        self._index(owner, stored, response, [item["id"] for item in items])
        self._sizes[owner] = self._sizes.get(owner, 0) + stored.size
        self._make_room()
        return stored

    def finish(self, owner: Owner, response: ResponseObject) -> None:
        """What came of a response that was begun in the background, if it is still kept."""
        stored = self._get(owner, response.id)
        if stored is None:
            return
        stored.wanted_until = self._clock() + _FETCH_SECONDS
        before = stored.size
        stored.body = response.model_dump_json().encode()
        self._index(owner, stored, response, [])
        self._sizes[owner] += stored.size - before
        self._make_room()

    async def run(self, stored: StoredResponse, work: Coroutine[Any, Any, None]) -> None:
        """Lets `work` run in the background of a response; returns once it has begun, as what is
        cancelled before never comes to its own clean-up."""
        stored.job = asyncio.create_task(work)
        self._jobs.add(stored.job)
        stored.job.add_done_callback(self._jobs.discard)
        await asyncio.sleep(0)

    def find(self, owner: Owner, response_id: str) -> StoredResponse | None:
        """One of the owner's own."""
        self._make_room()
        return self._get(owner, response_id)

    def tell(self, stored: StoredResponse) -> bytes:
        """Its JSON, for who asked for it."""
        stored.wanted_until = -math.inf
        self._asked.set()
        return stored.body

    @property
    def wanted_seconds(self) -> float:
        """How long somebody may yet ask for the first time what became of something that ended in
        the background; 0 or less if all that is kept was asked for."""
        every = (each for responses in self._responses.values() for each in responses.values())
        return max((each.wanted_until for each in every), default=-math.inf) - self._clock()

    async def fetched(self) -> None:
        """Until there is no such time left."""
        while (seconds := self.wanted_seconds) > 0:
            self._asked.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._asked.wait()

    def delete(self, owner: Owner, response_id: str) -> bool:
        """Whether there was such a response; what still works on it ends."""
        stored = self._get(owner, response_id)
        if stored is None:
            return False
        if stored.job is not None:
            stored.job.cancel()
        self._drop(owner, response_id)
        return True

    def find_items(self, owner: Owner, ids: Sequence[str]) -> dict[str, Any]:
        """Those of the owner's items that are kept, by id."""
        self._make_room()
        holders = self._items.get(owner, {})
        wanted = {item_id: next(iter(holders[item_id])) for item_id in ids if item_id in holders}
        found = {}
        for response_id in set(wanted.values()):
            for item in self._responses[owner][response_id].all_items():
                if wanted.get(item["id"]) == response_id:
                    found[item["id"]] = item
        return found

    def _index(
        self, owner: Owner, stored: StoredResponse, response: ResponseObject, given: Sequence[str]
    ) -> None:
        holders = self._items.setdefault(owner, {})
        for item_id in (*given, *(item.id for item in response.output)):
            having = holders.setdefault(item_id, {})
            if response.id not in having:
                having[response.id] = None
                stored.item_ids.append(item_id)

    def _get(self, owner: Owner, response_id: str) -> StoredResponse | None:
        responses = self._responses.get(owner)
        return None if responses is None else responses.get(response_id)

    def _make_room(self) -> None:
        oldest = self._clock() - MOST_SECONDS
        for owner, responses in list(self._responses.items()):
            while responses and next(iter(responses.values())).stored < oldest:
                self._drop(owner, next(iter(responses)))
        while sum(self._sizes.values()) > self._max_bytes:
            owner = max(self._sizes, key=self._sizes.__getitem__)
            self._drop(owner, next(iter(self._responses[owner])))

    def _drop(self, owner: Owner, response_id: str) -> None:
        responses = self._responses[owner]
        dropped = responses.pop(response_id)
        self._sizes[owner] -= dropped.size
        holders = self._items[owner]
        for item_id in dropped.item_ids:
            del holders[item_id][response_id]
            if not holders[item_id]:
                del holders[item_id]
        if not responses:
            del self._responses[owner], self._sizes[owner], self._items[owner]
        self._asked.set()
