"""A request for a model, from its admission to the last byte of its answer."""

import asyncio
import dataclasses
import random
from typing import Any, Final

import msgspec

from pagelet.protocol.anthropic.errors import MESSAGES
from pagelet.protocol.openai.errors import INPUT_TOKENS, RESPONSES
from pagelet.protocol.trace_context import TraceContext
from pagelet.router.conversation import conversation_key
from pagelet.router.http.exchange import Exchange
from pagelet.router.item_references import referenced_items
from pagelet.router.kept_responses import conversation, tenant_header
from pagelet.router.models import ServedModel
from pagelet.router.proxy.body import RequestBody
from pagelet.router.proxy.forward import Forwarding, UpstreamRequest
from pagelet.router.proxy.headers import from_client
from pagelet.router.proxy.journal import Journal
from pagelet.router.queue.waiting_room import Ask, Permit
from pagelet.router.record import RequestRecord
from pagelet.router.replicas.replica import Replica
from pagelet.router.routing.ring import prompt_head
from pagelet.router.routing.text_hash import estimate_tokens, hash_text
from pagelet.router.routing.types import RouteRequest
from pagelet.router.state import RouterState
from pagelet.router.tenants.limits import Grant
from pagelet.router.tenants.tenant import Tenant
from pagelet.router.tokens.tokeniser import CHAT, COMPLETIONS, Prompts
from pagelet.router.upstream.connection import Headers

_SCORING: Final = ("/v2/rerank", "/v1/rerank", "/rerank", "/v1/score", "/score")
PATHS: Final = frozenset(
    (
        *(CHAT, COMPLETIONS, f"{CHAT}/render", f"{COMPLETIONS}/render"),
        *(RESPONSES, INPUT_TOKENS, "/v1/embeddings", MESSAGES, f"{MESSAGES}/count_tokens"),
        *_SCORING,
        *("/pooling", "/classify"),
        *("/tokenize", "/detokenize"),
    )
)
"""Where clients may POST JSON that names a model."""
_OF_STORED: Final = frozenset((RESPONSES, INPUT_TOKENS))
"""Where a request may go on from stored responses."""
_HINTED: Final = frozenset((CHAT, COMPLETIONS, MESSAGES, "/v1/embeddings", *_OF_STORED, *_SCORING))
"""Replicas take hints there, so that what they cache of a prompt is its tenant's own."""
_NAMED_EVENTS: Final = frozenset((RESPONSES, MESSAGES))
"""Streams there end with their one answer."""
_MODEL_OPTIONAL: Final = frozenset(("/tokenize", "/detokenize"))
_SEED_BITS: Final = 63


