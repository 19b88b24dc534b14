"""What is known of all services together."""

from typing import Any

from pagelet.operator.services import Services
from support.broken_services import service as make


def body(name: str, created: str, version: int = 1, **ingress: Any) -> dict[str, Any]:
    exposure = {"ingress": {"host": "a.example.com", "path": "/"} | ingress} if ingress else {}
    made = make(name=name, exposure=exposure)
    metadata = {"namespace": "n", "creationTimestamp": created, "resourceVersion": str(version)}
    return made | {"metadata": made["metadata"] | metadata}


def test_the_oldest_service_has_the_address_that_several_ask_for() -> None:
    client: Any = None  # nothing is asked of the API server
    services = Services(client, [None], lambda key: None)
    services.saw(body("new", "2026-01-02T00:00:00Z", host="a.example.com"))
    services.saw(body("old", "2026-01-01T00:00:00Z", host="a.example.com"))
    services.saw(body("path", "2026-01-01T00:00:00Z", path="/b"))
    services.saw(body("class", "2026-01-01T00:00:00Z", className="other"))
    services.saw(body("inside", "2026-01-01T00:00:00Z"))
    first = {name: services.first_at_address(("n", name))[1] for name in ("new", "old", "path")}
    assert first == {"new": "old", "old": "old", "path": "path"}
    for name in ("class", "inside", "gone"):
        assert services.first_at_address(("n", name)) == ("n", name)
    services.saw_deleted(body("old", "2026-01-01T00:00:00Z"))
    assert services.first_at_address(("n", "new")) == ("n", "new")
