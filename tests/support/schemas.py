"""A hundred JSON schemas, over every keyword that can be enforced."""

import json
from pathlib import Path
from typing import Any

_FILE = Path(__file__).parent.parent / "data" / "json_schemas.jsonl"


def load_schemas() -> dict[str, Any]:
    """By name."""
    lines = _FILE.read_text(encoding="utf-8").splitlines()
    return {entry["name"]: entry["schema"] for entry in map(json.loads, lines)}
