"""What the kind is called, in Kubernetes and in YAML."""

from typing import Final

GROUP: Final = "pagelet.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "InferenceService"
PLURAL: Final = "inferenceservices"
