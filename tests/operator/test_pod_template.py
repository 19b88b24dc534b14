"""Whatever stands in a pod template is refused in words, or planned: it cannot end a reconcile."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pagelet.operator.plan import plan
from pagelet.protocol.inference_service.load import InvalidServices
from pagelet.protocol.inference_service.pod_template import MERGE_KEYS
from support.plans import CONTEXT, make_service

NAMES = (*MERGE_KEYS, *set(MERGE_KEYS.values()), "args", "metadata", "labels", "spec", "$patch")
VALUES = st.none() | st.booleans() | st.integers(0, 9) | st.sampled_from(("agent", "replace", "a"))
JSON = st.recursive(
    VALUES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner),
    max_leaves=8,
)
ENTRY = st.fixed_dictionaries(
    {"name": st.sampled_from(("agent", "a"))},
    optional=dict.fromkeys(("env", "ports", "args", "image", "volumeMounts", "$patch"), JSON),
)
SPEC = st.dictionaries(st.sampled_from(NAMES), JSON) | st.fixed_dictionaries(
    {"containers": st.lists(ENTRY | JSON, max_size=2)}
)
TEMPLATE = st.fixed_dictionaries({}, optional={"spec": SPEC | JSON, "metadata": JSON})


@settings(max_examples=300)
@given(template=TEMPLATE, nodes=st.sampled_from((1, 2)))
def test_any_template_is_refused_or_planned(template: dict[str, Any], nodes: int) -> None:
    engine = {"nodes": nodes, "tensorParallelSize": nodes}
    try:
        service = make_service(podTemplate=template, engine=engine)
    except InvalidServices:
        return
    kind = "Deployment" if nodes == 1 else "StatefulSet"
    [made] = [
        made
        for made in plan(service, CONTEXT)
        if made["kind"] == kind and not made["metadata"]["name"].endswith("-router")
    ]
    pod = made["spec"]["template"]
    assert made["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert "agent" in {container["name"] for container in pod["spec"]["containers"]}
