"""Items of stored responses that a request refers to, whichever replicas keep them."""

from collections.abc import Iterator, Sequence
from typing import Any, Final
from urllib.parse import quote

import msgspec

from pagelet.protocol.openai.errors import ApiError, retry_after
from pagelet.protocol.openai.response_input import LONGEST_ID
from pagelet.protocol.openai.responses import MOST_REFERENCES
from pagelet.router.kept_responses import (
    PREFIX,
    KeptAnswer,
    Told,
    answers_until,
    ask_one,
    is_found,
    tenant_header,
)
from pagelet.router.record import RequestRecord
from pagelet.router.state import RouterState
from pagelet.router.tenants.tenant import Tenant
from pagelet.router.upstream.client import ConnectRefused

_REFERENCE: Final = "item_reference"
_MOST_BYTES: Final = 16 << 10
"""Of the ids in one question: they are part of its first line. One has no more than a fifth."""


class _Item(msgspec.Struct):
    type: Any = None
    id: Any = None
    role: Any = None


class _Input(msgspec.Struct):
    input: list[_Item] | msgspec.UnsetType = msgspec.UNSET


_decoder = msgspec.json.Decoder(_Input)
_items = msgspec.json.Decoder(dict[str, msgspec.Raw])


def references(data: bytes) -> list[str]:
    """The ids that a request's body refers to. What cannot be read has none: a replica says what is
    wrong with it."""
    if b'"id"' not in data:
        return []
    try:
        given = _decoder.decode(data).input
    except (msgspec.MsgspecError, RecursionError):
        return []
    found = [
        item.id
        for item in given or ()
        if item.type == _REFERENCE or (item.type is None and item.role is None)
    ]
    ids = [each for each in found if isinstance(each, str) and len(each) <= LONGEST_ID]
    return ids[:MOST_REFERENCES]


async def referenced_items(
    state: RouterState, tenant: Tenant, record: RequestRecord, data: bytes
) -> bytes:
    """A JSON object of those that are kept, by id; empty if the body refers to none. Raises
    `ApiError` if one that may be kept cannot be asked for."""
    wanted = references(data)
    if not wanted:
        return b""
    headers = [
        *state.replica_headers,
        (b"x-request-id", record.request_id.encode()),
        tenant_header(tenant),
    ]
    found: dict[str, msgspec.Raw] = {}

    def have_all(answer: Told) -> bool:
        if is_found(answer):
            found.update(_items.decode(answer.body))
        return found.keys() >= {*wanted}

    questions = (
        ask_one(replica, "GET", target, headers)
        for replica in state.all_replicas
        if replica.keeps_responses
        for target in _questions(wanted)
    )
    answers = await answers_until(questions, have_all)
    away = next(filter(None, map(_failure, answers)), None)
    if away is not None and not have_all(None):
        raise ApiError(
            503,
            f"A replica that may keep an item of 'input' does not tell it: {away}.",
            param="input",
            code="upstream_failed",
            headers={"Retry-After": retry_after(1.0)},
            reason="upstream",
        )
    return msgspec.json.encode(found)


def _questions(wanted: Sequence[str]) -> Iterator[str]:
    """What to ask a replica for, none of it too long."""
    ids: list[str] = []
    size = 0
    for item_id in wanted:
        quoted = f"ids={quote(item_id, safe='')}"
        if ids and size + len(quoted) > _MOST_BYTES:
            yield f"{PREFIX}items?{'&'.join(ids)}"
            ids, size = [], 0
        ids.append(quoted)
        size += len(quoted) + 1
    yield f"{PREFIX}items?{'&'.join(ids)}"


def _failure(answer: Told) -> str | None:
    """Why a replica that may keep an item did not tell; None if it did, or keeps nothing."""
    if isinstance(answer, KeptAnswer):
        return None if answer.status == 200 else f"HTTP {answer.status}"
    return None if answer is None or isinstance(answer, ConnectRefused) else str(answer)
