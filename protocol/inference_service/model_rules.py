"""Rules of `spec.model`."""

import re
from typing import Any, Final, TypeVar

from pagelet.protocol.inference_service.model import (
    AdapterSpec,
    ChatTemplate,
    ModelSpec,
    ModelStorage,
)
from pagelet.protocol.inference_service.rule import Rule, mebibyte_at_least

M = TypeVar("M", ModelSpec, AdapterSpec)

_URI: Final = (
    r"^(hf://[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+(/[^@]+[.]gguf)?"
    r"|s3://[a-z0-9][a-z0-9.-]+/([^@]*[^@/])/?"
    r"|pvc://[a-z0-9][a-z0-9.-]*(/.+)?|file:///.+"
    r"|package://[A-Za-z0-9][A-Za-z0-9._-]*(/[^/]+[.]gguf)?)$"
)
_ADAPTER_URI: Final = (
    r"^(hf://[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+|s3://[a-z0-9][a-z0-9.-]+/([^@]*[^@/])/?"
    r"|pvc://[a-z0-9][a-z0-9.-]*(/.+)?|file:///.+)$"
)
_URI_FORMS: Final = (
    "hf://ORG/NAME, hf://ORG/NAME/FILE.gguf, s3://BUCKET/FOLDER, s3://BUCKET/FILE.gguf, "
    "pvc://CLAIM/PATH, file:///PATH or package://NAME"
)


def _uses(model: ModelSpec, scheme: str) -> bool:
    """Whether something of it is downloaded from there."""
    return any(uri.startswith(f"{scheme}://") for uri in model.uris)


def _uses_cel(scheme: str) -> str:
    tokenizer = f"has(self.tokenizer) && self.tokenizer.startsWith('{scheme}://')"
    adapters = f"has(self.adapters) && self.adapters.exists(a, a.uri.startsWith('{scheme}://'))"
    return f"(self.uri.startsWith('{scheme}://') || {tokenizer} || {adapters})"


def _claim(uri: str) -> str:
    return uri.removeprefix("pvc://").partition("/")[0]


def _names(adapters: list[AdapterSpec]) -> set[str]:
    return {adapter.name for adapter in adapters}


def _revision_of_hub(part: type[M], kind: str) -> Rule[M]:
    """Only what the Hub holds has revisions."""
    return Rule(
        part=part,
        field="revision",
        holds="!has(self.revision) || self.uri.startsWith('hf://')",
        message=f"only hf:// {kind} have revisions: leave it out",
        values={},
        check=lambda source: source.revision is None or source.uri.startswith("hf://"),
    )


