"""Everything that one worker of a router knows, and that its requests share."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from pagelet.process.open_requests import OpenRequests
from pagelet.process.spans import open_sink
from pagelet.protocol.replica import ReplicaDescription
from pagelet.protocol.router import Pool, RouterConfig
from pagelet.router.explain import Explanations
from pagelet.router.metrics import RouterMetrics
from pagelet.router.models import ModelTable, PoolRef
from pagelet.router.proxy.retries import RetryBudget
from pagelet.router.replica_key import ReplicaKey
from pagelet.router.replicas.change_log import ChangeLog
from pagelet.router.replicas.discovery import Discovery, FileDiscovery, StaticDiscovery
from pagelet.router.replicas.kubernetes import ApiServer, EndpointSliceDiscovery
from pagelet.router.replicas.pool import ReplicaPool
from pagelet.router.replicas.replica import Replica
from pagelet.router.spans import SERVICE_NAME
from pagelet.router.tenants.counters import CounterTable
from pagelet.router.tenants.keys import TenantDirectory
from pagelet.router.tenants.limits import Limiter
from pagelet.router.tenants.salt import SaltDeriver
from pagelet.router.tokens.tokeniser import Tokeniser
from pagelet.router.upstream.connection import UpstreamError

_log = logging.getLogger(__name__)


class RouterState(OpenRequests):
    """Made from a configuration; `running` keeps it up to date."""

    def __init__(
        self, config: RouterConfig, counters: CounterTable, before: "RouterState | None" = None
    ) -> None:
        """`before` is the state that this one replaces: metrics, explanations and the log of
        replicas go on.

        Raises `ValueError` for a configuration that cannot work, `OSError` and `KeyFileError` for
        files that cannot be read.
        """
        super().__init__()
        self.config = config
        self.options = config.proxy
        self.tenants = TenantDirectory(_path(config.api_keys_file), config.default_limits)
        self.limiter = Limiter(counters)
        self._num_workers = counters.num_workers
        self.salts = SaltDeriver.from_file(config.cache_salt_secret_file)
        self.models = ModelTable(config.models)
        self.metrics: RouterMetrics = before.metrics if before else RouterMetrics()
        self.explanations: Explanations = before.explanations if before else Explanations()
        self.changes: ChangeLog = before.changes if before else ChangeLog()
        self.budget = RetryBudget(config.proxy.retry_budget)
        self._replica_key = ReplicaKey(_path(config.replica_api_key_file))
        self.replica_headers = self._replica_key.headers
        self.pools: dict[PoolRef, ReplicaPool] = {}
        self.tokenisers: dict[PoolRef, Tokeniser] = {}
        for route_number, route in enumerate(config.models):
            for pool_number, pool in enumerate(route.pools):
                ref = PoolRef(route_number, pool_number)
                self._add_pool(ref, pool, route.shared_prefixes)
        self.spans = open_sink(SERVICE_NAME)  # last: it has a thread, which nobody else would end
        self._loading: dict[PoolRef, asyncio.Task[None]] = {}
        self.draining = False

    def _add_pool(self, ref: PoolRef, pool: Pool, shared_prefixes: Sequence[str]) -> None:
        self.tokenisers[ref] = Tokeniser(shared_prefixes)

        def on_replica(replica: Replica) -> None:
            self._on_replica(ref, replica)

        self.pools[ref] = ReplicaPool(
            pool.name,
            discoveries_of(pool),
            self.config.routing,
            self.options,
            self.replica_headers,
            on_replica=on_replica,
            changes=self.changes,
            num_workers=self._num_workers,
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Looks for replicas, and after keys and replicas, until left."""
        keys = [
            asyncio.create_task(each.keep_fresh()) for each in (self.tenants, self._replica_key)
        ]
        for pool in self.pools.values():
            pool.start()
        try:
            yield
        finally:
            for task in keys:
                task.cancel()
            for loading in self._loading.values():
                loading.cancel()
            for pool in self.pools.values():
                await pool.close()
            for tokeniser in self.tokenisers.values():
                tokeniser.close()
            if self.spans is not None:
                await asyncio.to_thread(self.spans.close)

    @property
    def available(self) -> list[PoolRef]:
        """The pools that have a replica which takes requests."""
        return [ref for ref, pool in self.pools.items() if pool.available]

    @property
    def all_replicas(self) -> list[Replica]:
        """Of all pools, also those that take no requests and may keep responses still."""
        pools = self.pools.values()
        return [r for pool in pools for r in (*pool.replicas.values(), *pool.keepers.values())]

    async def drain(self, most_seconds: float) -> bool:
        """From now on new requests are refused. Whether all that are open finished in time."""
        self.draining = True
        return await self.finish(most_seconds)

    async def finish(self, most_seconds: float) -> bool:
        """Whether all requests that are open finished in time."""
        try:
            async with asyncio.timeout(most_seconds):
                await self.wait_idle()
        except TimeoutError:
            _log.warning("%d requests did not finish within %g s", self.open_requests, most_seconds)
            return False
        return True

    def _on_replica(self, ref: PoolRef, replica: Replica) -> None:
        if replica.health == "gone":
            self.models.forget(ref, replica.id)
        elif replica.model_names:
            description = replica.description
            length = None if description is None else description.max_model_len
            self.models.learn(ref, replica.id, replica.model_names, length, replica.adapters)
        if replica.health == "ready" and replica.description is not None:
            self._learn_tokenizer(ref, replica, replica.description)

    def _learn_tokenizer(
        self, ref: PoolRef, replica: Replica, description: ReplicaDescription
    ) -> None:
        """Takes over a replica's tokenizer, unless others still have the one that is in use, as in
        the midst of an update."""
        tokeniser, wanted = self.tokenisers[ref], description.tokenizer
        in_use = {
            other.description.tokenizer
            for other in self.pools[ref].replicas.values()
            if other.description is not None and other.health == "ready"
        }
        if wanted in (None, tokeniser.tried) or tokeniser.digest in in_use or ref in self._loading:
            return

        async def load() -> None:
            try:
                bundle = await replica.fetch_tokenizer(self.replica_headers)
                await tokeniser.load(bundle, wanted, description.block_size)
            except UpstreamError as error:
                _log.warning("no tokenizer from replica %s yet: %s", replica.id, error)
            finally:
                del self._loading[ref]

        self._loading[ref] = asyncio.create_task(load())


def discoveries_of(pool: Pool) -> list[Discovery]:
    """The sources of a pool. Raises `ValueError` if there is none."""
    found: list[Discovery] = []
    if pool.replicas:
        found.append(StaticDiscovery(pool.replicas))
    if pool.replicas_file is not None:
        found.append(FileDiscovery(Path(pool.replicas_file)))
    if pool.service is not None:
        found.append(EndpointSliceDiscovery(pool.service, ApiServer.of_pod()))
    if not found:
        raise ValueError(
            f"pool {pool.name!r} has no replicas: give it 'replicas', 'replicas_file' or 'service'"
        )
    return found


def _path(name: str | None) -> Path | None:
    return None if name is None else Path(name)
