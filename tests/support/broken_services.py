"""InferenceServices that break one rule each, with the words that the API server and local mode
both answer with; and some that break none."""

import dataclasses
from typing import Any

from pagelet.protocol.inference_service.kind import API_VERSION, KIND

URI = "hf://org/name"


def service(name: str = "broken", **spec: Any) -> dict[str, Any]:
    """An InferenceService's body."""
    spec = {"model": {"uri": URI}} | spec
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": spec}


@dataclasses.dataclass(frozen=True)
class Broken:
    """A body, the path that is blamed, and the words."""

    id: str
    body: dict[str, Any]
    path: str
    words: str


GPUS = {"resourceName": "nvidia.com/gpu", "count": 2}


def scaled(**autoscaling: Any) -> dict[str, Any]:
    """A service that is scaled."""
    return service(autoscaling={"maxReplicas": 4} | autoscaling)


ENTRY = {"start": "0 8 * * 1-5", "end": "0 18 * * 1-5", "timezone": "Europe/Berlin", "replicas": 3}

ADAPTER = {"name": "sql", "uri": "hf://org/sql"}


def adapted(*adapters: dict[str, Any], name: str = "broken", **spec: Any) -> dict[str, Any]:
    """A service with adapters."""
    return service(name=name, model={"uri": URI, "adapters": list(adapters)}, **spec)


