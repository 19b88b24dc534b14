"""Which field of a spec stands behind an option of `pagelet serve`. A server speaks of its options;
whoever wrote YAML is told of the fields."""

import re
from collections.abc import Mapping
from typing import Final

from pagelet.protocol.inference_service.service import InferenceService

_ENGINE: Final[Mapping[str, str]] = {
    "--tensor-parallel-size": "tensorParallelSize",
    "--pipeline-parallel-size": "pipelineParallelSize",
    "--data-parallel-size": "dataParallelSize",
    "--nnodes": "nodes",
    "--task": "task",
    "--pooling": "pooling",
    "--score-tokens": "scoreTokens",
    "--tool-call-parser": "toolCallParser",
    "--enforce-eager": "enforceEager",
    "--cudagraph-capture-sizes": "cudagraphCaptureSizes",
    "--dtype": "dtype",
    "--quantization": "quantization",
    "--load-format": "loadFormat",
    "--max-model-len": "maxModelLen",
    "--kv-cache-dtype": "kvCache.dtype",
    "--block-size": "kvCache.blockSize",
    "--kv-cache-memory": "kvCache.memory",
    "--memory-utilization": "kvCache.memoryFraction",
    "--num-blocks": "kvCache.numBlocks",
    "--enable-prefix-caching": "kvCache.prefixCaching",
    "--no-enable-prefix-caching": "kvCache.prefixCaching",
    "--max-num-seqs": "maxNumSeqs",
    "--max-num-batched-tokens": "maxNumBatchedTokens",
    "--max-step-seconds": "maxStepSeconds",
    "--scheduling-policy": "schedulingPolicy",
    "--async-scheduling": "asyncScheduling",
    "--no-async-scheduling": "asyncScheduling",
    "--enable-expert-parallel": "expertParallel",
    "--speculative-config": "speculation",
    "--max-loras": "lora.maxLoras",
    "--max-cpu-loras": "lora.maxCpuLoras",
    "--max-lora-rank": "lora.maxRank",
    "--response-store": "responseStore",
    "--max-body-bytes": "maxBody",
    "--log-level": "logLevel",
    "--step-timeout": "stepTimeoutSeconds",
    "--max-queue": "maxQueue",
    "--runner": "runner",
    "--simulated-step-seconds": "simulated.stepSeconds",
    "--simulated-weights-seconds": "simulated.weightsSeconds",
    "--simulated-token-seconds": "simulated.tokenSeconds",
    "--simulated-context-token-seconds": "simulated.contextTokenSeconds",
}
_SPEC: Final[Mapping[str, str]] = {
    "--served-model-name": "spec.model.servedNames",
    "--device cpu": "no spec.accelerator",
    "--device cuda": "spec.accelerator",
    "--device": "spec.accelerator",
    "--cpu-memory": "spec.resources.memory",
    "--cpu-share": "spec.resources.memory",  # which takes its place
    "--cpu-threads": "spec.resources.cpu",
    "--drain-timeout": "spec.rollout.drainSeconds",
}
_MODEL: Final[Mapping[str, str]] = {
    "--tokenizer": "tokenizer",
    "--chat-template": "chatTemplate",
    "--lora-modules": "adapters",
    "--enable-lora": "adapters",
}
OPTIONS: Final = frozenset({*_ENGINE, *_SPEC, *_MODEL})
"""Those that a spec sets."""
_OPTION: Final = re.compile(r"--device (?:cpu|cuda)\b|--[a-z](?:[a-z0-9-]*[a-z0-9])?")


def in_fields(text: str, service: InferenceService, revision: str) -> str:
    """What a replica of one of `service.revisions` says, with the path of a field in place of each
    option that one sets. Other options stay as they are: no field is behind them."""
    canary = service.spec.canary if revision == "canary" else None
    engine = "spec.canary.engine" if canary and canary.engine else "spec.engine"
    model = "spec.canary.model" if canary and canary.model else "spec.model"

    def path(match: re.Match[str]) -> str:
        option = match[0]
        if option in _ENGINE:
            return f"{engine}.{_ENGINE[option]}"
        if option in _MODEL:
            return f"{model}.{_MODEL[option]}"
        return _SPEC.get(option, option)

    return _OPTION.sub(path, text)
