"""Makes the cluster be what a service asks for, and reports what it is."""

import contextlib
import dataclasses
import datetime
import itertools
import logging
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from pagelet.operator.budget import Budget
from pagelet.operator.children import Child, Children, with_digest
from pagelet.operator.groups import (
    MEMBERS_ANNOTATION,
    Choice,
    Group,
    choose,
    numbers_of,
    read_groups,
)
from pagelet.operator.kube.client import ApiError, Client, Conflict, NotFound
from pagelet.operator.kube.reflector import Key
from pagelet.operator.kube.resources import (
    AUTOSCALERS,
    EVENTS,
    SERVICES,
    STATEFUL_SETS,
    Object,
    resource_of,
)
from pagelet.operator.metrics import Metrics
from pagelet.operator.ownership import MERGEABLE, stranger
from pagelet.operator.plan import plan
from pagelet.operator.planning.agents import pod_template
from pagelet.operator.planning.context import Context
from pagelet.operator.planning.group import template_digest
from pagelet.operator.recorder import Recorder
from pagelet.operator.replicas import Replicas
from pagelet.operator.services import Services
from pagelet.operator.status.compute import Observed, compute_status, invalid_status
from pagelet.operator.status.problems import pod_problem, waits_silently
from pagelet.protocol.inference_service.kind import API_VERSION, KIND
from pagelet.protocol.inference_service.load import InvalidServices, read_service
from pagelet.protocol.inference_service.service import InferenceService
from pagelet.protocol.inference_service.status import ServiceStatus

_REFUSED: Final = {400, 403, 404, 409, 413, 422}
"""Answers that the same request would get again."""

log = logging.getLogger(__name__)


class Refused(Exception):
    """The API server did not take something; said in the status, and tried again later."""


