"""Stored responses: which replica keeps one, and what may be asked of it.

The id tells whom to ask first. A stream that went on at another replica is kept there under the id
with which it began, so that the others are asked when the first one has nothing. Replicas that take
no requests any more are asked, too, for as long as they answer: what they keep is nowhere else."""

import asyncio
import contextlib
import dataclasses
import hashlib
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, TypeGuard
from urllib.parse import quote

import msgspec

from pagelet.protocol.openai.errors import RESPONSES, ApiError, ErrorResponse, retry_after
from pagelet.protocol.openai.routing import TENANT_HEADER
from pagelet.router.proxy.headers import from_replica
from pagelet.router.record import RequestRecord
from pagelet.router.replicas.replica import Replica
from pagelet.router.state import RouterState
from pagelet.router.tenants.tenant import Tenant
from pagelet.router.upstream.client import ConnectRefused, UpstreamTimeout
from pagelet.router.upstream.connection import Headers, UpstreamError

_SECONDS: Final = 30.0
"""For a replica's answer: it looks something up."""
PREFIX: Final = f"{RESPONSES}/"


@dataclasses.dataclass(frozen=True, slots=True)
class KeptAnswer:
    """A replica's answer about a response."""

    status: int
    headers: Headers
    body: bytes


Told = KeptAnswer | UpstreamError | None
"""By one replica; None if it has not what is asked for."""


def tenant_header(tenant: Tenant) -> tuple[bytes, bytes]:
    """By which replicas tell whose responses a request may see; no client can send it."""
    digest = hashlib.sha256(tenant.name.encode("utf-8", "surrogatepass")).hexdigest()
    return TENANT_HEADER.encode(), digest.encode()


async def ask(
    state: RouterState, tenant: Tenant, record: RequestRecord, method: str, target: str
) -> KeptAnswer:
    """What the replica says that keeps the response which `target` names. Raises `ApiError`."""
    response_id = target.removeprefix(PREFIX).partition("?")[0].partition("/")[0]
    keepers = [replica for replica in state.all_replicas if replica.keeps_responses]
    named = [each for each in keepers if response_id.startswith(_mark(each))]
    headers = [
        *state.replica_headers,
        (b"x-request-id", record.request_id.encode()),
        tenant_header(tenant),
    ]
    lost: UpstreamError | None = None
    for asked in (named, [each for each in keepers if each not in named]):
        questions = (ask_one(each, method, target, headers) for each in asked)
        # A question that does something is not taken back: more than one may have a part in it.
        answers = await answers_until(questions, is_found if method == "GET" else _never)
        told = [answer for answer in answers if isinstance(answer, KeptAnswer)]
        if told:
            return next(filter(is_found, told), told[0])
        if asked is named:
            lost = next((each for each in answers if isinstance(each, UpstreamError)), None)
    if lost is not None and not isinstance(lost, ConnectRefused):
        raise ApiError(
            503,
            f"The replica that keeps the response does not answer: {lost}.",
            code="upstream_failed",
            headers={"Retry-After": retry_after(1.0)},
            reason="upstream",
        )
    if not keepers:
        why = (
            "no replica keeps responses: the one that kept it is gone, or they were started "
            "without --response-store"
        )
    elif named and lost is None:
        why = "it was not stored, or is kept no longer"
    else:
        why = "it was not stored, or the replica that kept it is gone or has started anew"
    raise ApiError(
        404,
        f"Response with id {response_id[:200]!r} not found: {why}.",
        param="response_id",
        code="response_not_found",
        reason="invalid",
    )


async def conversation(
    state: RouterState, tenant: Tenant, record: RequestRecord, response_id: str
) -> bytes:
    """The JSON list of items that a next request goes on from. Raises `ApiError`, also the
    replica's own for a response that cannot be gone on from."""
    target = f"{PREFIX}{quote(response_id, safe='')}/conversation"
    try:
        answer = await ask(state, tenant, record, "GET", target)
    except ApiError as error:
        if error.status != 404:
            raise
        raise ApiError(
            400,
            f"Previous response: {error} Send the whole conversation in 'input'.",
            param="previous_response_id",
            code="previous_response_not_found",
            reason="invalid",
        ) from error
    if answer.status == 200:
        return answer.body
    if answer.status == 400:
        with contextlib.suppress(msgspec.MsgspecError):
            found = msgspec.json.decode(answer.body, type=ErrorResponse).error
            raise ApiError(400, found.message, param=found.param, code=found.code, reason="invalid")
    raise ApiError(502, "the replica that keeps the response did not tell it", reason="upstream")


async def answers_until(
    questions: Iterable[Coroutine[Any, Any, Told]], enough: Callable[[Told], bool]
) -> list[Told]:
    """The answers up to the first one that is enough, or all, in the order of the questions, which
    are asked at once: who has an answer need not wait for a replica that is silent."""
    tasks = [asyncio.create_task(question) for question in questions]
    try:
        for answer in asyncio.as_completed(tasks):
            if enough(await answer):
                break
        return [task.result() for task in tasks if task.done()]
    finally:
        for task in tasks:
            task.cancel()


def is_found(answer: Told) -> TypeGuard[KeptAnswer]:
    """Whether it is what was asked for, not an error."""
    return isinstance(answer, KeptAnswer) and answer.status == 200


def _never(_: Told) -> bool:
    return False


def _mark(replica: Replica) -> str:
    assert replica.description is not None
    return f"resp_{replica.description.response_store}_"


async def ask_one(replica: Replica, method: str, target: str, headers: Headers) -> Told:
    """What one replica says. One that is known to be hung is not asked."""
    if replica.health == "hung":
        return UpstreamTimeout("it is hung")
    try:
        response = await replica.upstream.send(method, target, headers, seconds=_SECONDS)
        try:
            body = await response.read_all(_SECONDS)
        finally:
            response.close()
    except UpstreamError as error:
        return error
    if response.status == 404:
        return None
    kept_by = (b"x-pagelet-replica", replica.id.encode("latin-1", "replace"))
    return KeptAnswer(response.status, [*from_replica(response.headers), kept_by], body)
