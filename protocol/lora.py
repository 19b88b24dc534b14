"""A low-rank adapter of the model (LoRA), as requests name it to the engine core."""

import msgspec


class LoraAdapter(msgspec.Struct, array_like=True, frozen=True):
    """Where an adapter's checked files are. Two of one digest are the same."""

    name: str
    path: str
    """The folder of its `adapter_config.json`."""
    digest: str
    """Of its files: what it computes, and so which cached blocks are its own."""
