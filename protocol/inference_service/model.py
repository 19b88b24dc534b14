"""`spec.model`: which model, and how a replica gets it."""

from typing import Annotated

from msgspec import Meta, field

from pagelet.protocol.inference_service.parts import Name, Part, Quantity, SecretEntry

Uri = Annotated[str, Meta(min_length=1, max_length=512)]
ModelName = Annotated[str, Meta(min_length=1, max_length=256, pattern=r"\S")]


class CredentialsSecret(Part, kw_only=True):
    """A Secret of the same namespace, which the loader alone reads."""

    name: Name
    """The Secret. For `s3://` its entries are AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and, if
    there is one, AWS_SESSION_TOKEN."""
    key: SecretEntry | None = None
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


class ModelSpec(Part, kw_only=True):
    """Which model."""

    uri: Uri
    """`hf://ORG/NAME`, `hf://ORG/NAME/FILE.gguf`, `s3://BUCKET/FOLDER` or `s3://BUCKET/FILE.gguf`
    (downloaded and checked before the replica starts), `pvc://CLAIM/PATH`, `file:///PATH` (in the
    image, or in a volume of `podTemplate`), or `package://NAME` (a Python package of the image)."""
    revision: Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[^\s@]+$")] | None = None
    """Branch, tag or commit of an `hf://` model. Default: `main`."""
    served_names: Annotated[list[ModelName], Meta(max_length=16)] = field(default_factory=list)
    """Names that requests may use; the first is the one in answers. Default: the name of the
    InferenceService."""
    tokenizer: Uri | None = None
    """Where the tokenizer comes from, if not from the model: the forms of `uri`, but for `pvc://`
    another path of the model's own claim."""
    credentials_secret: CredentialsSecret | None = None
    """For `hf://` models that are private or ask for consent, and buckets that are not public."""
    s3: S3Spec | None = None
    """Where the bucket of an `s3://` model is. Default: at Amazon, in us-east-1."""
    storage: ModelStorage | None = None
    """Where an `hf://` or `s3://` model is kept once it is downloaded."""
