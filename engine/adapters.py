"""The adapters that requests may name."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from pagelet.engine.model_config import ModelConfig
from pagelet.engine.source import resolve_adapter
from pagelet.engine.weights.adapter_config import read_adapter
from pagelet.protocol.config import LoraOptions
from pagelet.protocol.errors import ModelSourceError
from pagelet.protocol.lora import LoraAdapter, adapter_name_fault


class AdapterRegistry(Mapping[str, LoraAdapter]):
    """Checked adapters by name. Requests carry the adapter itself, so that one that is removed or
    replaced stays what it was for those that run."""

    def __init__(self, config: ModelConfig, options: LoraOptions) -> None:
        self.options = options
        self._config = config
        self._adapters: dict[str, LoraAdapter] = {}

    def __getitem__(self, name: str) -> LoraAdapter:
        return self._adapters[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._adapters)

    def __len__(self) -> int:
        return len(self._adapters)

    def read(self, name: str, folder: str) -> LoraAdapter:
        """An adapter whose files fit the model, not known by its name yet. Reads all of them: call
        it in a thread. Raises ModelSourceError."""
        if (fault := adapter_name_fault(name)) is not None:
            raise ModelSourceError(f"the adapter's name {name[:40]!r} {fault}")
        return read_adapter(name, Path(folder), self._config, self.options.max_rank)

    def find(
        self, name: str, source: str, progress: Callable[[int, int], None] | None = None
    ) -> LoraAdapter:
        """As `read`, for a source as `resolve_adapter` takes it: it may be downloaded first."""
        return self.read(name, str(resolve_adapter(source, progress)))

    def add(self, adapter: LoraAdapter) -> None:
        """From now on requests may name it, in place of another of its name."""
        self._adapters[adapter.name] = adapter

    def remove(self, name: str) -> None:
        """Requests may name it no longer."""
        del self._adapters[name]
