"""Recent requests and how they were routed: `GET /v1/explain/REQUEST_ID`."""

from collections import OrderedDict
from typing import Final

import msgspec

from pagelet.protocol.openai.errors import ApiError
from pagelet.router.record import RequestRecord
from pagelet.router.tenants.tenant import Tenant

_MOST_RECORDS: Final = 4096


class Explanations:
    """A ring of records: the newest `capacity`, by request id."""

    def __init__(self, capacity: int = _MOST_RECORDS) -> None:
        self._capacity = capacity
        self._records: OrderedDict[str, RequestRecord] = OrderedDict()

    def add(self, record: RequestRecord) -> None:
        """Remembers a request from when it came, so that a running one is explained too."""
        self._records.pop(record.request_id, None)
        self._records[record.request_id] = record
        if len(self._records) > self._capacity:
            self._records.popitem(last=False)

    def get(self, request_id: str, tenant: Tenant) -> RequestRecord:
        """A request as far as it has come. Raises 404, also for another tenant's request."""
        record = self._records.get(request_id)
        if record is None or not (tenant.admin or record.tenant == tenant.name):
            raise ApiError(
                404,
                f"No recent request has the id {request_id[:128]!r}; a router remembers its last "
                f"{self._capacity}.",
                code="request_not_found",
            )
        return record

    def encode(self, request_id: str, tenant: Tenant) -> bytes:
        """The same as JSON."""
        shown = msgspec.to_builtins(self.get(request_id, tenant))
        del shown["began"]  # a clock that means nothing elsewhere
        return msgspec.json.encode(shown)