MODEL_RULES: Final[list[Rule[Any]]] = [
    Rule(
        part=ModelSpec,
        field="uri",
        holds=f"self.uri.matches('{_URI}')",
        message="{uri} is no model that can be loaded: write "
        + _URI_FORMS
        + ". A revision goes to the field of that name",
        values={"uri": ("self.uri", lambda m: m.uri)},
        check=lambda m: re.fullmatch(_URI, m.uri) is not None,
    ),
    Rule(
        part=ModelSpec,
        field="tokenizer",
        holds=f"!has(self.tokenizer) || self.tokenizer.matches('{_URI}')",
        message="{uri} is no tokenizer that can be loaded: write " + _URI_FORMS,
        values={"uri": ("self.tokenizer", lambda m: m.tokenizer)},
        check=lambda m: m.tokenizer is None or re.fullmatch(_URI, m.tokenizer) is not None,
    ),
    Rule(
        part=ModelSpec,
        field="tokenizer",
        holds="!has(self.tokenizer) || !self.tokenizer.startsWith('pvc://') || "
        "self.uri.startsWith('pvc://') && self.tokenizer.split('/')[2] == self.uri.split('/')[2]",
        message="only a model on a claim may have its tokenizer there, and on the same claim: copy "
        "the tokenizer beside the model",
        values={},
        check=lambda m: (
            not (m.tokenizer or "").startswith("pvc://")
            or (m.uri.startswith("pvc://") and _claim(m.tokenizer or "") == _claim(m.uri))
        ),
    ),
    _revision_of_hub(ModelSpec, "models"),
    Rule(
        part=ModelSpec,
        field="credentialsSecret",
        holds=f"!has(self.credentialsSecret) || {_uses_cel('hf')} || "
        f"{_uses_cel('s3')} && !(has(self.s3) && self.s3.anonymous)",
        message="only hf:// models, and s3:// models of buckets that are not public, are "
        "downloaded with credentials: leave it out",
        values={},
        check=lambda m: (
            m.credentials_secret is None
            or _uses(m, "hf")
            or (_uses(m, "s3") and not (m.s3 is not None and m.s3.anonymous))
        ),
    ),
    Rule(
        part=ModelSpec,
        field="credentialsSecret.key",
        holds=f"!has(self.credentialsSecret) || ({_uses_cel('hf')} ? "
        "has(self.credentialsSecret.key) : !has(self.credentialsSecret.key) || "
        f"!{_uses_cel('s3')})",
        message="is the entry with the token of hf:// models: give it for them, and leave it out "
        "for s3:// models, whose entries are AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        values={},
        check=lambda m: (
            m.credentials_secret is None
            or (m.credentials_secret.key is not None) == _uses(m, "hf")
            or not (_uses(m, "hf") or _uses(m, "s3"))
        ),
    ),
    Rule(
        part=ModelSpec,
        field="s3",
        holds=f"!has(self.s3) || {_uses_cel('s3')}",
        message="only s3:// models are in a bucket: leave it out",
        values={},
        check=lambda m: m.s3 is None or _uses(m, "s3"),
    ),
    Rule(
        part=ModelSpec,
        field="storage",
        holds=f"!has(self.storage) || {_uses_cel('hf')} || {_uses_cel('s3')}",
        message="only hf:// and s3:// models are downloaded: leave it out",
        values={},
        check=lambda m: m.storage is None or _uses(m, "hf") or _uses(m, "s3"),
    ),
    mebibyte_at_least(ModelStorage, "sizeLimit", "20Gi", lambda storage: storage.size_limit),
    Rule(
        part=ModelStorage,
        field="",
        holds="(has(self.sizeLimit) ? 1 : 0) + (has(self.claim) ? 1 : 0) + "
        "(has(self.hostPath) ? 1 : 0) <= 1",
        message="sizeLimit (of a volume for each pod), claim and hostPath are three different "
        "places: keep one of them",
        values={},
        check=lambda s: [s.size_limit, s.claim, s.host_path].count(None) >= 2,
    ),
    Rule(
        part=ModelSpec,
        field="adapters",
        holds="!has(self.adapters) || "
        "self.adapters.all(a, self.adapters.exists_one(b, b.name == a.name))",
        message="have the same name twice: requests could not tell them apart",
        values={},
        check=lambda m: len(_names(m.adapters)) == len(m.adapters),
    ),
    Rule(
        part=ModelSpec,
        field="adapters",
        holds="!has(self.adapters) || !has(self.servedNames) || "
        "!self.adapters.exists(a, a.name in self.servedNames)",
        message="have a name that is the model's own, by servedNames: change one of the two",
        values={},
        check=lambda m: not _names(m.adapters) & set(m.served_names),
    ),
    Rule(
        part=AdapterSpec,
        field="uri",
        holds=f"self.uri.matches('{_ADAPTER_URI}')",
        message="{uri} is no adapter that can be loaded: write hf://ORG/NAME, s3://BUCKET/FOLDER, "
        "pvc://CLAIM/PATH or file:///PATH. A revision goes to the field of that name",
        values={"uri": ("self.uri", lambda a: a.uri)},
        check=lambda a: re.fullmatch(_ADAPTER_URI, a.uri) is not None,
    ),
    _revision_of_hub(AdapterSpec, "adapters"),
    Rule(
        part=ChatTemplate,
        field="",
        holds="has(self.inline) != has(self.configMap)",
        message="has its text inline or in a configMap: give one of the two",
        values={},
        check=lambda c: (c.inline is None) != (c.config_map is None),
    ),
]
