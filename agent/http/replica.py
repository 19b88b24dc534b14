"""What routers ask of a replica: its description, its tokenizer, its block size."""

import importlib.metadata
import statistics
from collections.abc import Iterable

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from pagelet.agent.http.server import Server, server_of
from pagelet.engine.outputs import EngineDead
from pagelet.protocol.engine import EngineCoreReady
from pagelet.protocol.replica import KVEventsSource, ReplicaDescription

router = APIRouter()


@router.get("/v1/replica")
async def replica(request: Request) -> Response:
    """See `ReplicaDescription`; 503 while no engine core is there. Answered also in a drain."""
    description = await _describe(server_of(request))
    return Response(msgspec.json.encode(description), media_type="application/json")


@router.get("/v1/tokenizer")
async def tokenizer(request: Request) -> Response:
    """The `TokenizerBundle`, with the digest that `/v1/replica` tells as its ETag."""
    bundle = await server_of(request).llm.tokenizer_bundle()
    headers = {"ETag": f'"{bundle.digest}"'}
    if bundle.digest in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(bundle.data, headers=headers, media_type="application/json")


@router.get("/get_server_info")
async def server_info(request: Request) -> Response:
    """What vllm-router's policy `kv_aware` asks, which hashes blocks of this size."""
    description = await _describe(server_of(request))
    return Response(
        msgspec.json.encode(
            {
                "model_id": description.served_model_names[0],
                "block_size": description.block_size,
                "max_model_len": description.max_model_len,
                "dp_size": description.data_parallel_size,
                "version": description.version,
            }
        ),
        media_type="application/json",
    )


async def _describe(server: Server) -> ReplicaDescription:
    llm = server.llm
    cores, stats = llm.ready_engines, llm.engine_stats
    if not cores:
        raise EngineDead(llm.check_health() or "the engine is not ready")
    bundle = await llm.tokenizer_bundle()
    options = llm.options
    num_ranks = options.parallel.data_parallel_size
    return ReplicaDescription(
        incarnation="-".join(core.incarnation for core in cores),
        version=importlib.metadata.version("pagelet"),
        served_model_names=[*llm.served_model_names, *llm.adapters],
        adapters={name: adapter.digest for name, adapter in llm.adapters.items()},
        max_model_len=llm.max_model_len,
        block_size=cores[0].block_size,
        num_kv_blocks=sum(core.num_kv_blocks for core in cores),
        max_num_seqs=options.scheduler.max_num_seqs * num_ranks,
        enable_prefix_caching=options.cache.enable_prefix_caching,
        takes_priority=options.scheduler.policy == "priority",
        data_parallel_size=num_ranks,
        kv_events=_kv_events(cores),
        tokenizer=bundle.digest,
        prefill_tokens_per_second=_mean(each.prefill_tokens_per_second for each in stats),
        decode_step_seconds=_mean(each.decode_step_seconds for each in stats),
        response_store=None if server.responses is None else server.responses.mark,
        draining=server.draining,
    )


def _kv_events(cores: list[EngineCoreReady]) -> KVEventsSource | None:
    sockets = [core.kv_events for core in cores if core.kv_events is not None]
    if not sockets:
        return None
    return KVEventsSource(
        endpoints=[each.endpoint for each in sockets],
        replay_endpoints=[each.replay_endpoint for each in sockets if each.replay_endpoint],
        topic=sockets[0].topic,
    )


def _mean(measured: Iterable[float]) -> float | None:
    """Over the ranks that know."""
    known = [value for value in measured if value]
    return statistics.fmean(known) if known else None
