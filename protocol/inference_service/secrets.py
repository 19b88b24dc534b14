"""Kubernetes Secrets, as far as services name them."""

import base64
from collections.abc import Mapping
from typing import Any


def read_secret(body: Mapping[str, Any]) -> dict[str, bytes]:
    """The entries of a Secret; those of `stringData` come before those of `data`, as in the API
    server. Raises ValueError for data that is not base64."""
    data = {
        key: base64.b64decode(value, validate=True)
        for key, value in (body.get("data") or {}).items()
    }
    text = {key: value.encode() for key, value in (body.get("stringData") or {}).items()}
    return data | text
