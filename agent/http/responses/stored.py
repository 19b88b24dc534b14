"""What may be asked of a response that is kept: `GET`, `DELETE` and more of `/v1/responses/ID`."""

import asyncio
from typing import Annotated, Any, Final, Literal

import msgspec
from fastapi import APIRouter, Query, Request
from pydantic import TypeAdapter, ValidationError
from starlette.responses import Response

from pagelet.agent.http.gate import context_of
from pagelet.agent.http.responses.store import Owner, ResponseStore, StoredResponse
from pagelet.agent.http.server import Server, server_of
from pagelet.protocol.errors import InvalidRequest
from pagelet.protocol.openai.errors import RESPONSES, ApiError
from pagelet.protocol.openai.response_input import InputItem, ItemReference, KeptItems
from pagelet.protocol.openai.responses import MOST_REFERENCES, ResponseRequest
from pagelet.protocol.openai.routing import TENANT_HEADER, RouterHints

router = APIRouter()

_ITEMS: Final[TypeAdapter[list[InputItem]]] = TypeAdapter(KeptItems)
_NOT_KEPT: Final = "this server keeps no responses: start it with --response-store"


def owner_of(request: Request) -> Owner:
    """Who asks."""
    return context_of(request).client, request.headers.get(TENANT_HEADER, "")


def store_of(server: Server, param: str) -> ResponseStore:
    """Raises `InvalidRequest` if there is none."""
    if server.responses is None:
        raise InvalidRequest(f"'{param}' needs what is not here: {_NOT_KEPT}", param)
    return server.responses


def conversation_before(request: Request, server: Server, body: ResponseRequest) -> list[InputItem]:
    """The items that a request goes on from. Raises `ApiError` or `InvalidRequest`."""
    name = "previous_response_id"
    hints = body.pagelet or RouterHints()
    if body.previous_response_id is None:
        return []
    if hints.conversation is not None:
        return hints.conversation
    stored = store_of(server, name).find(owner_of(request), body.previous_response_id)
    if stored is None:
        raise ApiError(
            400,
            f"Previous response with id {body.previous_response_id[:200]!r} not found: it was not "
            "stored, or is kept no longer. Send the whole conversation in 'input'.",
            param=name,
            code="previous_response_not_found",
            reason="invalid",
        )
    try:
        return _ITEMS.validate_python(stored.conversation())
    except ValidationError as error:
        raise InvalidRequest(
            "the conversation has too many items to go on from: begin a new one", name
        ) from error


def resolved(request: Request, server: Server, body: ResponseRequest) -> list[InputItem]:
    """The items of `input`, with those that it refers to in their places. Raises `ApiError` or
    `InvalidRequest`."""
    wanted = [item.id for item in body.input if isinstance(item, ItemReference)]
    known = dict((body.pagelet or RouterHints()).items or {})
    if missing := [item_id for item_id in wanted if item_id not in known]:
        store = store_of(server, "input")
        found = store.find_items(owner_of(request), missing)
        known |= zip(found, _ITEMS.validate_python(list(found.values())), strict=True)
    items = []
    for item in body.input:
        if isinstance(item, ItemReference):
            if item.id not in known:
                raise ApiError(
                    404,
                    f"Item with id {item.id!r} not found: its response was not stored, or is kept "
                    "no longer. Send the item itself.",
                    param="input",
                    code="item_not_found",
                    reason="invalid",
                )
            items.append(known[item.id])
        else:
            items.append(item)
    return items


@router.get(f"{RESPONSES}/items")
async def get_items(request: Request, ids: Annotated[list[str] | None, Query()] = None) -> Response:
    """Those of some ids (each a parameter of its own) that are kept, by id: for a router, which
    lets any replica refer to them."""
    store = server_of(request).responses
    wanted = (ids or [])[:MOST_REFERENCES]
    found = {} if store is None else store.find_items(owner_of(request), wanted)
    return _json(msgspec.json.encode(found))


@router.get(f"{RESPONSES}/{{response_id}}")
async def get_response(request: Request, response_id: str) -> Response:
    """As far as it has come."""
    if request.query_params.get("stream", "false").lower() not in ("false", "0"):
        raise InvalidRequest("'stream' is not supported here: ask again until it ends", "stream")
    return _tell(request, _find(request, response_id))


@router.delete(f"{RESPONSES}/{{response_id}}")
async def delete_response(request: Request, response_id: str) -> Response:
    """Forgets it, and ends what still works on it."""
    _find(request, response_id)
    store_of(server_of(request), "response_id").delete(owner_of(request), response_id)
    deleted = {"id": response_id, "object": "response", "deleted": True}
    return _json(msgspec.json.encode(deleted))


@router.get(f"{RESPONSES}/{{response_id}}/input_items")
async def list_input_items(
    request: Request,
    response_id: str,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Literal["asc", "desc"] = "desc",
    after: str | None = None,
) -> Response:
    """What it was asked, what came before included, in pages."""
    items: list[dict[str, Any]] = msgspec.json.decode(_find(request, response_id).items)
    if order == "desc":
        items.reverse()
    ids = [item["id"] for item in items]
    if after is not None:
        if after not in ids:
            raise InvalidRequest(f"'after' is no item of this response: {after[:200]!r}", "after")
        items = items[ids.index(after) + 1 :]
    page = items[:limit]
    return _json(
        msgspec.json.encode(
            {
                "object": "list",
                "data": page,
                "first_id": page[0]["id"] if page else None,
                "last_id": page[-1]["id"] if page else None,
                "has_more": len(items) > limit,
            }
        )
    )


@router.get(f"{RESPONSES}/{{response_id}}/conversation")
async def get_conversation(request: Request, response_id: str) -> Response:
    """The items that a next request goes on from: for a router, which lets any replica do so. An
    error is the one to refuse that request with."""
    return _json(msgspec.json.encode(_find(request, response_id).conversation()))


@router.post(f"{RESPONSES}/{{response_id}}/cancel")
async def cancel_response(request: Request, response_id: str) -> Response:
    """Ends what runs in the background; one that has ended stays as it is."""
    stored = _find(request, response_id)
    if not stored.background:
        raise InvalidRequest("only a response with 'background': true can be cancelled")
    if stored.job is not None and not stored.job.done():
        stored.job.cancel()
        await asyncio.wait((stored.job,))
    return _tell(request, stored)


def _find(request: Request, response_id: str) -> StoredResponse:
    store = server_of(request).responses
    found = None if store is None else store.find(owner_of(request), response_id)
    if found is None:
        why = _NOT_KEPT if store is None else "it was not stored, or is kept no longer"
        raise ApiError(
            404,
            f"Response with id {response_id[:200]!r} not found: {why}.",
            param="response_id",
            code="response_not_found",
            reason="invalid",
        )
    return found


def _tell(request: Request, stored: StoredResponse) -> Response:
    return _json(store_of(server_of(request), "response_id").tell(stored))


def _json(data: bytes) -> Response:
    return Response(data, media_type="application/json")
