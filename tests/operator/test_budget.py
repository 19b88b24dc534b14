"""Who gets how many accelerators."""

from typing import Any

from pagelet.operator.budget import Budget
from pagelet.operator.kube.resources import Object
from support.broken_services import service as make

GPU = "nvidia.com/gpu"


class Services:
    def __init__(self, *bodies: Object) -> None:
        self.bodies = {("n", body["metadata"]["name"]): body for body in bodies}

    def all_keys(self) -> list[tuple[str, str]]:
        return list(self.bodies)

    def get(self, key: tuple[str, str]) -> Object | None:
        return self.bodies.get(key)


def gpus(name: str, replicas: int, each: int = 1, **spec: Any) -> Object:
    accelerator = {"resourceName": GPU, "count": each}
    return make(name=name, replicas=replicas, accelerator=accelerator, **spec)


def budget(services: Services, **limits: int) -> Budget:
    fake: Any = services
    made = Budget(fake, {GPU: limits["gpus"]} if limits else {})
    made.changes()
    return made


def test_a_service_of_higher_priority_takes_from_one_of_lower() -> None:
    first = {"maxReplicas": 9, "priority": 1}
    services = Services(
        gpus("a", 1, autoscaling=first), gpus("b", 6, autoscaling={"maxReplicas": 9})
    )
    made = budget(services, gpus=6)
    assert [made.replicas(("n", name), wanted) for name, wanted in (("a", 1), ("b", 6))] == [1, 5]
    services.bodies["n", "a"]["spec"]["replicas"] = 4
    made.expire()
    assert set(made.changes()) == {("n", "a"), ("n", "b")}  # both are to be looked at
    assert [made.replicas(("n", name), wanted) for name, wanted in (("a", 4), ("b", 6))] == [4, 2]
    assert made.changes() == []


def test_replicas_of_several_accelerators_and_canaries_count_in_full() -> None:
    canary = {"weight": 5, "replicas": 1, "image": "next"}
    made = budget(Services(gpus("a", 3, each=2, canary=canary)), gpus=7)
    assert made.replicas(("n", "a"), 3) == 2


def test_what_has_no_budget_is_not_limited() -> None:
    services = Services(gpus("a", 50), make(name="cpu", replicas=50))
    assert budget(services).replicas(("n", "a"), 50) == 50
    assert budget(services, gpus=3).replicas(("n", "cpu"), 50) == 50
    assert budget(services, gpus=3).replicas(("n", "a"), 50) == 3


def test_a_service_that_is_gone_gives_back_what_it_had() -> None:
    services = Services(gpus("a", 4), gpus("b", 4))
    made = budget(services, gpus=4)
    assert made.replicas(("n", "b"), 4) == 0
    del services.bodies["n", "a"]
    made.expire()
    assert ("n", "b") in made.changes()
    assert made.replicas(("n", "b"), 4) == 4


def test_many_changes_are_reckoned_once_and_no_reconcile_sees_the_state_before() -> None:
    class Counted(Services):
        reckoned = 0

        def all_keys(self) -> list[tuple[str, str]]:
            self.reckoned += 1
            return super().all_keys()

    services = Counted(*(gpus(f"s{index}", 1) for index in range(50)))
    made = budget(services, gpus=49)
    services.reckoned = 0
    for index in range(50):
        services.bodies["n", f"s{index}"]["spec"]["replicas"] = 2
        made.expire()
    assert sum(made.replicas(("n", f"s{index}"), 2) for index in range(50)) == 49
    assert made.changes()
    assert services.reckoned == 1
