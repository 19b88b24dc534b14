"""Where a model comes from: a source as the user writes it, resolved to files on this machine."""

import dataclasses
import json
import os
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal

from pagelet.engine.weights import hub, object_store, package
from pagelet.protocol.config import EngineOptions
from pagelet.protocol.errors import ModelSourceError

__all__ = [
    "ModelFiles",
    "ModelSourceError",
    "resolve",
    "resolve_adapter",
    "resolve_model",
    "resolve_tokenizer",
]

_FORMS: Final = (
    "hf://ORG/NAME[/FILE.gguf][@REVISION], s3://BUCKET/PATH, a folder with config.json and "
    ".safetensors files, a .gguf file, or package://NAME"
)
_ADAPTER: Final = "hf://ORG/NAME[@REVISION], s3://BUCKET/FOLDER, or PEFT's folder"
_INDEX: Final = "model.safetensors.index.json"


@dataclasses.dataclass(frozen=True)
class ModelFiles:
    """A model's files."""

    path: Path
    """The folder, or the `.gguf` file."""
    format: Literal["safetensors", "gguf"]
    name: str
    """The name to serve it under, unless the user gives another."""

    def config(self) -> dict[str, Any]:
        """`config.json`; empty for GGUF."""
        return self.json_object("config.json") or {}

    def generation_config(self) -> dict[str, Any] | None:
        """`generation_config.json`, or None."""
        return self.json_object("generation_config.json")

    def tokenizer_config(self) -> dict[str, Any]:
        """`tokenizer_config.json`; empty if there is none."""
        return self.json_object("tokenizer_config.json") or {}

    def tokenizer_json(self) -> Path | None:
        """The path of `tokenizer.json`; None for GGUF, or if there is none."""
        path = self.path / "tokenizer.json"
        return path if path.is_file() else None

    def chat_template(self) -> str | None:
        """From `chat_template.jinja`, `chat_template.json` or `tokenizer_config.json`, in this
        order; of several named templates the one named `default`. None for GGUF, whose template
        is in its metadata."""
        if (path := self.path / "chat_template.jinja").is_file():
            return _read(path)
        for config in (self.json_object("chat_template.json") or {}, self.tokenizer_config()):
            template = config.get("chat_template")
            if isinstance(template, list):
                named = {t.get("name"): t.get("template") for t in template if isinstance(t, dict)}
                template = named.get("default")
            if isinstance(template, str):
                return template
        return None

    def has_weights(self) -> bool:
        """False where only the configuration or the tokenizer was asked for."""
        return (
            self.format == "gguf" or (self.path / _INDEX).is_file() or bool(_safetensors(self.path))
        )

    def weight_files(self) -> list[Path]:
        """The `.gguf` file, or the safetensors shards; ModelSourceError names what is missing."""
        if self.format == "gguf":
            return [self.path]
        if index := self.json_object(_INDEX):
            weight_map = index.get("weight_map")
            if not isinstance(weight_map, dict):
                raise ModelSourceError(f"{self.path / _INDEX}: has no `weight_map`")
            names = sorted({str(name) for name in weight_map.values()})
            for name in names:
                if name.startswith("/") or ".." in name.split("/"):
                    raise ModelSourceError(f"{self.path / _INDEX}: {name!r} is not in its folder")
            files = [self.path / name for name in names]
        elif (single := self.path / "model.safetensors").is_file():
            files = [single]
        else:
            files = sorted(_safetensors(self.path))
        missing = [file.name for file in files if not file.is_file()]
        if missing:
            raise ModelSourceError(
                f"{self.path}: {len(missing)} of {len(files)} shards are missing: "
                f"{', '.join(missing[:3])}; download the model again"
            )
        if not files:
            raise ModelSourceError(f"{self.path}: has no .safetensors files")
        return files

    def json_object(self, name: str) -> dict[str, Any] | None:
        """The object that a file of the folder holds, or None. Raises ModelSourceError."""
        path = self.path / name
        if not path.is_file():
            return None
        try:
            content = json.loads(_read(path))
        except (ValueError, RecursionError) as error:
            raise ModelSourceError(f"{path}: is not JSON: {error}; download it again") from error
        if not isinstance(content, dict):
            raise ModelSourceError(f"{path}: holds no JSON object")
        return content