class Reconciler:
    """`reconcile` may be called at any time, in any order, and for one key at a time."""

    def __init__(
        self,
        client: Client,
        services: Services,
        children: Children,
        replicas: Replicas,
        recorder: Recorder,
        metrics: Metrics,
        context: Context,
        budget: Budget,
    ) -> None:
        self._client = client
        self._services = services
        self._children = children
        self._replicas = replicas
        self._recorder = recorder
        self._metrics = metrics
        self._context = context
        self._budget = budget

    async def reconcile(self, key: Key) -> bool:
        """One service. Whether to look again soon, as something is under way that no watch tells
        of. Raises Refused where waiting or another spec may help, and ApiError or what requests
        raise if it could not be done now."""
        body = self._services.get(key)
        if body is None or body["metadata"].get("deletionTimestamp"):
            self._metrics.forget(key)
            return False  # the cluster collects what it owns
        with self._metrics.reconciling():
            try:
                service = read_service(body)
            except InvalidServices as error:
                status = invalid_status(
                    _status_of(body),
                    self._children.pods(key),
                    _generation(body),
                    "; ".join(error.problems),
                    _now(),
                )
                await self._report(body, status)
                return False
            asked = service.spec.replicas
            service.spec.replicas = self._budget.replicas(key, asked)
            try:
                refusals = await self._apply(key, body, service)
            except ApiError as error:
                if error.namespace_ends:
                    return False
                raise
            await self._report(body, await self._observe(key, body, service, asked, refusals))
        if refusals:
            raise Refused("; ".join(refusals))
        silent = any(waits_silently(pod) for pod in self._children.pods(key))
        return silent or bool(self._lacking_pods(key))

    async def _apply(self, key: Key, body: Object, service: InferenceService) -> list[str]:
        """What the API server refused, in words."""
        uid = body["metadata"]["uid"]
        children = {
            (child.resource.kind, child.name): child
            for child in self._children.of(key)
            if uid in child.owners
        }
        refusals = []
        planned = set()
        choices = await self._choose_groups(key, service)
        numbers = {revision: choice.current for revision, choice in choices.items()}
        objects = plan(service, dataclasses.replace(self._context, groups=numbers))
        kinds = {made["kind"] for made in objects}
        # Two that scale one service fight, and KEDA refuses to be the second.
        await self._prune(
            key,
            [
                child
                for child in children.values()
                if child.resource in AUTOSCALERS and child.resource.kind not in kinds
            ],
        )
        if self._scales_down(key, objects):
            # The cluster takes the cheapest pods first, so costs must be of now.
            await self._replicas.refresh(key)
        for made in objects:
            owned = _owned(made, body)
            planned.add((made["kind"], made["metadata"]["name"]))
            child = children.get((made["kind"], made["metadata"]["name"]))
            if child is not None and child.is_as_planned(owned):
                continue
            try:
                self._children.saw(await self._put(with_digest(owned), body, child is not None))
                self._metrics.applied.value += 1
            except ApiError as error:
                if error.namespace_ends or not _is_refusal(error):
                    raise
                refusals.append(_refusal(made, error))
        if not refusals:
            planned |= {("StatefulSet", name) for c in choices.values() for name in c.kept}
            await self._prune(key, [c for k, c in children.items() if k not in planned])
        await self._note_members(key)
        return refusals

    async def _put(self, made: Object, body: Object, is_ours: bool) -> Object:
        """Applies an object. What is not known to be ours may be someone else's, which is not
        taken: Conflict."""
        if is_ours:
            return await self._client.apply(made, force=True)
        if made["kind"] not in MERGEABLE:
            with contextlib.suppress(Conflict):
                return await self._client.apply(made, force=False)
        metadata = made["metadata"]
        found = await self._client.find(resource_of(made), metadata["namespace"], metadata["name"])
        if found is not None and (owner := stranger(found, body)) is not None:
            raise Conflict(409, "Conflict", owner)
        return await self._client.apply(made, force=found is not None)

    async def _choose_groups(self, key: Key, service: InferenceService) -> dict[str, Choice]:
        """By revision, for those whose replicas have several nodes."""
        groups = self._groups(key)
        several = [revision for revision in service.revisions if revision.engine.nodes > 1]
        if any(len(groups.get(each.name, ())) > each.replicas for each in several):
            # The least costly ones go, so costs must be of now.
            await self._replicas.refresh(key)
            groups = self._groups(key)
        return {
            revision.name: choose(
                groups.get(revision.name, ()),
                numbers_of(self._children.pods(key), revision.name),
                revision.replicas,
                template_digest(revision, pod_template(service, revision, self._context)),
                service.spec.rollout,
            )
            for revision in several
        }

    def _groups(self, key: Key) -> dict[str, list[Group]]:
        return read_groups(self._children.stateful_sets(key), self._children.pods(key))

    async def _note_members(self, key: Key) -> None:
        for group in itertools.chain.from_iterable(self._groups(key).values()):
            if group.members is None and group.is_whole:
                note = {MEMBERS_ANNOTATION: ",".join(sorted(group.live))}
                patch = {"metadata": {"annotations": note}}
                try:
                    after = await self._client.merge(STATEFUL_SETS, key[0], group.name, patch)
                except NotFound:
                    continue  # deleted meanwhile
                self._children.saw(after)

    async def _prune(self, key: Key, unwanted: Iterable[Child]) -> None:
        for child in unwanted:
            log.info("deleting %s %s/%s", child.resource.kind, key[0], child.name)
            await self._client.delete(child.resource, key[0], child.name, child.uid)
            self._metrics.pruned.value += 1

    def _scales_down(self, key: Key, objects: list[Object]) -> bool:
        there = self._children.deployments(key)
        return any(
            made["kind"] == "Deployment"
            and made["metadata"]["name"] in there
            and made["spec"]["replicas"] < there[made["metadata"]["name"]]["spec"]["replicas"]
            for made in objects
        )

    async def _observe(
        self,
        key: Key,
        body: Object,
        service: InferenceService,
        asked: int,
        refusals: list[str],
    ) -> ServiceStatus:
        pods = self._children.pods(key)
        warnings = {}
        for pod in pods:
            if waits_silently(pod) and pod_problem(pod) is None:
                warnings[pod["metadata"]["name"]] = await self._warnings(pod)
        for lacking in self._lacking_pods(key):
            warnings[lacking["metadata"]["name"]] = await self._warnings(lacking)
        first = self._services.first_at_address(key)
        observed = Observed(
            deployments=self._children.deployments(key),
            groups=self._groups(key),
            templates={
                revision.name: template_digest(
                    revision, pod_template(service, revision, self._context)
                )
                for revision in service.revisions
                if revision.engine.nodes > 1
            },
            pods=pods,
            warnings=warnings,
            refusals=refusals,
            rates=self._replicas.rates(key),
            address_of=None if first == key else "/".join(first),
            replicas_asked=asked,
        )
        previous = _status_of(body).conditions
        return compute_status(service, _generation(body), observed, previous, _now())

    def _lacking_pods(self, key: Key) -> list[Object]:
        """StatefulSets some of whose pods were not made. Unlike a Deployment's, their status does
        not say why."""
        lacking = {
            group.name
            for group in itertools.chain.from_iterable(self._groups(key).values())
            if len(group.pods) < group.size
        }
        sets = self._children.stateful_sets(key)
        return [made for made in sets if made["metadata"]["name"] in lacking]

    async def _warnings(self, about: Object) -> list[str]:
        metadata = about["metadata"]
        selector = f"involvedObject.uid={metadata['uid']},type=Warning"
        events, _ = await self._client.list_all(
            EVENTS, metadata["namespace"], fieldSelector=selector
        )
        events.sort(key=lambda event: event.get("lastTimestamp") or event.get("eventTime") or "")
        return [event.get("message") or event.get("reason") or "" for event in events]

    async def _report(self, body: Object, status: ServiceStatus) -> None:
        written: dict[str, Any] = msgspec.to_builtins(status)
        self._metrics.saw_status(_key(body), status)
        if written == body.get("status"):
            return
        metadata = {key: body["metadata"][key] for key in ("name", "namespace")}
        made = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "status": written}
        try:
            after = await self._client.apply_status(SERVICES, made)
        except NotFound:
            return  # deleted meanwhile
        await self._recorder.tell_changes(body, _status_of(body).conditions, status.conditions)
        self._services.saw(after)


