"""Rules of `spec.engine`, alone and beside what its pods have."""

from collections.abc import Callable
from typing import Any, Final

from pagelet.protocol.inference_service.engine import (
    EngineSpec,
    KVCacheSpec,
    LoraSpec,
    SpeculationSpec,
)
from pagelet.protocol.inference_service.pods import Resources
from pagelet.protocol.inference_service.quantity import parse_quantity
from pagelet.protocol.inference_service.rule import P, Rule, mebibyte_at_least
from pagelet.protocol.inference_service.service import ServiceSpec


def _present(part: P | None) -> P:
    assert part is not None
    return part


def _ranks(engine: EngineSpec) -> int:
    ranks = engine.tensor_parallel_size * engine.pipeline_parallel_size
    return ranks * engine.data_parallel_size


def _kv_fits(spec: ServiceSpec, engine: EngineSpec) -> bool:
    memory, limit = engine.kv_cache.memory, spec.resources.memory
    if spec.accelerator or memory is None or limit is None:
        return True
    return parse_quantity(memory) * engine.data_parallel_size < parse_quantity(limit)


def _engine_rules(
    path: str, field: str, engine_of: Callable[[ServiceSpec], EngineSpec | None]
) -> list[Rule[ServiceSpec]]:
    """Rules between an engine (the service's or its canary's) and what its pods have."""
    engine = f"self.{path}"
    absent = "false" if path == "engine" else "!has(self.canary) || !has(self.canary.engine)"

    def value(of: Callable[[EngineSpec], Any]) -> Callable[[ServiceSpec], Any]:
        return lambda spec: of(_present(engine_of(spec)))

    def rule(
        *,
        at: str,
        holds: str,
        message: str,
        values: dict[str, tuple[str, Callable[[ServiceSpec], Any]]],
        check: Callable[[ServiceSpec, EngineSpec], bool],
    ) -> Rule[ServiceSpec]:
        def check_if_there(spec: ServiceSpec) -> bool:
            found = engine_of(spec)
            return found is None or check(spec, found)

        return Rule(
            part=ServiceSpec,
            field=field or at,
            holds=f"{absent} || {holds}",
            message=f"{path}.{message}",
            values=values,
            check=check_if_there,
        )

    tensor, data = f"{engine}.tensorParallelSize", f"{engine}.dataParallelSize"
    pipeline = f"{engine}.pipelineParallelSize"
    ranks = f"{tensor} * {pipeline} * {data}"
    kv = f"{engine}.kvCache.memory"
    limit = "self.resources.memory"
    return [
        rule(
            at="accelerator",
            holds=f"!has(self.accelerator) || {ranks} == self.accelerator.count",
            message="tensorParallelSize {tensor} x pipelineParallelSize {pipeline} x "
            "dataParallelSize {data} needs {ranks} of {resource} a replica, and accelerator.count "
            "is {count}: set it to {ranks}, or the sizes so that their product is {count}",
            values={
                "tensor": (tensor, value(lambda e: e.tensor_parallel_size)),
                "pipeline": (pipeline, value(lambda e: e.pipeline_parallel_size)),
                "data": (data, value(lambda e: e.data_parallel_size)),
                "ranks": (ranks, value(_ranks)),
                "resource": (
                    "self.accelerator.resourceName",
                    lambda spec: _present(spec.accelerator).resource_name,
                ),
                "count": (
                    "string(self.accelerator.count)",
                    lambda spec: _present(spec.accelerator).count,
                ),
            },
            check=lambda spec, engine: (
                spec.accelerator is None or _ranks(engine) == spec.accelerator.count
            ),
        ),
        rule(
            at="accelerator",
            holds=f"!has(self.accelerator) || {engine}.quantization != 'int4'",
            message="quantization {quantization} is for the CPU: with an accelerator write auto, "
            "int8 or fp8, or leave the accelerator out",
            values={"quantization": (f"{engine}.quantization", value(lambda e: e.quantization))},
            check=lambda spec, engine: spec.accelerator is None or engine.quantization != "int4",
        ),
        rule(
            at="accelerator",
            holds=f"has(self.accelerator) || {engine}.quantization != 'fp8'",
            message="quantization {quantization} needs an accelerator: on a CPU write int8",
            values={"quantization": (f"{engine}.quantization", value(lambda e: e.quantization))},
            check=lambda spec, engine: spec.accelerator is not None or engine.quantization != "fp8",
        ),
        rule(
            at="accelerator",
            holds=f"has(self.accelerator) || !({engine}.kvCache.dtype in ['float16', 'fp8'])",
            message="kvCache.dtype {dtype} needs an accelerator: on a CPU write auto, float32, "
            "bfloat16 or int8",
            values={"dtype": (f"{engine}.kvCache.dtype", value(lambda e: e.kv_cache.dtype))},
            check=lambda spec, engine: (
                spec.accelerator is not None or engine.kv_cache.dtype not in ("float16", "fp8")
            ),
        ),
        rule(
            at="accelerator",
            holds=f"has(self.accelerator) || {engine}.kvCache.blockSize != 8 || "
            f"{engine}.runner == 'simulated'",
            message="kvCache.blockSize 8 needs an accelerator: on a CPU write 16, 32, 64 or 128",
            values={},
            check=lambda spec, engine: (
                spec.accelerator is not None
                or engine.kv_cache.block_size != 8
                or engine.runner == "simulated"
            ),
        ),
        rule(
            at="accelerator",
            holds=f"has(self.accelerator) || !{engine}.enforceEager && "
            f"(!has({engine}.cudagraphCaptureSizes) || size({engine}.cudagraphCaptureSizes) == 0)",
            message="enforceEager and cudagraphCaptureSizes are about CUDA graphs: leave them out "
            "where there is no accelerator",
            values={},
            check=lambda spec, engine: (
                spec.accelerator is not None
                or not (engine.enforce_eager or engine.cudagraph_capture_sizes)
            ),
        ),
        rule(
            at="resources",
            holds=f"has(self.accelerator) || !has({kv}) || !has({limit}) || "
            f"!isQuantity(string({kv})) || !isQuantity(string({limit})) || "
            f"quantity(string({kv})).asApproximateFloat() * double({data}) < "
            f"quantity(string({limit})).asApproximateFloat()",
            message="kvCache.memory {memory} x dataParallelSize {data} leaves no room in "
            "resources.memory {limit}: raise that, which must hold the weights and the largest "
            "step as well, or lower kvCache.memory",
            values={
                "memory": (kv, value(lambda e: e.kv_cache.memory)),
                "data": (data, value(lambda e: e.data_parallel_size)),
                "limit": (limit, lambda spec: spec.resources.memory),
            },
            check=_kv_fits,
        ),
        rule(
            at="engine",
            holds=f"!has({engine}.lora) || "
            "has(self.model.adapters) && size(self.model.adapters) > 0",
            message="lora is about model.adapters: name some there, or leave it out",
            values={},
            check=lambda spec, engine: engine.lora is None or bool(spec.model.adapters),
        ),
    ]