def resolve(
    source: str,
    progress: Callable[[int, int], None] | None = None,
    *,
    weights: bool = True,
) -> ModelFiles:
    """Finds a model's files, downloading or joining them first where the source asks for that.

    `progress` gets bytes done and bytes in all. With `weights=False` the configuration and the
    tokenizer are enough: for a tokenizer's own source, and for random weights. Raises
    ModelSourceError with what to change.
    """
    if source.startswith("hf://"):
        path, name = hub.download(source, progress, weights=weights)
        return _files(path, name, source, weights=weights)
    if source.startswith("s3://"):
        path, name = object_store.download(source, progress, weights=weights)
        return _files(path, name, source, weights=weights)
    if source.startswith("package://"):
        path, name = package.find(source, progress)
        return _files(path, name, source, weights=weights)
    if source.startswith("file://"):
        path = _local_path(source)
    elif "://" in source:
        raise ModelSourceError(f"{source}: unknown kind of source; give {_FORMS}")
    else:
        path = Path(source)
    try:
        path = path.expanduser()
        exists = bool(source) and path.exists()
    except (OSError, RuntimeError) as error:  # a name too long, a folder not ours, no such user
        raise ModelSourceError(f"{source}: cannot be read: {error}") from error
    if not exists:
        hint = (
            f"for a hub model write hf://{source}" if _looks_like_hub(source) else f"give {_FORMS}"
        )
        raise ModelSourceError(f"{source or 'empty source'}: no such file or folder; {hint}")
    # Not resolved: in caches the file behind a symbolic link is named by its hash.
    absolute = Path(os.path.abspath(path))
    name = absolute.stem if absolute.suffix == ".gguf" else absolute.name
    return _files(path, name, source, weights=weights)


def resolve_adapter(source: str, progress: Callable[[int, int], None] | None = None) -> Path:
    """The folder of a LoRA adapter, downloaded where that is asked for: `hf://ORG/NAME[@REVISION]`,
    `s3://BUCKET/FOLDER`, `file:///PATH` or a path. Raises ModelSourceError."""
    if source.startswith("hf://"):
        return hub.download_adapter(source, progress)
    if source.startswith("s3://"):
        return object_store.download_adapter(source, progress)
    if source.startswith("file://"):
        return _local_path(source)
    if "://" in source:
        raise ModelSourceError(f"{source}: unknown kind of source of an adapter; give {_ADAPTER}")
    return Path(source)


def resolve_model(
    options: EngineOptions, progress: Callable[[int, int], None] | None = None
) -> ModelFiles:
    """The files of an engine's model, as `resolve`. Weights need not be there, and are not
    downloaded, if they are random or the runner is simulated."""
    weights = options.runner == "model" and options.model.load_format == "auto"
    return resolve(options.model.source, progress, weights=weights)


def resolve_tokenizer(options: EngineOptions, model: ModelFiles) -> ModelFiles:
    """The files that an engine's tokenizer comes from: the model's, or those of a source of its
    own, as `resolve`."""
    source = options.model.tokenizer
    return model if source is None else resolve(source, weights=False)


def _local_path(source: str) -> Path:
    """Of `file:///PATH`."""
    url = urllib.parse.urlsplit(source)
    if url.netloc not in ("", "localhost"):
        raise ModelSourceError(f"{source}: write a local path with three slashes: file:///PATH")
    return Path(urllib.parse.unquote(url.path))


def _looks_like_hub(source: str) -> bool:
    return source.count("/") == 1 and all(source.split("/")) and source[0] not in ".~"


def _files(path: Path, name: str, source: str, *, weights: bool) -> ModelFiles:
    """Checks that there is a model."""
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelSourceError(
                f"{source}: is not a .gguf file; for safetensors give the folder that holds them"
            )
        return ModelFiles(path, "gguf", name)
    files = ModelFiles(path, "safetensors", name)
    has_config = (path / "config.json").is_file()
    if has_config and files.has_weights():
        if weights:
            files.weight_files()  # raises for missing shards now, not in the middle of loading
        return files
    if not weights and any(path.glob("tokenizer*")):
        return files
    ggufs = sorted(path.glob("*.gguf"))
    if len(ggufs) == 1:
        return ModelFiles(ggufs[0], "gguf", name)
    if not weights and has_config:
        return files
    raise ModelSourceError(f"{source}: {_what_is_missing(path, ggufs, has_config)}")


def _what_is_missing(path: Path, ggufs: list[Path], has_config: bool) -> str:
    if ggufs:
        return f"has {len(ggufs)} .gguf files; give one of them, such as {ggufs[0]}"
    if _safetensors(path):
        return "has .safetensors files but no config.json"
    if any(path.glob("*.bin")) or any(path.glob("*.pth")):
        return "has only pickled weights, which can run code when loaded; convert to safetensors"
    if has_config:
        return "has config.json but no .safetensors files"
    return "has no model: neither config.json with .safetensors files nor one .gguf file"


def _safetensors(folder: Path) -> list[Path]:
    """Shards; without Mistral's second copy of its weights."""
    return [
        path for path in folder.glob("*.safetensors") if not path.name.startswith("consolidated")
    ]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelSourceError(f"{path}: cannot be read: {error}") from error
