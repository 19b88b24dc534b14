"""`spec.model`: which model, and how a replica gets it."""

from typing import Annotated, Final

from msgspec import Meta, field

from pagelet.protocol.inference_service.parts import Entry, Name, Part, Quantity

MOST_TEMPLATE_CHARACTERS: Final = 60_000
"""At four bytes each it is within what the annotations of a pod may have."""
Uri = Annotated[str, Meta(min_length=1, max_length=512)]
Revision = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[^\s@]+$")]
ModelName = Annotated[str, Meta(min_length=1, max_length=256, pattern=r"\S")]
AdapterName = Annotated[
    str, Meta(min_length=1, max_length=256, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]*$")
]


class CredentialsSecret(Part, kw_only=True):
    """A Secret of the same namespace, which the loader alone reads."""

    name: Name
    """The Secret. For `s3://` its entries are AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and, if
    there is one, AWS_SESSION_TOKEN."""
    key: Entry | None = None
    """`hf://`: the entry that is the token."""


class S3Spec(Part, kw_only=True):
    """Where the bucket of an `s3://` model is."""

    endpoint: Annotated[str, Meta(max_length=512, pattern=r"^https?://[^/\s]+/?$")] | None = None
    """URL of the store. Default: Amazon's."""
    region: Annotated[str, Meta(max_length=64, pattern=r"^[a-z0-9-]+$")] = "us-east-1"
    """The bucket's."""
    anonymous: bool = False
    """The bucket is public: nothing is signed."""


class ModelStorage(Part, kw_only=True):
    """Where a downloaded model is kept. Without it, in a volume of each pod's own, which is filled
    again whenever the pod is moved."""

    size_limit: Quantity | None = None
    """Most room that a pod's own volume takes on its node. Default: no limit of its own."""
    claim: Name | None = None
    """A PersistentVolumeClaim that all replicas share (ReadWriteMany for more than one node):
    downloaded once."""
    host_path: Annotated[str, Meta(max_length=512, pattern=r"^/.+")] | None = None
    """A folder of the node, shared by the replicas on it. It needs a namespace whose pod security
    level is `privileged`, and a folder that user 65532 may write."""


class ConfigMapKey(Part, kw_only=True):
    """One entry of a ConfigMap of the same namespace."""

    name: Name
    """The ConfigMap. On one machine: one of the same file."""
    key: Entry
    """The entry in it."""


class ChatTemplate(Part, kw_only=True):
    """A chat template in Jinja, in place of the model's own."""

    inline: Annotated[str, Meta(min_length=1, max_length=MOST_TEMPLATE_CHARACTERS)] | None = None
    """Its text."""
    config_map: ConfigMapKey | None = None
    """Where its text is. Replicas read it when they start: a change of the ConfigMap alone replaces
    none, so give another template another name."""


class AdapterSpec(Part, kw_only=True):
    """A LoRA adapter of the model, as PEFT saves it."""

    name: AdapterName
    """By which requests ask for it, in place of the model. It is none of the model's names."""
    uri: Uri
    """`hf://ORG/NAME`, `s3://BUCKET/FOLDER` (downloaded and checked before the replica starts),
    `pvc://CLAIM/PATH` or `file:///PATH`: the folder of its `adapter_config.json`."""
    revision: Revision | None = None
    """Branch, tag or commit of an `hf://` adapter. Default: `main`."""


class ModelSpec(Part, kw_only=True):
    """Which model."""

    uri: Uri
    """`hf://ORG/NAME`, `hf://ORG/NAME/FILE.gguf`, `s3://BUCKET/FOLDER` or `s3://BUCKET/FILE.gguf`
    (downloaded and checked before the replica starts), `pvc://CLAIM/PATH`, `file:///PATH` (in the
    image, or in a volume of `podTemplate`), or `package://NAME` (a Python package of the image)."""
    revision: Revision | None = None
    """Branch, tag or commit of an `hf://` model. Default: `main`."""
    served_names: Annotated[list[ModelName], Meta(max_length=16)] = field(default_factory=list)
    """Names that requests may use; the first is the one in answers. Default: the name of the
    InferenceService."""
    tokenizer: Uri | None = None
    """Where the tokenizer comes from, if not from the model: the forms of `uri`, but for `pvc://`
    another path of the model's own claim."""
    chat_template: ChatTemplate | None = None
    """Default: the model's own."""
    adapters: Annotated[list[AdapterSpec], Meta(max_length=64)] = field(default_factory=list)
    """LoRA adapters, each of which clients see as a model of its own. How many are computed and
    kept at once: `engine.lora`."""
    credentials_secret: CredentialsSecret | None = None
    """For `hf://` models and adapters that are private or ask for consent, and buckets that are not
    public."""
    s3: S3Spec | None = None
    """Where the buckets of `s3://` models and adapters are. Default: at Amazon, in us-east-1."""
    storage: ModelStorage | None = None
    """Where what comes from `hf://` and `s3://` is kept once it is downloaded."""

    @property
    def uris(self) -> list[str]:
        """Of all that it is made of."""
        tokenizer = [] if self.tokenizer is None else [self.tokenizer]
        return [self.uri, *tokenizer, *(adapter.uri for adapter in self.adapters)]
