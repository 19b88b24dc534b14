"""What operators and probes ask: health, readiness, metrics, configuration, models."""

import importlib.metadata
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from pagelet.agent.http.errors import error_response
from pagelet.agent.http.server import Server, server_of
from pagelet.protocol.exposition import CONTENT_TYPE
from pagelet.protocol.openai.errors import ApiError, retry_after
from pagelet.protocol.openai.models import Model, ModelList

router = APIRouter()

_PROBE_AGAIN_IN = 1.0
_SECRET_SETTINGS = ("api_keys", "api_key_file")


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


def _unavailable(why: str) -> Response:
    headers = {"Retry-After": retry_after(_PROBE_AGAIN_IN)}
    return error_response(ApiError(503, why, code="unavailable", headers=headers))


@router.get("/health")
async def health(request: Request) -> Response:
    """200 while every engine core is connected and moves on when it has work; 503 says what is
    wrong. For liveness: a long load or a hung step must not look alive."""
    reason = server_of(request).llm.check_health()
    return _json({"status": "ok"}) if reason is None else _unavailable(reason)


@router.get("/ping")
@router.post("/ping")
async def ping(request: Request) -> Response:
    """`/health` under the name that SageMaker asks for, as in vLLM."""
    return await health(request)


@router.get("/load")
async def load(request: Request) -> Response:
    """Requests that are open, as in vLLM: for balancers that go by them."""
    return _json({"server_load": server_of(request).open_requests})


@router.get("/ready")
async def ready(request: Request) -> Response:
    """200 if requests are welcome: the model is loaded and the server does not drain."""
    server = server_of(request)
    if server.draining:
        return _unavailable("the server is draining")
    if not server.llm.is_ready:
        return _unavailable(server.llm.check_health() or "the model is not loaded yet")
    return _json({"status": "ready"})


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Prometheus' text format."""
    server = server_of(request)
    server.metrics.set_server_state(
        draining=server.draining,
        open_requests=server.open_requests,
        keys_file_broken=server.keys.broken,
        step_ages=server.llm.step_ages(),
        foreign_gpu_memory=server.llm.foreign_gpu_memory(),
    )
    return Response(server.metrics.render(), headers={"Content-Type": CONTENT_TYPE})


@router.get("/version")
async def version() -> Response:
    """The version of Pagelet."""
    return _json({"version": importlib.metadata.version("pagelet")})


@router.get("/v1/config")
async def config(request: Request) -> Response:
    """What was asked for, and what each engine core made of it; secrets are left out."""
    server = server_of(request)
    llm = server.llm
    settings: dict[str, Any] = msgspec.to_builtins(server.settings)
    for name in _SECRET_SETTINGS:
        del settings[name]
    return _json(
        {
            "engine": msgspec.to_builtins(llm.options),
            "engine_cores": [msgspec.to_builtins(core) for core in _cores(server)],
            "server": settings | {"api_key_required": server.keys.required},
            "served_model_names": list(llm.served_model_names),
            "max_model_len": llm.max_model_len,
            "sampling_defaults": llm.processor.default_sampling,
        }
    )


def _cores(server: Server) -> list[dict[str, object]]:
    return [
        {
            "engine_index": core.engine_index,
            "num_kv_blocks": core.num_kv_blocks,
            "block_size": core.block_size,
            "kv_cache_bytes": core.kv_cache_bytes,
            "effective_config": core.effective_config,
        }
        for core in server.llm.ready_engines
    ]


@router.get("/v1/models")
async def list_models(request: Request) -> Response:
    """Names that requests may use."""
    server = server_of(request)
    names = (*server.llm.served_model_names, *server.llm.adapters)
    models = [_model(server, name) for name in names]
    return Response(ModelList(data=models).model_dump_json(), media_type="application/json")


@router.get("/v1/models/{name:path}")
async def get_model(request: Request, name: str) -> Response:
    """One of them."""
    server = server_of(request)
    server.check_model(name)
    return Response(_model(server, name).model_dump_json(), media_type="application/json")


def _model(server: Server, name: str) -> Model:
    root = server.llm.served_model_names[0]
    return Model(
        id=name,
        created=server.started,
        root=root,
        parent=root if name in server.llm.adapters else None,
        max_model_len=server.llm.max_model_len,
    )
