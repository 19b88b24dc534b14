"""Loading and unloading adapters: `POST /v1/load_lora_adapter` and `/v1/unload_lora_adapter`, with
shapes as in vLLM."""

from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from pagelet.protocol.lora import adapter_name_fault
from pagelet.protocol.openai.fields import RequestBody, null_means


def _usable(name: str) -> str:
    if (fault := adapter_name_fault(name)) is not None:
        raise PydanticCustomError("invalid_value", "{message}", {"message": fault})
    return name


class LoadAdapterRequest(RequestBody):
    """The adapter in a folder of the server's machine gets a name."""

    lora_name: Annotated[str, AfterValidator(_usable)]
    lora_path: Annotated[str, Field(min_length=1)]
    load_inplace: Annotated[bool, null_means(False)] = False
    """Whether it may take the place of another of that name."""


class UnloadAdapterRequest(RequestBody):
    """No request may name it from now on."""

    lora_name: Annotated[str, Field(min_length=1)]