ENGINE_RULES: Final[list[Rule[Any]]] = [
    Rule(
        part=LoraSpec,
        field="maxCpuLoras",
        holds="self.maxLoras <= self.maxCpuLoras",
        message="{kept} is less than maxLoras {step}, which must be in memory together: raise it, "
        "or lower maxLoras",
        values={
            "kept": ("string(self.maxCpuLoras)", lambda lora: lora.max_cpu_loras),
            "step": ("string(self.maxLoras)", lambda lora: lora.max_loras),
        },
        check=lambda lora: lora.max_loras <= lora.max_cpu_loras,
    ),
    mebibyte_at_least(EngineSpec, "maxBody", "16Mi", lambda engine: engine.max_body),
    Rule(
        part=KVCacheSpec,
        field="",
        holds="(has(self.memory) ? 1 : 0) + (has(self.memoryFraction) ? 1 : 0) + "
        "(has(self.numBlocks) ? 1 : 0) <= 1",
        message="memory, memoryFraction and numBlocks all set the size: keep one of them",
        values={},
        check=lambda c: [c.memory, c.memory_fraction, c.num_blocks].count(None) >= 2,
    ),
    mebibyte_at_least(KVCacheSpec, "memory", "4Gi", lambda cache: cache.memory),
    Rule(
        part=SpeculationSpec,
        field="model",
        holds="(self.method == 'draft_model') == has(self.model)",
        message="is what the method draft_model guesses with: give it there, and nowhere else",
        values={},
        check=lambda s: (s.method == "draft_model") == (s.model is not None),
    ),
    Rule(
        part=SpeculationSpec,
        field="promptLookupMin",
        holds="!has(self.promptLookupMin) || !has(self.promptLookupMax) || "
        "self.promptLookupMin <= self.promptLookupMax",
        message="{min} is more than promptLookupMax {max}: swap them",
        values={
            "min": ("self.promptLookupMin", lambda s: s.prompt_lookup_min),
            "max": ("self.promptLookupMax", lambda s: s.prompt_lookup_max),
        },
        check=lambda s: (
            s.prompt_lookup_min is None
            or s.prompt_lookup_max is None
            or s.prompt_lookup_min <= s.prompt_lookup_max
        ),
    ),
    Rule(
        part=SpeculationSpec,
        field="method",
        holds="self.method == 'ngram' || "
        "(!has(self.promptLookupMin) && !has(self.promptLookupMax))",
        message="promptLookupMin and promptLookupMax are for the method ngram: leave them out",
        values={},
        check=lambda s: (
            s.method == "ngram" or (s.prompt_lookup_min is None and s.prompt_lookup_max is None)
        ),
    ),
    mebibyte_at_least(Resources, "memory", "8Gi", lambda resources: resources.memory),
    mebibyte_at_least(EngineSpec, "responseStore", "256Mi", lambda engine: engine.response_store),
    Rule(
        part=EngineSpec,
        field="simulated",
        holds="!has(self.simulated) || self.runner == 'simulated'",
        message="is the time model of another runner: set runner: simulated, or leave it out",
        values={},
        check=lambda e: e.simulated is None or e.runner == "simulated",
    ),
    Rule(
        part=EngineSpec,
        field="nodes",
        holds="self.tensorParallelSize * self.pipelineParallelSize % self.nodes == 0",
        message="{nodes} nodes cannot share tensorParallelSize {tensor} x pipelineParallelSize "
        "{pipeline} processes evenly: give sizes whose product is a multiple of nodes",
        values={
            "nodes": ("string(self.nodes)", lambda e: e.nodes),
            "tensor": ("string(self.tensorParallelSize)", lambda e: e.tensor_parallel_size),
            "pipeline": ("string(self.pipelineParallelSize)", lambda e: e.pipeline_parallel_size),
        },
        check=lambda e: e.tensor_parallel_size * e.pipeline_parallel_size % e.nodes == 0,
    ),
    Rule(
        part=EngineSpec,
        field="nodes",
        holds="self.nodes == 1 || self.runner == 'model'",
        message="the simulated runner has no processes that nodes could divide: leave it out",
        values={},
        check=lambda e: e.nodes == 1 or e.runner == "model",
    ),
    Rule(
        part=EngineSpec,
        field="scoreTokens",
        holds="!has(self.scoreTokens) || size(self.scoreTokens) == 0 || "
        "size(self.scoreTokens) == 2 && self.scoreTokens[0] != self.scoreTokens[1]",
        message="are two different tokens, such as [no, yes]",
        values={},
        check=lambda e: not e.score_tokens or len(set(e.score_tokens)) == 2,
    ),
    *_engine_rules("engine", "", lambda spec: spec.engine),
    *_engine_rules(
        "canary.engine", "canary", lambda spec: spec.canary.engine if spec.canary else None
    ),
]
