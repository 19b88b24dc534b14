"""Which names clients may ask for, and who answers to them."""

import dataclasses
from collections.abc import Collection, Sequence

from pagelet.protocol.openai.models import ModelList
from pagelet.protocol.router import ModelRoute, Pool
from pagelet.router.tenants.tenant import Tenant


@dataclasses.dataclass(frozen=True, slots=True)
class PoolRef:
    """One pool of the configuration: `config.models[route].pools[pool]`."""

    route: int
    pool: int


@dataclasses.dataclass(frozen=True, slots=True)
class ServedModel:
    """What a name means."""

    asked: str
    """As the client wrote it."""
    name: str
    """As it is called in metrics and logs: the route's name, or the first that its replicas say."""
    route: int


class ModelTable:
    """All names of a router; its replicas may come, go and bring names with them."""

    def __init__(self, routes: Sequence[ModelRoute]) -> None:
        raise NotImplementedError

    def learn(
        self, pool: PoolRef, replica_id: str, names: Sequence[str], max_model_len: int | None
    ) -> None:
        """Takes in what a replica says that it serves."""
        raise NotImplementedError

    def forget(self, pool: PoolRef, replica_id: str) -> None:
        """A replica is gone. The names that it brought stay known: its service may be at zero."""
        raise NotImplementedError

    def resolve(self, name: str, tenant: Tenant) -> ServedModel:
        """Raises 404 that lists the names, or 403 if the tenant may not use it."""
        raise NotImplementedError

    def choose_pool(
        self, model: ServedModel, key: bytes, available: Collection[PoolRef]
    ) -> PoolRef:
        """The pool of a request. `key` is the same for all requests of a conversation, which so
        stays on one revision; `available` are the pools with a replica that is ready."""
        raise NotImplementedError

    def upstream_name(self, model: ServedModel, pool: PoolRef) -> str:
        """The name by which the pool's replicas know the model: to be put into the body if it is
        not `model.asked`."""
        raise NotImplementedError

    def list_models(self, tenant: Tenant) -> ModelList:
        """All names that a tenant may use."""
        raise NotImplementedError


__all__ = ["ModelTable", "Pool", "PoolRef", "ServedModel"]
