"""Which names clients may ask for, and who answers to them."""

import dataclasses
import hashlib
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from pagelet.protocol.openai.errors import ApiError
from pagelet.protocol.openai.models import Model, ModelList
from pagelet.protocol.router import ModelRoute
from pagelet.router.tenants.tenant import Tenant

UNNAMED: Final = "unnamed"
"""A model that was given no name, before its replicas brought one."""
NO_ADAPTERS: Final[Mapping[str, str]] = MappingProxyType({})


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
    """As metrics and logs call it: an adapter by its own name, else `ModelTable.label`."""
    route: int
    adapter: str | None = None
    """`asked`, if it is the name of an adapter."""


@dataclasses.dataclass(slots=True)
class _Said:
    """What the replicas of a pool said last, in the order in which they came."""

    names: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    lengths: dict[str, int | None] = dataclasses.field(default_factory=dict)
    adapters: dict[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)
    """Digests by name."""
    last_adapters: Mapping[str, str] = dataclasses.field(default_factory=lambda: NO_ADAPTERS)
    last_names: list[str] = dataclasses.field(default_factory=list)
    """Remembered when all are gone: their service may be at zero."""

    def all_names(self) -> list[str]:
        listed = (name for names in self.names.values() for name in names)
        return list(dict.fromkeys(listed)) or self.last_names

    def all_adapters(self) -> Iterable[str]:
        return (name for found in self.adapters.values() or [self.last_adapters] for name in found)

    def digest(self, adapter: str) -> str | None:
        """Of an adapter, if a replica has it."""
        found = (adapters.get(adapter) for adapters in self.adapters.values())
        return next((digest for digest in found if digest is not None), None)


