"""Recent requests and how they were routed: `GET /v1/explain/REQUEST_ID`."""

from collections import OrderedDict
from typing import Final

import msgspec

from pagelet.protocol.openai.errors import ApiError
from pagelet.router.record import RequestRecord

_MOST_RECORDS: Final = 4096


class Explanations:
    """A ring of records: the newest `capacity`. Clients choose their requests' ids, so a record is
    found by its tenant and its id, and no tenant can take the place of another's."""

    def __init__(self, capacity: int = _MOST_RECORDS) -> None:
        self._capacity = capacity
        self._records: OrderedDict[tuple[str, str], RequestRecord] = OrderedDict()

    def add(self, record: RequestRecord) -> None:
        """Remembers a request from when it came, so that a running one is explained too."""
        key = (record.tenant, record.request_id)
        self._records.pop(key, None)
        self._records[key] = record
        if len(self._records) > self._capacity:
            self._records.popitem(last=False)

    def find(self, request_id: str, tenant: str, *, admin: bool) -> bytes | None:
        """A request as far as it has come, as JSON. An admin finds the newest of any tenant."""
        record = self._records.get((tenant, request_id))
        if record is None and admin:
            newest_first = reversed(self._records.values())
            record = next((found for found in newest_first if found.request_id == request_id), None)
        if record is None:
            return None
        shown = msgspec.to_builtins(record)
        del shown["began"]  # a clock that means nothing elsewhere
        return msgspec.json.encode(shown)

    def not_found(self, request_id: str) -> ApiError:
        """The answer about a request that is not there, or another tenant's."""
        return ApiError(
            404,
            f"No recent request has the id {request_id[:128]!r}; a router remembers its last "
            f"{self._capacity}.",
            code="request_not_found",
        )
