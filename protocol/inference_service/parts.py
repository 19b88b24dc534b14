"""What the parts of an InferenceService share: their base, and types of fields.

JSON names are in camelCase. A field of None was left out; what it then means stands in its
description.
"""

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

QUANTITY_PATTERN: Final = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"
Quantity = int | Annotated[str, Meta(pattern=QUANTITY_PATTERN, max_length=32)]
"""An amount as Kubernetes writes it: `4`, `500m`, `8Gi`."""
IntOrPercent = (
    Annotated[int, Meta(le=2**31 - 1)] | Annotated[str, Meta(pattern=r"^[0-9]+%?$", max_length=8)]
)
"""A count, or a share such as `25%`."""
Name = Annotated[
    str, Meta(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
]
"""The name of an object of the same namespace."""
Entry = Annotated[str, Meta(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")]
"""The name of an entry of a Secret or ConfigMap."""
NonNegativeInt = Annotated[int, Meta(ge=0)]
MOST_REPLICAS: Final = 1000
"""Of one kind: more is a slip of the finger, which a cluster would try to follow."""
ReplicaCount = Annotated[int, Meta(ge=0, le=MOST_REPLICAS)]
Image = Annotated[str, Meta(min_length=1, max_length=512)]
FreeForm = dict[str, Any]
"""An object of Kubernetes' own, which its API server checks."""
Strings = dict[str, str]


class Part(
    msgspec.Struct,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    rename="camel",
):
    """A part of an InferenceService."""


class SecretKey(Part, kw_only=True):
    """One entry of a Secret of the same namespace."""

    name: Name
    """The Secret."""
    key: Entry
    """The entry in it."""
