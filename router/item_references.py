"""Items of stored responses that a request refers to, whichever replicas keep them."""

import asyncio
from typing import Any, Final
from urllib.parse import quote

import msgspec

from pagelet.protocol.openai.errors import ApiError, retry_after
from pagelet.protocol.openai.responses import MOST_REFERENCES
from pagelet.router.kept_responses import PREFIX, KeptAnswer, ask_one, tenant_header
from pagelet.router.record import RequestRecord
from pagelet.router.state import RouterState
from pagelet.router.tenants.tenant import Tenant
from pagelet.router.upstream.client import ConnectRefused
from pagelet.router.upstream.connection import UpstreamError

_REFERENCE: Final = "item_reference"
_AT_ONCE: Final = 64
"""Ids in one question: they are part of its first line."""


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
    return [item_id for item_id in found if isinstance(item_id, str)][:MOST_REFERENCES]


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
    targets = [
        f"{PREFIX}items?ids={quote(','.join(wanted[first : first + _AT_ONCE]), safe=',')}"
        for first in range(0, len(wanted), _AT_ONCE)
    ]
    answers = await asyncio.gather(
        *(
            ask_one(replica, "GET", target, headers)
            for replica in state.all_replicas
            if replica.keeps_responses
            for target in targets
        )
    )
    found: dict[str, msgspec.Raw] = {}
    for answer in answers:
        if isinstance(answer, KeptAnswer) and answer.status == 200:
            found |= _items.decode(answer.body)
    lost = [each for each in answers if isinstance(each, UpstreamError)]
    away = next((each for each in lost if not isinstance(each, ConnectRefused)), None)
    if away is not None and not found.keys() >= {*wanted}:
        raise ApiError(
            503,
            f"A replica that may keep an item of 'input' does not answer: {away}.",
            param="input",
            code="upstream_failed",
            headers={"Retry-After": retry_after(1.0)},
            reason="upstream",
        )
    return msgspec.json.encode(found)
