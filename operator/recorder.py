"""Events on services, for `kubectl describe`: one for each change of a condition."""

import datetime
import logging
import uuid
from collections.abc import Iterable
from typing import Final

from pagelet.operator.kube.client import FIELD_MANAGER, UNREACHABLE, ApiError, Client
from pagelet.operator.kube.resources import EVENTS, Object
from pagelet.protocol.inference_service.kind import API_VERSION, KIND
from pagelet.protocol.inference_service.status import Condition

_WARNING: Final = {"Valid": "False", "Degraded": "True"}
"""The status of a condition that someone has to do something about."""
_LONGEST: Final = 1024

log = logging.getLogger(__name__)


class Recorder:
    """Writes events."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def tell_changes(
        self, service: Object, before: Iterable[Condition], after: Iterable[Condition]
    ) -> None:
        """An event for each condition whose status or reason is another. That one could not be
        written is logged, as it holds up nothing."""
        known = {condition.type: condition for condition in before}
        for condition in after:
            old = known.get(condition.type)
            if old and (old.status, old.reason) == (condition.status, condition.reason):
                continue
            if old is None and condition.status == "False" and condition.type != "Valid":
                continue  # nothing is ready in the first moment, nor wrong
            lost = condition.type == "Ready" and (old and old.status, condition.status) == (
                "True",
                "False",
            )
            bad = lost or _WARNING.get(condition.type) == condition.status
            try:
                await self._write(service, condition, "Warning" if bad else "Normal")
            except (ApiError, *UNREACHABLE) as error:
                ends = isinstance(error, ApiError) and error.namespace_ends
                log.log(
                    logging.DEBUG if ends else logging.WARNING, "cannot write an event: %s", error
                )

    async def _write(self, service: Object, condition: Condition, kind: str) -> None:
        metadata = service["metadata"]
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        reference = {key: metadata[key] for key in ("name", "namespace", "uid")}
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": f"{metadata['name']}.{uuid.uuid4().hex[:12]}",
                "namespace": metadata["namespace"],
            },
            "involvedObject": {"apiVersion": API_VERSION, "kind": KIND, **reference},
            "type": kind,
            "reason": condition.reason,
            "message": f"{condition.type}: {condition.message}"[:_LONGEST],
            "source": {"component": FIELD_MANAGER},
            "firstTimestamp": now.replace("+00:00", "Z"),
            "lastTimestamp": now.replace("+00:00", "Z"),
            "count": 1,
        }
        await self._client.create(EVENTS, metadata["namespace"], event)