def _owned(made: Object, body: Object) -> Object:
    owner = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": body["metadata"]["name"],
        "uid": body["metadata"]["uid"],
        "controller": True,
        # Else deleting the service in the foreground would need the right to its finalizers.
        "blockOwnerDeletion": False,
    }
    return made | {"metadata": made["metadata"] | {"ownerReferences": [owner]}}


def _is_refusal(error: ApiError) -> bool:
    """The API server takes an unknown field in server-side apply for a fault of its own."""
    return error.code in _REFUSED or "failed to create typed patch object" in error.message


def _refusal(made: Object, error: ApiError) -> str:
    kind, name = made["kind"], made["metadata"]["name"]
    if isinstance(error, NotFound) and kind == "ScaledObject":
        return (
            "the cluster has no ScaledObject: install KEDA, or set spec.autoscaling.engine to "
            "builtin or hpa"
        )
    if isinstance(error, NotFound) and kind == "HTTPRoute":
        return (
            "the cluster has no HTTPRoute: install the Gateway API, or take "
            "spec.exposure.httpRoute out"
        )
    if isinstance(error, Conflict):
        return (
            f"there is a {kind} {name} that does not belong to this service: rename the service, "
            f"or delete it ({error.message})"
        )
    return f"{kind} {name}: {error.message}"


def _status_of(body: Object) -> ServiceStatus:
    try:
        return msgspec.convert(body.get("status") or {}, ServiceStatus)
    except msgspec.ValidationError:  # of another version of the operator
        return ServiceStatus()


def _generation(body: Object) -> int:
    return int(body["metadata"].get("generation", 1))


def _key(body: Object) -> Key:
    return body["metadata"]["namespace"], body["metadata"]["name"]


def _now() -> str:
    now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    return now.isoformat().replace("+00:00", "Z")