class ModelTable:
    """All names of a router; its replicas may come, go and bring names with them."""

    def __init__(self, routes: Sequence[ModelRoute]) -> None:
        """Raises `ValueError` if a name has two meanings or no pool of a model has a weight."""
        self._routes = list(routes)
        self._said = [[_Said() for _ in route.pools] for route in routes]
        self._created = int(time.time())
        self._by_name: dict[str, int] = {}
        self._all_names: list[list[str]] = []
        """Of each route, the one for metrics first."""
        self._adapters: list[frozenset[str]] = []
        """Of each route: names of adapters, that mean nothing else."""
        given = [
            name
            for route in routes
            for name in (route.name, *route.aliases, *route.adapters)
            if name
        ]
        if repeated := [name for name in dict.fromkeys(given) if given.count(name) > 1]:
            raise ValueError(f"the name {repeated[0]!r} is given to two models or twice to one")
        for route in routes:
            called = f"model {route.name!r}" if route.name else "a model without a name"
            if not any(pool.weight for pool in route.pools):
                raise ValueError(f"{called}: at least one pool needs a weight above 0")
            if len({pool.name for pool in route.pools}) < len(route.pools):
                raise ValueError(f"{called}: give each of its pools a name of its own")
        self._index_names()

    def learn(
        self,
        pool: PoolRef,
        replica_id: str,
        names: Sequence[str],
        max_model_len: int | None,
        adapters: Mapping[str, str] = NO_ADAPTERS,
    ) -> None:
        """Takes in what a replica says that it serves. `adapters` are the digests of those of its
        `names` that are adapters'."""
        said = self._said[pool.route][pool.pool]
        said.lengths[replica_id] = max_model_len
        own = [name for name in names if name not in adapters]
        if said.names.get(replica_id) != own or said.adapters.get(replica_id) != adapters:
            said.names[replica_id], said.adapters[replica_id] = own, adapters
            self._index_names()

    def forget(self, pool: PoolRef, replica_id: str) -> None:
        """A replica is gone. The names of the last one stay known: its service may be at zero."""
        said = self._said[pool.route][pool.pool]
        said.lengths.pop(replica_id, None)
        said.last_adapters = said.adapters.pop(replica_id, said.last_adapters)
        names = said.names.pop(replica_id, None)
        if names is not None:
            said.last_names = names
            self._index_names()

    def resolve(self, name: str, tenant: Tenant) -> ServedModel:
        """What a name means to a tenant. Raises as `find` and `check`."""
        model = self.find(name, tenant)
        self.check(model, tenant)
        return model

    def find(self, name: str, tenant: Tenant) -> ServedModel:
        """What a name means. Raises 404 that lists those that the tenant may use.

        While a route without a name has never had a replica, any unknown name may be its own, so
        its requests are held rather than refused.
        """
        route = self._by_name.get(name)
        if route is None:
            route = next((route for route in self._indices if not self._own_names(route)), None)
        if route is None:
            raise self._not_found(name, tenant)
        return self._meant(name, route)

    def check(self, model: ServedModel, tenant: Tenant) -> None:
        """Raises 403 if the tenant may not use the model. An adapter is a model of its own: its own
        name must be allowed."""
        shared = model.adapter is None and model.asked in self._by_name
        tenant.check_model(model.asked, *(self._names(model.route) if shared else ()))

    def renewed(self, model: ServedModel) -> ServedModel:
        """What a model is now: the first replica may have told its name since it was found."""
        return model if model.adapter is not None else self._meant(model.asked, model.route)

    def _meant(self, name: str, route: int) -> ServedModel:
        if name in self._adapters[route]:
            return ServedModel(name, name, route, adapter=name)
        return ServedModel(name, self.label(route), route)

    def label(self, route: int) -> str:
        """What metrics and logs call the model of a route, whichever of its names was asked for."""
        return next(iter(self._names(route)), UNNAMED)

    def choose_pool(
        self, model: ServedModel, key: Callable[[], bytes], available: Collection[PoolRef]
    ) -> PoolRef:
        """The pool for a request. `key` returns what is the same for all requests of a
        conversation, which so stays on one revision; it is asked only if there is a choice.
        `available` are the pools that have a replica. If none has, the request will wait for the
        one that it would go to.

        Weighted rendezvous hashing (Schindelhauer and Schomaker, 2005): a change of weights moves
        no more conversations than it must.
        """
        weighted = [
            (PoolRef(model.route, number), pool)
            for number, pool in enumerate(self._routes[model.route].pools)
            if pool.weight
        ]
        if model.adapter is not None:
            said = self._said[model.route]
            with_it = [each for each in weighted if said[each[0].pool].digest(model.adapter)]
            weighted = with_it or weighted
        chosen_from = [item for item in weighted if item[0] in available] or weighted
        if len(chosen_from) == 1:
            return chosen_from[0][0]
        value = key()
        return min(chosen_from, key=lambda item: _distance(value, item[1].name) / item[1].weight)[0]

    def upstream_name(self, model: ServedModel, pool: PoolRef) -> str:
        """The name by which the pool's replicas know the model; the body must say it if it is not
        `model.asked`. An adapter has the same name everywhere."""
        if model.adapter is not None:
            return model.adapter
        said = self._said[pool.route][pool.pool].all_names()
        for name in (model.asked, model.name):
            if name in said:
                return name
        return said[0] if said else model.asked

    def adapter_digest(self, model: ServedModel, pool: PoolRef) -> str | None:
        """Of the adapter that was asked for, if there is one and a replica of the pool has it."""
        if model.adapter is None:
            return None
        return self._said[pool.route][pool.pool].digest(model.adapter)

    def list_models(self, tenant: Tenant) -> ModelList:
        """All names that a tenant may use."""
        return ModelList(data=[self._model(name) for name in self._allowed(tenant)])

    def get_model(self, name: str, tenant: Tenant) -> Model:
        """One of them. Raises as `resolve`."""
        if name not in self._by_name:
            raise self._not_found(name, tenant)
        self.resolve(name, tenant)
        return self._model(name)

    @property
    def _indices(self) -> Iterable[int]:
        return range(len(self._routes))

    def _own_names(self, route: int) -> list[str]:
        """The name that the route was given, or else those that its replicas say."""
        if name := self._routes[route].name:
            return [name]
        listed = (name for said in self._said[route] for name in said.all_names())
        return list(dict.fromkeys(listed))

    def _names(self, route: int) -> list[str]:
        """All of them, the one for metrics first."""
        return self._all_names[route]

    def _index_names(self) -> None:
        """Names that are given win over names that replicas bring, and routes that come first."""
        by_name: dict[str, int] = {}
        self._all_names = [
            list(dict.fromkeys([*self._own_names(route), *given.aliases]))
            for route, given in enumerate(self._routes)
        ]
        self._adapters = []
        for route, given in enumerate(self._routes):
            names = (given.name, *given.aliases, *given.adapters)
            by_name |= dict.fromkeys((name for name in names if name), route)
        for route in self._indices:
            brought = [name for said in self._said[route] for name in said.all_adapters()]
            for name in (*self._own_names(route), *brought):
                by_name.setdefault(name, route)
            adapters = {*self._routes[route].adapters, *brought}
            self._adapters.append(frozenset(adapters.difference(self._names(route))))
        self._by_name = by_name

    def _allowed(self, tenant: Tenant) -> list[str]:
        return [
            name
            for name, route in self._by_name.items()
            if tenant.may_use(name, *(() if name in self._adapters[route] else self._names(route)))
        ]

    def _model(self, name: str) -> Model:
        route = self._by_name[name]
        said = self._said[route]
        lengths = [
            length for pool in said for length in pool.lengths.values() if length is not None
        ]
        root = self.label(route)
        return Model(
            id=name,
            created=self._created,
            root=root,
            parent=root if name in self._adapters[route] else None,
            max_model_len=min(lengths, default=None),
        )

    def _not_found(self, name: str, tenant: Tenant) -> ApiError:
        listed = ", ".join(repr(known) for known in self._allowed(tenant))
        return ApiError(
            404,
            f"The model {name[:200]!r} does not exist; this router has {listed or 'none'}.",
            param="model",
            code="model_not_found",
            reason="invalid",
        )


def _distance(key: bytes, pool: str) -> float:
    """Exponentially distributed over keys, and always the same for one key and pool."""
    digest = hashlib.blake2b(pool.encode() + b"\0" + key, digest_size=8).digest()
    return -math.log((int.from_bytes(digest, "little") + 0.5) / 2**64)
