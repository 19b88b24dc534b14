"""Which replicas a Service's EndpointSlices make."""

import random

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from pagelet.router.replicas.discovery import Endpoint
from pagelet.router.replicas.kubernetes import EndpointSlice, replica_endpoints


def slice_of(
    *endpoints: dict[str, object], ports: list[dict[str, object]] | None = None
) -> EndpointSlice:
    raw = {
        "metadata": {"name": "agents-1", "resourceVersion": "7"},
        "addressType": "IPv4",
        "endpoints": list(endpoints),
        "ports": [{"name": "http", "port": 8000, "protocol": "TCP"}] if ports is None else ports,
    }
    return msgspec.convert(raw, EndpointSlice)


def pod(uid: str, address: str, **conditions: bool) -> dict[str, object]:
    target = {"kind": "Pod", "name": f"agent-{uid}", "uid": uid}
    return {"addresses": [address], "conditions": conditions, "targetRef": target}


def test_ready_pods_count_and_terminating_ones_take_no_requests() -> None:
    piece = slice_of(
        pod("a", "10.244.1.5", ready=True, serving=True, terminating=False),
        pod("b", "10.244.1.6", ready=False, serving=False, terminating=False),
        pod("c", "10.244.1.7", ready=False, serving=True, terminating=True),
        pod("d", "10.244.1.8", ready=True, serving=True, terminating=True),
        pod("e", "10.244.1.9"),  # unknown counts as ready
    )
    assert replica_endpoints([piece], "http") == [
        Endpoint("a", "http://10.244.1.5:8000"),
        Endpoint("c", "http://10.244.1.7:8000", takes_requests=False),
        Endpoint("d", "http://10.244.1.8:8000", takes_requests=False),
        Endpoint("e", "http://10.244.1.9:8000"),
    ]


def test_known_pods_stay_until_they_terminate() -> None:
    """The control plane calls all pods of a node not ready that it has lost sight of."""
    piece = slice_of(
        pod("a", "10.244.1.5", ready=False, serving=False, terminating=False),
        pod("b", "10.244.1.6", ready=False, serving=False, terminating=False),
        pod("c", "10.244.1.7", ready=False, serving=True, terminating=True),
    )
    kept = replica_endpoints([piece], "http", known={"a", "c", "gone"})
    assert kept == [
        Endpoint("a", "http://10.244.1.5:8000"),
        Endpoint("c", "http://10.244.1.7:8000", takes_requests=False),
    ]


def test_of_two_entries_of_a_pod_the_one_that_takes_requests_counts() -> None:
    pods = [pod("a", "10.244.1.5", terminating=True), pod("a", "10.244.1.5", ready=True)]
    for order in (pods, pods[::-1]):
        pieces = [slice_of(each) for each in order]
        assert replica_endpoints(pieces, "http") == [Endpoint("a", "http://10.244.1.5:8000")]


def test_the_port_is_found_by_name_or_number() -> None:
    ports = [{"name": "metrics", "port": 9000}, {"name": "http", "port": 8000}]
    piece = slice_of(pod("a", "10.244.1.5"), ports=ports)
    assert replica_endpoints([piece], "metrics") == [Endpoint("a", "http://10.244.1.5:9000")]
    assert replica_endpoints([piece], 8000) == [Endpoint("a", "http://10.244.1.5:8000")]
    assert replica_endpoints([piece], 1) == replica_endpoints([piece], "other") == []


def test_an_ipv6_address_is_written_as_a_url_wants_it() -> None:
    piece = slice_of(pod("a", "fd00::5"))
    assert replica_endpoints([piece], "http") == [Endpoint("a", "http://[fd00::5]:8000")]


def test_an_endpoint_without_a_pod_is_its_address() -> None:
    piece = slice_of({"addresses": ["192.0.2.1"]})
    assert replica_endpoints([piece], "http") == [
        Endpoint("192.0.2.1:8000", "http://192.0.2.1:8000")
    ]


def test_empty_slices_are_written_without_lists() -> None:
    raw = {"metadata": {"name": "agents-1"}, "addressType": "IPv4", "endpoints": None}
    assert replica_endpoints([msgspec.convert(raw, EndpointSlice)], "http") == []


@given(
    pods=st.dictionaries(
        st.text("abcdef", min_size=1, max_size=4), st.integers(1, 250), min_size=1, max_size=8
    ),
    order=st.randoms(use_true_random=False),
)
def test_the_order_and_the_cut_into_slices_do_not_matter(
    pods: dict[str, int], order: random.Random
) -> None:
    endpoints = [pod(uid, f"10.244.1.{last}", ready=True) for uid, last in pods.items()]
    expected = replica_endpoints([slice_of(*endpoints)], "http")
    assert [endpoint.id for endpoint in expected] == sorted(pods)
    order.shuffle(endpoints)
    # While a pod moves from one slice to another it may stand in both.
    cut = len(endpoints) // 2
    pieces = [slice_of(*endpoints[:cut]), slice_of(*endpoints[max(0, cut - 1) :])]
    assert replica_endpoints(pieces, "http") == expected
