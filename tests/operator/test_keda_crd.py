"""The ScaledObject of a plan is one that KEDA takes: it fits the schema of KEDA's own CRD."""

import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from cluster.programs import KEDA, CannotBuild, find_go
from support.plans import planned

CRD = "config/crd/bases/keda.sh_scaledobjects.yaml"
SCHEDULE = {"start": "0 8 * * *", "end": "0 18 * * *", "timezone": "Europe/Berlin", "replicas": 2}


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    """Of a ScaledObject, strict: a field that it does not know is an error."""
    try:
        go, _ = find_go()
    except CannotBuild as error:
        pytest.skip(str(error))
    command = [go, "list", "-m", "-f", "{{.Dir}}", "github.com/kedacore/keda/v2"]
    listed = subprocess.run(command, cwd=KEDA.folder, capture_output=True, text=True, check=False)
    folder = listed.stdout.strip()
    if not folder:
        pytest.skip("KEDA's module was not fetched here yet: `make e2e` does that")
    crd = yaml.safe_load((Path(folder) / CRD).read_text())
    found: dict[str, Any] = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return _strict(found)


def _strict(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _strict(value) for key, value in schema.items()}
    if made.get("type") == "object" and isinstance(made.get("properties"), dict):
        made.setdefault("additionalProperties", False)
    return made


@pytest.mark.parametrize(
    "autoscaling",
    [
        {"minReplicas": 0, "maxReplicas": 3},
        {"minReplicas": 1, "maxReplicas": 8, "schedule": [SCHEDULE], "scaleUpSeconds": 30},
    ],
    ids=["to zero", "with a schedule"],
)
def test_keda_takes_the_scaled_object(schema: dict[str, Any], autoscaling: dict[str, Any]) -> None:
    objects = planned(autoscaling={"engine": "keda"} | autoscaling)
    made = objects["ScaledObject", "service"]
    jsonschema.validate(made, schema)
    broken = made | {"spec": made["spec"] | {"pollInterval": 5}}
    with pytest.raises(jsonschema.ValidationError, match="pollInterval"):
        jsonschema.validate(broken, schema)
