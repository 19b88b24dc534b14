"""Models of the Hugging Face hub: `hf://org/name[/file.gguf][@revision]`."""

import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pagelet.protocol.errors import ModelSourceError
from pagelet.protocol.lora import ADAPTER_CONFIG, ADAPTER_WEIGHTS

if TYPE_CHECKING:
    from tqdm import tqdm

_SOURCE: Final = re.compile(
    r"hf://(?P<repo>[\w.-]+/[\w.-]+)(?P<file>/[^@]+\.gguf)?(@(?P<revision>.+))?"
)
_FORM: Final = "hf://ORG/NAME or hf://ORG/NAME/FILE.gguf, and @REVISION behind it"
TEXT_FILES: Final = [
    "config.json",
    "modules.json",
    "1_Pooling/config.json",
    "generation_config.json",
    "chat_template.*",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
]
WEIGHT_FILES: Final = ["*.safetensors", "*.safetensors.index.json"]
# Of a repository's root only, but for sentence-transformers' pooling; `consolidated` is Mistral's
# second copy of the same weights.
_IGNORED: Final = ["[!1]*/*", "1[!_]*/*", "consolidated*"]


def download(
    source: str, progress: Callable[[int, int], None] | None, *, weights: bool
) -> tuple[Path, str]:
    """The cached folder (or GGUF file) of a hub source, downloaded where it is not complete, and
    the repository's name. After an interruption, files that are complete are not downloaded again.

    `progress` gets bytes done and bytes known of so far. Raises ModelSourceError.
    """
    match = _SOURCE.fullmatch(source)
    if match is None:
        raise ModelSourceError(f"{source}: expected {_FORM}")
    repo, file, revision = match["repo"], (match["file"] or "").lstrip("/"), match["revision"]
    if not file and (revision or "").endswith(".gguf"):
        raise ModelSourceError(f"{source}: the revision comes last: {_FORM}")
    if file:
        patterns, ignored = [file], []
    else:
        patterns, ignored = TEXT_FILES + (WEIGHT_FILES if weights else []), _IGNORED
    path = _snapshot(source, repo, revision, patterns, ignored, progress) / file
    if file and not path.exists():
        raise ModelSourceError(f"{source}: {repo} has no file {file}")
    if not file and weights and not any(path.glob("*.safetensors")):
        raise ModelSourceError(
            f"{source}: {repo} has no .safetensors files; if it has GGUF files, name one: "
            f"hf://{repo}/FILE.gguf"
        )
    return path, repo


def download_adapter(source: str, progress: Callable[[int, int], None] | None) -> Path:
    """As `download`, for the two files of a LoRA adapter."""
    match = _SOURCE.fullmatch(source)
    if match is None or match["file"]:
        raise ModelSourceError(f"{source}: expected hf://ORG/NAME or hf://ORG/NAME@REVISION")
    files = [ADAPTER_CONFIG, ADAPTER_WEIGHTS]
    folder = _snapshot(source, match["repo"], match["revision"], files, [], progress)
    if missing := [name for name in files if not (folder / name).exists()]:
        raise ModelSourceError(
            f"{source}: {match['repo']} has no {' and no '.join(missing)}; give an adapter as PEFT "
            "saves it, with safetensors"
        )
    return folder


def _snapshot(
    source: str,
    repo: str,
    revision: str | None,
    patterns: list[str],
    ignored: list[str],
    progress: Callable[[int, int], None] | None,
) -> Path:
    # Imported here: it takes a third of a second, and most sources don't need it.
    import huggingface_hub

    try:
        folder = huggingface_hub.snapshot_download(
            repo,
            revision=revision,
            allow_patterns=patterns,
            ignore_patterns=ignored,
            tqdm_class=_bar_class(progress),
        )
    except Exception as error:  # the hub's client lets its HTTP library's errors through
        raise _explained(error, source) from error
    return Path(folder)


def _bar_class(progress: Callable[[int, int], None] | None) -> type["tqdm"]:
    """A progress bar that draws nothing and passes the hub client's byte counts on."""
    from tqdm import tqdm

    lock = threading.Lock()
    reported = 0

    class Bar(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._counts_bytes = kwargs.get("unit") == "B"
            super().__init__(*args, **(kwargs | {"disable": True}))

        def update(self, n: float | None = 1) -> None:
            nonlocal reported
            if progress is None or not self._counts_bytes:
                return
            with lock:  # files are downloaded by several threads, and counted by two bars
                self.n += n or 0
                if self.n > reported:
                    reported = int(self.n)
                    progress(reported, max(reported, int(self.total or 0)))

    return Bar


def _explained(error: Exception, source: str) -> ModelSourceError:
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return ModelSourceError(
            f"{source}: access is restricted; accept the model's terms on its page, then set "
            "HF_TOKEN to a token of that account"
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return ModelSourceError(
            f"{source}: no such repository, or a private one; check the spelling, and for a "
            "private one set HF_TOKEN to a token that may read it"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return ModelSourceError(f"{source}: the repository has no such branch, tag or commit")
    if isinstance(error, errors.LocalEntryNotFoundError):
        offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
        advice = (
            "unset HF_HUB_OFFLINE to download it"
            if offline
            else "check the connection (HF_ENDPOINT chooses a mirror), or give a local folder"
        )
        return ModelSourceError(
            f"{source}: not complete in the cache, and the hub can't be reached; {advice}"
        )
    if isinstance(error, errors.HfHubHTTPError) and error.response.status_code in (401, 403):
        return ModelSourceError(
            f"{source}: the hub refuses access; set HF_TOKEN to a token that may read it"
        )
    return ModelSourceError(
        f"{source}: the download failed: {error}; run it again, files that are complete are kept"
    )
