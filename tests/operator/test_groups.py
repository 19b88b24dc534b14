"""Groups of pods: when one is whole, broken and ready, and which there should be next."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagelet.operator.groups import Choice, Group, choose, numbers_of, read_groups
from pagelet.operator.kube.resources import Object
from pagelet.operator.planning.objects import group_name
from pagelet.protocol.inference_service.rollout import Rollout
from support.plans import planned

SIZE = 2
NEW, OLD = "new", "old"


def pod(group: int, index: int, *, ready: bool = True, **metadata: Any) -> Object:
    labels = {
        "pagelet.dev/revision": "stable",
        "pagelet.dev/group": str(group),
        "apps.kubernetes.io/pod-index": str(index),
    }
    conditions = [{"type": "Ready", "status": str(ready)}]
    return {
        "metadata": {"uid": f"{group}-{index}", "labels": labels, "annotations": {}, **metadata},
        "status": {"phase": "Running", "conditions": conditions},
    }


def stateful_set(index: int, template: str = NEW, members: str | None = None) -> Object:
    return {
        "metadata": {
            "name": f"s-{index}",
            "labels": {
                "pagelet.dev/revision": "stable",
                "pagelet.dev/group": str(index),
                "pagelet.dev/template": template,
            },
            "annotations": {} if members is None else {"pagelet.dev/members": members},
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {"replicas": SIZE},
    }


def group(*pods: Object, members: str | None = "0-0,0-1") -> Group:
    [made] = read_groups([stateful_set(0, members=members)], pods)["stable"]
    return made


def test_a_group_is_ready_when_all_of_its_pods_are() -> None:
    both = [pod(0, 0), pod(0, 1)]
    assert group(*both).is_ready
    assert group(*both, members=None).is_ready
    assert not group(pod(0, 0), pod(0, 1, ready=False)).is_ready
    assert not group(pod(0, 0), members=None).is_ready
    assert not group(pod(0, 0), members=None).is_broken, "its pods are being made"
    assert group(*both).age("2026-01-01T00:01:00Z") == 60


@pytest.mark.parametrize(
    "second",
    [
        None,
        pod(0, 1, uid="another"),
        pod(0, 1, deletionTimestamp="2026-01-01T00:00:00Z"),
        pod(0, 1) | {"status": {"phase": "Failed"}},
    ],
    ids=["gone", "replaced", "to be deleted", "failed"],
)
def test_a_group_one_of_whose_pods_is_not_what_it_was_is_broken(second: Object | None) -> None:
    broken = group(*filter(None, [pod(0, 0), second]))
    assert broken.is_broken
    assert not broken.is_ready
    rollout = Rollout(max_surge=0, max_unavailable=1)
    assert choose([broken], [0], 1, NEW, rollout) == Choice((1,), ())


def fleet(*kinds: tuple[str, bool]) -> list[Group]:
    """Groups of some template, ready or not."""
    sets = [stateful_set(index, template) for index, (template, _) in enumerate(kinds)]
    pods = [
        pod(index, node, ready=ready) for index, (_, ready) in enumerate(kinds) for node in (0, 1)
    ]
    return read_groups(sets, pods).get("stable", [])


def test_a_rollout_with_room_makes_the_new_before_it_takes_the_old() -> None:
    rollout = Rollout(max_surge=1, max_unavailable=0)
    before = fleet((OLD, True), (OLD, True))
    assert choose(before, [], 2, NEW, rollout) == Choice((2,), ("s-0", "s-1"))
    loading = fleet((OLD, True), (OLD, True), (NEW, False))
    assert choose(loading, [], 2, NEW, rollout) == Choice((2,), ("s-0", "s-1"))
    loaded = fleet((OLD, True), (OLD, True), (NEW, True))
    assert choose(loaded, [], 2, NEW, rollout) == Choice((2, 3), ("s-0",))


def test_a_rollout_without_room_takes_the_old_first_and_stops_at_what_does_not_work() -> None:
    rollout = Rollout(max_surge=0, max_unavailable=1)
    before = fleet((OLD, True), (OLD, True))
    assert choose(before, [], 2, NEW, rollout) == Choice((2,), ("s-0",))
    stuck = fleet((OLD, True), (NEW, False))
    assert choose(stuck, [], 2, NEW, rollout) == Choice((1,), ("s-0",))


def test_fewer_replicas_take_what_is_not_ready_then_what_costs_least() -> None:
    groups = fleet((NEW, True), (NEW, False), (NEW, True))
    groups[2].pods[0]["metadata"]["annotations"] = {
        "controller.kubernetes.io/pod-deletion-cost": "5"
    }
    assert choose(groups, [], 2, NEW, Rollout()).current == (0, 2)
    assert choose(groups, [], 1, NEW, Rollout()).current == (2,)
    assert choose(groups, [], 0, NEW, Rollout()) == Choice((), ())


counts = st.integers(0, 4)


@given(st.lists(st.tuples(st.sampled_from([OLD, NEW]), st.booleans())), counts, counts, counts)
def test_every_step_keeps_to_the_bounds_and_the_steps_end(
    kinds: list[tuple[str, bool]], wanted: int, surge: int, unavailable: int
) -> None:
    """Groups become ready from step to step; whatever there is in the beginning, in the end it is
    as many of the new ones as are wanted, and on the way never fewer are ready than allowed."""
    rollout = Rollout(max_surge=surge, max_unavailable=unavailable)
    least = wanted - (unavailable or int(surge == 0))
    groups = {made.index: kind for made, kind in zip(fleet(*kinds), kinds, strict=True)}
    for _ in range(40):
        there = _fleet_of(groups)
        ready = sum(made.is_ready for made in there)
        choice = choose(there, [], wanted, NEW, rollout)
        kept = {made.index for made in there if made.name in choice.kept}
        assert not kept & set(choice.current)
        assert len(choice.current) <= wanted
        stay = kept | (groups.keys() & set(choice.current))
        assert sum(made.is_ready for made in there if made.index in stay) >= min(ready, least)
        fresh = set(choice.current) - groups.keys()
        assert not fresh or len(choice.current) + len(kept) <= wanted + surge
        after = {index: groups[index] for index in stay} | dict.fromkeys(fresh, (NEW, False))
        if after == groups and all(is_ready for _, is_ready in groups.values()):
            break
        groups = {index: (template, True) for index, (template, _) in after.items()}
    assert [template for template, _ in groups.values()] == [NEW] * wanted


def _fleet_of(kinds: dict[int, tuple[str, bool]]) -> list[Group]:
    sets = [stateful_set(index, template) for index, (template, _) in kinds.items()]
    pods = [pod(index, node, ready=ready) for index, (_, ready) in kinds.items() for node in (0, 1)]
    return read_groups(sets, pods).get("stable", [])


def test_numbers_whose_pods_are_not_gone_are_not_given_again() -> None:
    leaving = [pod(0, 1, deletionTimestamp="2026-01-01T00:00:00Z"), pod(2, 0)]
    taken = numbers_of(leaving, "stable")
    assert taken == {0, 2}
    assert choose([], taken, 2, NEW, Rollout()).current == (1, 3)


def test_what_lost_its_label_is_no_group_and_keeps_none_from_coming() -> None:
    stripped = stateful_set(0)
    del stripped["metadata"]["labels"]["pagelet.dev/group"]
    assert read_groups([stripped], []) == {}
    lost = pod(0, 0)
    lost["metadata"]["labels"]["pagelet.dev/group"] = "x"
    assert numbers_of([lost], "stable") == set()


def test_a_long_name_leaves_room_for_what_kubernetes_adds_to_it() -> None:
    names = {group_name("n" * 50, revision, 123) for revision in ("stable", "canary")}
    assert len(names) == 2
    assert all(len(name) <= 52 for name in names)
    assert group_name("large", "canary", 1) == "large-canary-1"


MULTI: dict[str, Any] = {
    "replicas": 2,
    "engine": {"nodes": 2, "tensorParallelSize": 2, "pipelineParallelSize": 2},
    "accelerator": {"resourceName": "nvidia.com/gpu", "count": 4},
}


def test_the_nodes_of_a_replica_meet_at_its_head_which_alone_is_routed_to() -> None:
    objects = planned(**MULTI)
    assert ("Deployment", "service-agent") not in objects
    names = objects["Service", "service-nodes"]["spec"]
    assert names["publishNotReadyAddresses"] is True
    for index in (0, 1):
        spec = objects["StatefulSet", f"service-agent-{index}"]["spec"]
        assert (spec["replicas"], spec["serviceName"]) == (2, "service-nodes")
        labels = spec["template"]["metadata"]["labels"]
        assert names["selector"].items() <= labels.items()
        [agent] = spec["template"]["spec"]["containers"]
        text = " ".join(agent["args"])
        assert f"--master-addr service-agent-{index}-0.service-nodes.default.svc" in text
        assert "--nnodes 2 --node-rank $(NODE_RANK)" in text
        assert agent["resources"]["limits"]["nvidia.com/gpu"] == "2"
    heads = objects["Service", "service-agents"]["spec"]["selector"]
    assert heads == names["selector"] | {"apps.kubernetes.io/pod-index": "0"}


def test_nodes_of_a_replica_reach_one_another_and_others_do_not() -> None:
    policy = objects_policy(planned(**MULTI))
    own = {"pagelet.dev/service": "service", "pagelet.dev/component": "agent"}
    assert {"from": [{"podSelector": {"matchLabels": own}}]} in policy
    assert all("ports" in rule for rule in objects_policy(planned()))


def objects_policy(objects: dict[tuple[str, str], Object]) -> list[Object]:
    rules: list[Object] = objects["NetworkPolicy", "service-agent"]["spec"]["ingress"]
    return rules


def test_a_groups_template_changes_with_what_its_pods_are_made_from_alone() -> None:
    def digest(**spec: Any) -> str:
        made = planned(**MULTI | spec)["StatefulSet", "service-agent-1"]
        return str(made["metadata"]["labels"]["pagelet.dev/template"])

    assert digest() == digest(replicas=3) == digest(router={"replicas": 1})
    assert digest() != digest(image="agent:2")
    assert digest() != digest(engine=MULTI["engine"] | {"nodes": 4})
