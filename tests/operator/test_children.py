"""What is applied again, and what is left alone."""

import copy
from typing import Any

import pytest

from pagelet.operator.children import Child, _child, _keep_all, plan_digest, with_digest
from pagelet.operator.kube.resources import DEPLOYMENTS, Object
from support.plans import planned

MADE = planned()["Deployment", "service-agent"]


def stored(made: Object) -> Object:
    """As the API server would have it: with its digest, and what it fills in."""
    live = copy.deepcopy(with_digest(made))
    live["metadata"] |= {"uid": "u", "resourceVersion": "5", "managedFields": [{}]}
    live["spec"]["template"]["spec"]["restartPolicy"] = "Always"
    live["spec"]["template"]["spec"]["containers"][0]["terminationMessagePath"] = "/dev/x"
    live["status"] = {"replicas": 1}
    for key in ("apiVersion", "kind"):  # lists leave them out
        del live[key]
    return live


def child_of(live: Object) -> Child:
    return _child(DEPLOYMENTS, _keep_all(live))


def test_what_is_as_planned_is_not_applied_again() -> None:
    assert child_of(stored(MADE)).is_as_planned(MADE)
    assert child_of(stored(MADE)).uid == "u"


def set_at(live: Object, path: tuple[Any, ...], value: Any) -> None:
    for step in path[:-1]:
        live = live[step]
    live[path[-1]] = value


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "replicas"), 7),
        (("spec", "template", "spec", "containers", 0, "image"), "other"),
        (("spec", "template", "spec", "containers", 0, "args"), []),
        (("metadata", "labels", "pagelet.dev/service"), "other"),
        (("metadata", "annotations"), {}),
    ],
)
def test_what_someone_changed_is(path: tuple[Any, ...], value: Any) -> None:
    live = stored(MADE)
    set_at(live, path, value)
    assert not child_of(live).is_as_planned(MADE)


def test_what_is_no_longer_planned_is_applied_to_take_it_away() -> None:
    before = copy.deepcopy(MADE)
    before["spec"]["paused"] = True
    assert not child_of(stored(before)).is_as_planned(MADE)
    assert plan_digest(before) != plan_digest(MADE)
