"""What metrics show of a router as it is now."""

import time

from pagelet.protocol.autoscaling.demand import Work, demand
from pagelet.protocol.router import ModelRoute
from pagelet.router.metrics import PoolView, ServerView
from pagelet.router.models import UNNAMED
from pagelet.router.replicas.pool import ReplicaPool
from pagelet.router.state import RouterState


def refresh(state: RouterState) -> None:
    """Brings the gauges of `state.metrics` up to date."""
    routes = state.config.models
    views = [
        view_pool(state.models.label(ref.route), routes[ref.route], pool)
        for ref, pool in state.pools.items()
    ]
    for view in views:
        if view.model != UNNAMED:
            state.metrics.add_model(view.model)
    state.metrics.set_pools(views)
    state.metrics.set_server(
        ServerView(
            draining=state.draining,
            open_requests=state.open_requests,
            tenants=state.tenants.num_tenants,
            keys_file_broken=state.tenants.broken,
        )
    )


def view_pool(model: str, route: ModelRoute, pool: ReplicaPool) -> PoolView:
    """A pool as it is now, also one without a replica."""
    now, room = time.monotonic(), pool.room
    prompts = pool.fleet.prompts(now)
    view = PoolView(
        model=model,
        pool=pool.name,
        service=route.service or model,
        waiting_requests=room.num_waiting,
        held_requests=room.num_held,
        waiting_prompt_tokens=room.waiting_prompt_tokens,
        inflight_answers=room.in_flight,
        capacity_answers=room.capacity,
        index_blocks=pool.fleet.num_index_blocks,
        prefill_load=prompts.load,
    )
    ready = set()
    for replica in pool.replicas.values():
        shown = str(replica.health)
        if replica.takes_requests(now):
            ready.add(replica.id)
        elif replica.health == "ready":
            shown = "ejected"
        view.replicas[shown] = view.replicas.get(shown, 0) + 1
    for counts in pool.events.counts:
        view.kv_event_gaps += counts.gaps
        view.kv_event_replays += counts.replayed
    rate, queued = 0.0, 0
    for replica_state in pool.fleet.states(now):
        view.inflight_uncached_prefill_tokens += replica_state.pending_prefill_tokens
        speed = replica_state.prefill_tokens_per_second
        view.queued_prefill_seconds += replica_state.queued_tokens / speed
        queued += replica_state.queued_prompts
        view.decode_slots_in_use += replica_state.decoding
        view.kv_load += replica_state.kv_use
        view.replicas_with_events += replica_state.sends_events
        if replica_state.replica_id in ready:
            rate += replica_state.prefill_tokens_per_second
            view.decode_slots += replica_state.decode_slots
    usual_rate = pool.fleet.usual_rate
    tokens = view.inflight_uncached_prefill_tokens + view.waiting_prompt_tokens
    view.backlog_seconds = tokens / (rate or usual_rate)
    view.queued_prefill_seconds += view.waiting_prompt_tokens / usual_rate
    work = Work(
        queued_seconds=view.queued_prefill_seconds,
        queued=queued + room.num_waiting,
        prompts=prompts,
        answers=room.in_flight + room.num_waiting,
        decode=pool.fleet.decode_line,
        kv_load=view.kv_load,
    )
    view.demand = demand(work, route.scaling)
    return view
