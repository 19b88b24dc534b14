"""A low-rank adapter of the model (LoRA), as requests name it to the engine core."""

from typing import Final

import msgspec

ADAPTER_CONFIG: Final = "adapter_config.json"
ADAPTER_WEIGHTS: Final = "adapter_model.safetensors"
"""The two files of an adapter, as PEFT names them."""
_LONGEST_NAME: Final = 256


class LoraAdapter(msgspec.Struct, array_like=True, frozen=True):
    """Where an adapter's checked files are. Two of one digest are the same."""

    name: str
    path: str
    """The folder of its `adapter_config.json`."""
    digest: str
    """Of its files: what it computes, and so which cached blocks are its own."""


def adapter_name_fault(name: str) -> str | None:
    """What is wrong with an adapter's name, which stands in lists, logs and error messages; None if
    nothing is."""
    if not name:
        return "must not be empty"
    if len(name) > _LONGEST_NAME:
        return f"has {len(name)} characters; give at most {_LONGEST_NAME}"
    if not name.isprintable():
        return "must be one line of printable characters"
    return None
