"""The list of models: `GET /v1/models`."""

from typing import Literal

from pagelet.protocol.openai.fields import ResponseBody


class Model(ResponseBody):
    """A name that requests may use. `root` is the model behind it; `parent` is for adapters."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "pagelet"
    root: str
    parent: str | None = None
    max_model_len: int | None
    """None where the server does not know it, as a router whose replicas are at zero."""


class ModelList(ResponseBody):
    """All names."""

    object: Literal["list"] = "list"
    data: list[Model]