@dataclasses.dataclass(slots=True)
class Inference:
    """One request of one tenant."""

    state: RouterState
    exchange: Exchange
    record: RequestRecord
    trace: TraceContext
    tenant: Tenant
    grant: Grant
    body: RequestBody

    async def run(self) -> None:
        """Answers. Raises `ApiError`."""
        body, record = self.body, self.record
        model = self._find_model()
        self._record(model)
        record.stream, record.answers = body.stream, body.num_answers
        self.state.models.check(model, self.tenant)
        if self.exchange.path in _OF_STORED and body.previous_response_id is not None:
            body.before = await conversation(
                self.state, self.tenant, record, body.previous_response_id
            )
        if self.exchange.path in _OF_STORED:
            body.referenced = await referenced_items(self.state, self.tenant, record, body.data)
        session = self.exchange.header(self.state.config.routing.session_header.lower().encode())
        ref = self.state.models.choose_pool(
            model, lambda: conversation_key(body.data, session), self.state.available
        )
        pool, tokeniser = self.state.pools[ref], self.state.tokenisers[ref]
        record.pool = pool.name
        prompt_tokens = estimate_tokens(body.prompt_text)
        self.grant.reserve(record.answers, prompt_tokens, body.max_tokens)
        permit = await pool.room.enter(
            Ask(
                tenant=self.tenant.name,
                cost=self.state.limiter.expected_tokens(
                    self.tenant.name, record.answers, prompt_tokens, body.max_tokens
                ),
                weight=self.tenant.limits.weight,
                priority=body.priority,
                answers=record.answers,
                prompt_tokens=prompt_tokens,
            )
        )
        record.note("admitted")
        record.waited_seconds = permit.waited_seconds
        model = self.state.models.renewed(model)
        self._record(model)
        try:
            salt, prompts = self.state.salts.derive(self.tenant, body.cache_salt), None
            caches = self.exchange.path in _HINTED
            tokenises = self.exchange.path in (CHAT, COMPLETIONS)
            adapter = self.state.models.adapter_digest(model, ref)
            if tokenises:
                prompts = await tokeniser.tokenise(self.exchange.path, body.data, salt, adapter)
            route = self._route(prompts, salt, session, model.adapter)
            if (name := self.state.models.upstream_name(model, ref)) != model.asked:
                body.rename_model(name)
            named = self.exchange.path in _NAMED_EVENTS
            resumable = body.stream and (tokenises or named)
            request = UpstreamRequest(
                method=self.exchange.method,
                target=self.exchange.target,
                headers=self._headers(),
                body=_Bodies(body, salt, prompts, resumable).body if caches else self._as_it_is,
                stream=body.stream,
                journal=self._journal(named) if resumable else None,
            )
            forwarding = Forwarding(pool, self.state.budget, self.exchange, record, request, route)
            record.overhead_seconds = record.elapsed() - record.body_seconds - record.waited_seconds
            try:
                await forwarding.run()
            except asyncio.CancelledError:
                self._settle(forwarding, permit, client_gone=True)
                raise
            finally:
                self._settle(forwarding, permit)
        finally:
            permit.release()

    def _journal(self, named_events: bool) -> Journal:
        if named_events:
            return Journal(1, 1, wants_usage=False, ends_with_answer=True)
        return Journal(self.body.num_answers, self.body.n, self.body.includes_usage)

    def _find_model(self) -> ServedModel:
        if self.body.model is None and self.exchange.path in _MODEL_OPTIONAL:
            models = self.state.models.list_models(self.tenant).data
            if models:
                return self.state.models.find(models[0].id, self.tenant)
        return self.state.models.find(self.body.require_model(), self.tenant)

    def _record(self, model: ServedModel) -> None:
        self.record.model = model.name
        base = "" if model.adapter is None else self.state.models.label(model.route)
        self.record.adapter_of = base

    def _route(
        self, prompts: Prompts | None, salt: str | None, session: str | None, adapter: str | None
    ) -> RouteRequest:
        text = self.body.prompt_text
        if prompts is None:
            owner = (salt or "") if adapter is None else f"{salt or ''}\0{adapter}"
            block_hashes = hash_text(text, owner.encode("utf-8", "surrogatepass"))
            num_tokens = estimate_tokens(text)
        else:
            block_hashes, num_tokens = list(prompts.block_hashes), prompts.num_tokens
        self.record.prompt_tokens = num_tokens
        return RouteRequest(
            request_id=self.record.request_id,
            block_hashes=block_hashes,
            num_prompt_tokens=num_tokens,
            max_tokens=self.body.max_tokens,
            head=prompt_head(block_hashes, text),
            session=session,
            tenant=self.tenant.name,
            streams=self.body.stream,
            adapter=adapter,
        )

    def _headers(self) -> Headers:
        headers = from_client(self.exchange.headers)
        headers += self.state.replica_headers
        headers.append((b"x-request-id", self.record.request_id.encode()))
        if self.exchange.path in _OF_STORED:
            headers.append(tenant_header(self.tenant))
        for name, value in self.trace.headers():
            headers.append((name.encode(), value.encode("latin-1", "replace")))
        return headers

    def _as_it_is(self, replica: Replica, resume: dict[str, Any] | None) -> bytes:
        description = replica.description
        return self.body.passed_on(takes_priority=description is None or description.takes_priority)

    def _settle(self, forwarding: Forwarding, permit: Permit, *, client_gone: bool = False) -> None:
        """Takes what was used from the tenant's limits, and its share: nothing if there was no
        answer, unless it is the client that did not wait for it. The first call counts."""
        record, counts = self.record, forwarding.counts
        if counts.prompt_tokens is not None:
            record.prompt_tokens = counts.prompt_tokens
        record.cached_tokens = counts.cached_tokens
        record.completion_tokens = counts.completion_tokens or 0
        if self.exchange.status == 200 or client_gone:
            generated = record.completion_tokens
            if self.body.background and self.exchange.path == RESPONSES:
                # Nobody tells what it came to: it counts as what was reserved for it.
                mean = self.state.limiter.mean_answer(self.tenant.name)
                generated = self.body.max_tokens or round(mean)
            self.grant.settle(record.prompt_tokens, generated)
            permit.settle(record.prompt_tokens + generated)


class _Bodies:
    """The bodies of a request that generates, for replicas of either kind."""

    def __init__(
        self, body: RequestBody, salt: str | None, prompts: Prompts | None, stream: bool
    ) -> None:
        self._body = body
        self._prompts = prompts
        self._hints: dict[str, Any] = {}
        if salt is not None:
            self._hints["cache_salt"] = salt
        if prompts is not None and prompts.shared_tokens:
            self._hints["shared_prefix_tokens"] = prompts.shared_tokens
        if body.before:
            self._hints["conversation"] = msgspec.Raw(body.before)
        if body.referenced:
            self._hints["items"] = msgspec.Raw(body.referenced)
        if stream:
            self._hints["journal"] = True
            self._hints["seed"] = random.getrandbits(_SEED_BITS)

    def body(self, replica: Replica, resume: dict[str, Any] | None) -> bytes:
        """For a replica, given what a stream has shown."""
        description = replica.description
        if description is None:
            return self._body.passed_on(takes_priority=True)
        hints = dict(self._hints)
        if self._prompts is not None and self._prompts.tokenizer == description.tokenizer:
            hints["prompt_token_ids"] = msgspec.Raw(self._prompts.ids_json)
        if resume is not None:
            hints["resume"] = resume
        return self._body.passed_on(
            takes_priority=description.takes_priority,
            hints=msgspec.json.encode(hints) if hints else b"",
        )