BROKEN = [
    Broken(
        "adapter twice",
        adapted(ADAPTER, ADAPTER | {"uri": "hf://org/other"}),
        "spec.model.adapters",
        "have the same name twice: requests could not tell them apart",
    ),
    Broken(
        "adapter of a served name",
        service(model={"uri": URI, "servedNames": ["m", "sql"], "adapters": [ADAPTER]}),
        "spec.model.adapters",
        "have a name that is the model's own, by servedNames: change one of the two",
    ),
    Broken(
        "adapter of the service's name",
        adapted(ADAPTER | {"name": "broken"}),
        "spec.model.adapters",
        "have the service's own name, by which requests ask for the model: change one, or give "
        "servedNames",
    ),
    Broken(
        "adapter from a package",
        adapted({"name": "sql", "uri": "package://sql"}),
        "spec.model.adapters[0].uri",
        "package://sql is no adapter that can be loaded: write hf://ORG/NAME, s3://BUCKET/FOLDER, "
        "pvc://CLAIM/PATH or file:///PATH. A revision goes to the field of that name",
    ),
    Broken(
        "revision of a folder",
        adapted({"name": "sql", "uri": "file:///sql", "revision": "v1"}),
        "spec.model.adapters[0].revision",
        "only hf:// adapters have revisions: leave it out",
    ),
    Broken(
        "template from nowhere",
        service(model={"uri": URI, "chatTemplate": {}}),
        "spec.model.chatTemplate",
        "has its text inline or in a configMap: give one of the two",
    ),
    Broken(
        "template from two places",
        service(
            model={
                "uri": URI,
                "chatTemplate": {"inline": "a", "configMap": {"name": "a", "key": "b"}},
            }
        ),
        "spec.model.chatTemplate",
        "has its text inline or in a configMap: give one of the two",
    ),
    Broken(
        "more adapters in a step than in memory",
        adapted(ADAPTER, engine={"lora": {"maxLoras": 20}}),
        "spec.engine.lora.maxCpuLoras",
        "16 is less than maxLoras 20, which must be in memory together: raise it, or lower "
        "maxLoras",
    ),
    Broken(
        "limits of no adapters",
        service(engine={"lora": {}}),
        "spec.engine",
        "engine.lora is about model.adapters: name some there, or leave it out",
    ),
    Broken(
        "canary's limits of no adapters",
        service(canary={"weight": 1, "engine": {"lora": {}}}),
        "spec.canary",
        "canary.engine.lora is about model.adapters: name some there, or leave it out",
    ),
    Broken(
        "canary without the adapters",
        adapted(ADAPTER, canary={"weight": 1, "model": {"uri": URI}}),
        "spec.canary",
        "model.adapters have other names than those of the service, whose requests they get: give "
        "adapters of the same names",
    ),
    Broken(
        "store without a unit",
        service(engine={"responseStore": 256}),
        "spec.engine.responseStore",
        "256 is less than 1Mi: give it in Mi or Gi, such as 256Mi",
    ),
    Broken(
        "body without a unit",
        service(engine={"maxBody": 16}),
        "spec.engine.maxBody",
        "16 is less than 1Mi: give it in Mi or Gi, such as 16Mi",
    ),
    Broken(
        "most below least",
        scaled(minReplicas=5),
        "spec.autoscaling.maxReplicas",
        "maxReplicas 4 is less than minReplicas 5: raise it, or lower that",
    ),
    Broken(
        "hpa to zero",
        scaled(engine="hpa", minReplicas=0),
        "spec.autoscaling.minReplicas",
        "a HorizontalPodAutoscaler keeps one replica at least: set minReplicas to 1, or engine to "
        "keda or builtin",
    ),
    Broken(
        "schedule of an HPA",
        scaled(engine="hpa", schedule=[ENTRY]),
        "spec.autoscaling.schedule",
        "a HorizontalPodAutoscaler knows no schedule: set engine: builtin or keda, or leave it out",
    ),
    Broken(
        "schedule above most",
        scaled(engine="keda", schedule=[ENTRY | {"replicas": 5}]),
        "spec.autoscaling.schedule",
        "an entry of the schedule asks for more than maxReplicas 4: raise that, or lower the entry",
    ),
    Broken(
        "Prometheus without KEDA",
        scaled(prometheusAddress="http://prometheus:9090"),
        "spec.autoscaling.prometheusAddress",
        "only KEDA asks Prometheus itself: set engine: keda, or leave it out",
    ),
    Broken(
        "two bounds of waiting",
        scaled(targets={"backlogSeconds": 1, "ttftSeconds": 2}),
        "spec.autoscaling.targets",
        "backlogSeconds and ttftSeconds both say how long a prompt may wait: keep one of them",
    ),
    Broken(
        "name",
        service(name="2nd"),
        "metadata.name",
        "is not a name for Services: at most 50 small letters, digits and -, beginning with a "
        "letter",
    ),
    Broken(
        "object store",
        service(model={"uri": "gs://bucket/model"}),
        "spec.model.uri",
        "gs://bucket/model is no model that can be loaded: write hf://ORG/NAME, "
        "hf://ORG/NAME/FILE.gguf, s3://BUCKET/FOLDER, s3://BUCKET/FILE.gguf, pvc://CLAIM/PATH, "
        "file:///PATH or package://NAME. A revision goes to the field of that name",
    ),
    Broken(
        "a bucket without a folder",
        service(model={"uri": "s3://bucket/"}),
        "spec.model.uri",
        "s3://bucket/ is no model that can be loaded: write hf://ORG/NAME, "
        "hf://ORG/NAME/FILE.gguf, s3://BUCKET/FOLDER, s3://BUCKET/FILE.gguf, pvc://CLAIM/PATH, "
        "file:///PATH or package://NAME. A revision goes to the field of that name",
    ),
    Broken(
        "a token for a bucket",
        service(model={"uri": "s3://bucket/model", "credentialsSecret": {"name": "a", "key": "b"}}),
        "spec.model.credentialsSecret.key",
        "is the entry with the token of hf:// models: give it for them, and leave it out for "
        "s3:// models, whose entries are AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    ),
    Broken(
        "a token that is not named",
        service(model={"uri": URI, "credentialsSecret": {"name": "a"}}),
        "spec.model.credentialsSecret.key",
        "is the entry with the token of hf:// models: give it for them, and leave it out for "
        "s3:// models, whose entries are AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    ),
    Broken(
        "credentials for a public bucket",
        service(
            model={
                "uri": "s3://bucket/model",
                "s3": {"anonymous": True},
                "credentialsSecret": {"name": "a"},
            }
        ),
        "spec.model.credentialsSecret",
        "only hf:// models, and s3:// models of buckets that are not public, are downloaded with "
        "credentials: leave it out",
    ),
    Broken(
        "a bucket of no model",
        service(model={"uri": URI, "s3": {"region": "eu-central-1"}}),
        "spec.model.s3",
        "only s3:// models are in a bucket: leave it out",
    ),
    Broken(
        "tokenizer",
        service(model={"uri": URI, "tokenizer": "gpt2"}),
        "spec.model.tokenizer",
        "gpt2 is no tokenizer that can be loaded: write hf://ORG/NAME, hf://ORG/NAME/FILE.gguf, "
        "s3://BUCKET/FOLDER, s3://BUCKET/FILE.gguf, pvc://CLAIM/PATH, file:///PATH or "
        "package://NAME",
    ),
    Broken(
        "tokenizer's claim",
        service(model={"uri": "pvc://one/model", "tokenizer": "pvc://two/model"}),
        "spec.model.tokenizer",
        "only a model on a claim may have its tokenizer there, and on the same claim: copy the "
        "tokenizer beside the model",
    ),
    Broken(
        "revision",
        service(model={"uri": "package://a", "revision": "main"}),
        "spec.model.revision",
        "only hf:// models have revisions: leave it out",
    ),
    Broken(
        "credentials",
        service(model={"uri": "package://a", "credentialsSecret": {"name": "a", "key": "b"}}),
        "spec.model.credentialsSecret",
        "only hf:// models, and s3:// models of buckets that are not public, are downloaded with "
        "credentials: leave it out",
    ),
    Broken(
        "storage",
        service(model={"uri": "package://a", "storage": {"claim": "a"}}),
        "spec.model.storage",
        "only hf:// and s3:// models are downloaded: leave it out",
    ),
    Broken(
        "two storages",
        service(model={"uri": URI, "storage": {"claim": "a", "hostPath": "/models"}}),
        "spec.model.storage",
        "sizeLimit (of a volume for each pod), claim and hostPath are three different places: keep "
        "one of them",
    ),
    Broken(
        "two sizes",
        service(engine={"kvCache": {"memory": "1Gi", "numBlocks": 8}}),
        "spec.engine.kvCache",
        "memory, memoryFraction and numBlocks all set the size: keep one of them",
    ),
    Broken(
        "a draft model for the method without one",
        service(engine={"speculation": {"method": "ngram", "model": "package://small"}}),
        "spec.engine.speculation.model",
        "is what the method draft_model guesses with: give it there, and nowhere else",
    ),
    Broken(
        "a lookup that is longer than the longest",
        service(
            engine={"speculation": {"method": "ngram", "promptLookupMin": 5, "promptLookupMax": 3}}
        ),
        "spec.engine.speculation.promptLookupMin",
        "5 is more than promptLookupMax 3: swap them",
    ),
    Broken(
        "a lookup for a draft model",
        service(
            engine={
                "speculation": {
                    "method": "draft_model",
                    "model": "package://small",
                    "promptLookupMax": 3,
                }
            }
        ),
        "spec.engine.speculation.method",
        "promptLookupMin and promptLookupMax are for the method ngram: leave them out",
    ),
    Broken(
        "cache without a unit",
        service(engine={"kvCache": {"memory": 4}}),
        "spec.engine.kvCache.memory",
        "4 is less than 1Mi: give it in Mi or Gi, such as 4Gi",
    ),
    Broken(
        "memory in another unit than was meant",
        service(resources={"memory": "100m"}),
        "spec.resources.memory",
        "100m is less than 1Mi: give it in Mi or Gi, such as 8Gi",
    ),
    Broken(
        "storage without a unit",
        service(model={"uri": URI, "storage": {"sizeLimit": 20}}),
        "spec.model.storage.sizeLimit",
        "20 is less than 1Mi: give it in Mi or Gi, such as 20Gi",
    ),
    Broken(
        "memory without a unit",
        service(resources={"memory": "8"}),
        "spec.resources.memory",
        "8 is less than 1Mi: give it in Mi or Gi, such as 8Gi",
    ),
    Broken(
        "simulated",
        service(engine={"simulated": {"stepSeconds": 0.1}}),
        "spec.engine.simulated",
        "is the time model of another runner: set runner: simulated, or leave it out",
    ),
    Broken(
        "nodes",
        service(engine={"tensorParallelSize": 4, "pipelineParallelSize": 2, "nodes": 3}),
        "spec.engine.nodes",
        "3 nodes cannot share tensorParallelSize 4 x pipelineParallelSize 2 processes evenly: give "
        "sizes whose product is a multiple of nodes",
    ),
    Broken(
        "simulated nodes",
        service(engine={"tensorParallelSize": 2, "nodes": 2, "runner": "simulated"}),
        "spec.engine.nodes",
        "the simulated runner has no processes that nodes could divide: leave it out",
    ),
    Broken(
        "node port",
        service(exposure={"service": {"nodePort": 30000}}),
        "spec.exposure.service.nodePort",
        "a Service of type ClusterIP has no port on nodes: set type: NodePort, or leave it out",
    ),
    Broken(
        "rollout",
        service(rollout={"maxSurge": 0, "maxUnavailable": "0%"}),
        "spec.rollout",
        "maxSurge and maxUnavailable are both 0, so that no replica could ever be replaced: set "
        "one of them to 1",
    ),
    Broken(
        "same canary",
        service(canary={"weight": 10}),
        "spec.canary",
        "differs in nothing from the service: give it an image, a model or an engine",
    ),
    Broken(
        "canary's names",
        service(canary={"weight": 10, "model": {"uri": URI, "servedNames": ["a"]}}),
        "spec.canary.model",
        "answers to the names of the service: leave servedNames out",
    ),
    Broken(
        "accelerators",
        service(accelerator=GPUS, engine={"tensorParallelSize": 3}),
        "spec.accelerator",
        "engine.tensorParallelSize 3 x pipelineParallelSize 1 x dataParallelSize 1 needs 3 of "
        "nvidia.com/gpu a replica, and accelerator.count is 2: set it to 3, or the sizes so that "
        "their product is 2",
    ),
    Broken(
        "canary's accelerators",
        service(
            accelerator=GPUS,
            engine={"tensorParallelSize": 2},
            canary={"weight": 1, "engine": {"dataParallelSize": 4}},
        ),
        "spec.canary",
        "canary.engine.tensorParallelSize 1 x pipelineParallelSize 1 x dataParallelSize 4 needs 4 "
        "of nvidia.com/gpu a replica, and accelerator.count is 2: set it to 4, or the sizes so "
        "that their product is 2",
    ),
    Broken(
        "KV cache dtype",
        service(engine={"kvCache": {"dtype": "fp8"}}),
        "spec.accelerator",
        "engine.kvCache.dtype fp8 needs an accelerator: on a CPU write auto, float32, bfloat16 or "
        "int8",
    ),
    Broken(
        "blocks of 8 tokens on a CPU",
        service(engine={"kvCache": {"blockSize": 8}}),
        "spec.accelerator",
        "engine.kvCache.blockSize 8 needs an accelerator: on a CPU write 16, 32, 64 or 128",
    ),
    Broken(
        "CUDA graphs on a CPU",
        service(engine={"cudagraphCaptureSizes": [1, 2]}),
        "spec.accelerator",
        "engine.enforceEager and cudagraphCaptureSizes are about CUDA graphs: leave them out where "
        "there is no accelerator",
    ),
    Broken(
        "no CUDA graphs on a CPU",
        service(canary={"weight": 1, "engine": {"enforceEager": True}}),
        "spec.canary",
        "canary.engine.enforceEager and cudagraphCaptureSizes are about CUDA graphs: leave them "
        "out where there is no accelerator",
    ),
    Broken(
        "one score token",
        service(engine={"scoreTokens": ["yes", "yes"]}),
        "spec.engine.scoreTokens",
        "are two different tokens, such as [no, yes]",
    ),
    Broken(
        "quantization",
        service(accelerator=GPUS, engine={"dataParallelSize": 2, "quantization": "int4"}),
        "spec.accelerator",
        "engine.quantization int4 is for the CPU: with an accelerator write auto, int8 or fp8, or "
        "leave the accelerator out",
    ),
    Broken(
        "FP8 on a CPU",
        service(engine={"quantization": "fp8"}),
        "spec.accelerator",
        "engine.quantization fp8 needs an accelerator: on a CPU write int8",
    ),
    Broken(
        "canary's quantization",
        service(
            accelerator=GPUS,
            engine={"dataParallelSize": 2},
            canary={"weight": 1, "engine": {"dataParallelSize": 2, "quantization": "int4"}},
        ),
        "spec.canary",
        "canary.engine.quantization int4 is for the CPU: with an accelerator write auto, int8 or "
        "fp8, or leave the accelerator out",
    ),
    Broken(
        "canary's KV cache dtype",
        service(canary={"weight": 1, "engine": {"kvCache": {"dtype": "float16"}}}),
        "spec.canary",
        "canary.engine.kvCache.dtype float16 needs an accelerator: on a CPU write auto, float32, "
        "bfloat16 or int8",
    ),
    Broken(
        "canary's blocks of 8 tokens",
        service(canary={"weight": 1, "engine": {"kvCache": {"blockSize": 8}}}),
        "spec.canary",
        "canary.engine.kvCache.blockSize 8 needs an accelerator: on a CPU write 16, 32, 64 or 128",
    ),
    Broken(
        "cache larger than the pod",
        service(
            resources={"memory": "4Gi"},
            engine={"dataParallelSize": 2, "kvCache": {"memory": "2048Mi"}},
        ),
        "spec.resources",
        "engine.kvCache.memory 2048Mi x dataParallelSize 2 leaves no room in resources.memory 4Gi: "
        "raise that, which must hold the weights and the largest step as well, or lower "
        "kvCache.memory",
    ),
    Broken(
        "canary's cache larger than the pod",
        service(
            resources={"memory": "4Gi"},
            canary={"weight": 1, "engine": {"kvCache": {"memory": "5Gi"}}},
        ),
        "spec.canary",
        "canary.engine.kvCache.memory 5Gi x dataParallelSize 1 leaves no room in resources.memory "
        "4Gi: raise that, which must hold the weights and the largest step as well, or lower "
        "kvCache.memory",
    ),
]

SOUND = [
    service(
        name="sound",
        model={
            "uri": "package://a",
            "chatTemplate": {"inline": "{{ messages }}"},
            "adapters": [
                ADAPTER | {"revision": "v1"},
                {"name": "legal", "uri": "s3://bucket/legal"},
                {"name": "claimed", "uri": "pvc://adapters/claimed"},
                {"name": "local", "uri": "file:///adapters/local"},
            ],
            "credentialsSecret": {"name": "a", "key": "b"},
            "s3": {"region": "eu-central-1"},
            "storage": {"sizeLimit": "1Gi"},
        },
        engine={"lora": {"maxLoras": 2}, "maxBody": "64Mi", "logLevel": "debug"},
        canary={
            "weight": 1,
            "model": {
                "uri": URI,
                "adapters": [
                    {"name": name, "uri": "hf://org/x"}
                    for name in ("sql", "legal", "claimed", "local")
                ],
                "chatTemplate": {"configMap": {"name": "a", "key": "b"}},
            },
        },
    ),
    adapted(ADAPTER, name="sound"),
    service(name="sound"),
    service(
        name="sound",
        autoscaling={
            "engine": "keda",
            "minReplicas": 0,
            "maxReplicas": 4,
            "schedule": [ENTRY],
            "targets": {"ttftSeconds": 3},
        },
    ),
    service(
        name="sound",
        accelerator=GPUS,
        resources={"memory": "4Gi"},
        engine={
            "tensorParallelSize": 2,
            "kvCache": {"memory": "20Gi", "dtype": "fp8"},
            "enforceEager": True,
            "task": "score",
            "scoreTokens": ["no", "yes"],
        },
    ),
    service(
        name="sound",
        model={"uri": "pvc://claim/a", "tokenizer": "pvc://claim/b"},
        resources={"memory": "4Gi"},
        engine={"kvCache": {"memory": "1Gi"}, "runner": "simulated", "simulated": {}},
        rollout={"maxSurge": "25%", "maxUnavailable": 0},
        exposure={"service": {"type": "NodePort", "nodePort": 30000}},
        canary={"weight": 10, "image": "other"},
    ),
    service(
        name="sound",
        model={
            "uri": "hf://org/name/file.Q4_1.gguf",
            "revision": "v1",
            "credentialsSecret": {"name": "a", "key": "b"},
            "storage": {"sizeLimit": "20Gi"},
        },
        resources={"memory": "1048576"},
    ),
    service(name="sound", model={"uri": "package://a/b.gguf"}),
    service(name="sound", engine={"runner": "simulated", "kvCache": {"blockSize": 8}}),
    service(name="sound", engine={"tensorParallelSize": 2, "nodes": 2}),
    service(
        name="sound",
        model={
            "uri": "s3://bucket/folder/model/",
            "tokenizer": "s3://bucket/folder/b.gguf",
            "s3": {"endpoint": "https://minio.storage.svc:9000", "region": "eu-central-1"},
            "credentialsSecret": {"name": "bucket"},
            "storage": {"claim": "models"},
        },
    ),
    service(name="sound", model={"uri": "file:///models/a", "tokenizer": "hf://org/name"}),
]
