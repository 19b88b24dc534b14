"""A pod spec, patches, and the fields that a strategic merge leaves."""

from typing import Any

_AGENT = {"name": "agent", "image": "agent:1", "env": [{"name": "A", "value": "1"}]}
_OTHER = {"name": "other", "image": "other:1", "workingDir": "/tmp"}

BASE: dict[str, Any] = {
    "containers": [_AGENT, _OTHER],
    "nodeSelector": {"a": "1", "b": "2"},
    "tolerations": [{"key": "a", "operator": "Exists"}],
    "hostname": "name",
}

MERGES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"hostname": "other"}, {"hostname": "other"}),
    ({"nodeSelector": {"a": None, "c": "3"}}, {"nodeSelector": {"b": "2", "c": "3"}}),
    ({"nodeSelector": {"$patch": "replace", "c": "3"}}, {"nodeSelector": {"c": "3"}}),
    ({"tolerations": [{"key": "b"}]}, {"tolerations": [{"key": "b"}]}),
    (
        {"containers": [{"name": "agent", "env": [{"name": "B", "value": "2"}]}]},
        {
            "containers": [
                _AGENT | {"env": [{"name": "B", "value": "2"}, {"name": "A", "value": "1"}]},
                _OTHER,
            ]
        },
    ),
    (
        {"containers": [{"name": "agent", "env": [{"name": "A", "$patch": "delete"}]}]},
        {"containers": [_AGENT | {"env": []}, _OTHER]},
    ),
    ({"containers": [{"name": "other", "$patch": "delete"}]}, {"containers": [_AGENT]}),
    (
        {"containers": [{"name": "new", "image": "new:1"}, {"name": "other", "image": "other:2"}]},
        {
            "containers": [
                {"name": "new", "image": "new:1"},
                _AGENT,
                _OTHER | {"image": "other:2"},
            ]
        },
    ),
    ({"containers": [{"$patch": "replace"}, _OTHER]}, {"containers": [_OTHER]}),
    (
        {"containers": [{"name": "other", "workingDir": None}]},
        {"containers": [_AGENT, {"name": "other", "image": "other:1"}]},
    ),
]
