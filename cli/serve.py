"""`pagelet serve MODEL`: options to configuration, then over to the supervisor."""

from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer

from pagelet.agent.settings import LogFormat, LogLevel, ServeSettings, ToolCallParser
from pagelet.cli.numbers import NumbersChecked
from pagelet.cli.serve_checks import (
    check_keys,
    check_lora,
    check_names,
    check_origins,
    check_positive,
    check_share,
    parse_lora_module,
    parse_score_tokens,
)
from pagelet.cli.sizes import parse_bytes
from pagelet.protocol.config import (
    CacheOptions,
    CpuOptions,
    CudaOptions,
    DType,
    EngineOptions,
    KVCacheDType,
    KVEventsOptions,
    LoraOptions,
    ModelOptions,
    ParallelOptions,
    Quantization,
    SchedulerOptions,
    SimulatedRunnerOptions,
    Task,
)
from pagelet.protocol.speculation import SpeculationOptions

app = typer.Typer(rich_markup_mode=None, add_completion=False)

# The defaults of options are those of the typed configuration.
_CACHE, _SCHEDULER, _PARALLEL = CacheOptions(), SchedulerOptions(), ParallelOptions()
_LORA = LoraOptions()
_SIMULATED, _SERVE = SimulatedRunnerOptions(), ServeSettings()


def _parse_size(text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _parse_speculation(text: str) -> SpeculationOptions:
    try:
        return msgspec.json.decode(text, type=SpeculationOptions)
    except msgspec.DecodeError as error:
        raise typer.BadParameter(
            f'{error}; write JSON such as {{"method": "ngram", "num_speculative_tokens": 5}}'
        ) from None


def _parse_block_size(text: str) -> int:
    if text not in ("8", "16", "32", "64", "128"):
        raise typer.BadParameter(f"{text} is not one of 8, 16, 32, 64 and 128")
    return int(text)


def _check_together(
    num_blocks: int | None,
    kv_cache_memory: int | None,
    kv_events_endpoint: str | None,
    kv_events_replay_endpoint: str | None,
) -> None:
    if num_blocks is not None and kv_cache_memory is not None:
        raise typer.BadParameter(
            "--kv-cache-memory sets the size of the KV cache too; give only one of the two",
            param_hint="--num-blocks",
        )
    if kv_events_replay_endpoint is not None and kv_events_endpoint is None:
        raise typer.BadParameter(
            "there are no events to replay without --kv-events-endpoint; give that, too",
            param_hint="--kv-events-replay-endpoint",
        )


@app.command(cls=NumbersChecked)
def serve(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="hf://ORG/NAME[/FILE.gguf][@REVISION], s3://BUCKET/PATH, a folder, a .gguf file, "
            "or package://NAME.",
        ),
    ],
    # Server
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all.")] = _SERVE.host,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="TCP port; 0 takes a free one.")
    ] = _SERVE.port,
    served_model_name: Annotated[
        list[str] | None,
        typer.Option(
            callback=check_names,
            help="Name that requests may use; give it again for aliases. Answers have the first. "
            "[default: from MODEL]",
        ),
    ] = None,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            envvar="PAGELET_API_KEY",
            callback=check_keys,
            help="Key that requests must present; give it again for more. Other users of the "
            "machine see a command line: better use the variable or a file. [default: none asked]",
        ),
    ] = None,
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            readable=True,
            help="File with one key a line, read again when it changes. [default: none]",
        ),
    ] = None,
    max_queue: Annotated[
        int, typer.Option(min=1, help="Most answers in flight; above that 429 with Retry-After.")
    ] = _SERVE.max_queue,
    rate_limit: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Most requests a minute of one API key, or of all clients together without keys. "
            "[default: no limit]",
        ),
    ] = None,
    max_body_bytes: Annotated[
        int,
        typer.Option(
            metavar="BYTES", parser=_parse_size, help="Largest request body, such as 16MiB."
        ),
    ] = f"{_SERVE.max_body_bytes >> 20}MiB",  # type: ignore[assignment]
    response_store: Annotated[
        int | None,
        typer.Option(
            metavar="BYTES",
            parser=_parse_size,
            help="Keep so much of the responses that clients ask to be stored, in memory and for a "
            "day at most, such as 256MiB. [default: none is kept]",
        ),
    ] = None,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(
            callback=check_origins,
            help="Origin that browsers may call from, SCHEME://HOST[:PORT] or *; give it again for "
            "more. [default: none]",
        ),
    ] = None,
    metric_aliases: Annotated[
        bool,
        typer.Option(
            help="Expose metrics under older names of vLLM's too, which dashboards still query."
        ),
    ] = _SERVE.metric_aliases,
    drain_timeout: Annotated[
        float,
        typer.Option(min=0, help="Most seconds that streams get to finish after SIGTERM."),
    ] = _SERVE.drain_timeout,
    step_timeout: Annotated[
        float,
        typer.Option(
            callback=check_positive,
            help="Seconds without progress after which an engine with work is restarted.",
        ),
    ] = _SERVE.step_timeout,
    tool_call_parser: Annotated[
        ToolCallParser,
        typer.Option(help="How the model writes calls of tools; auto: found from its template."),
    ] = _SERVE.tool_call_parser,
    otlp_traces_endpoint: Annotated[
        str | None,
        typer.Option(
            help="Post OpenTelemetry spans of requests to this URL, such as "
            "http://collector:4318/v1/traces. [default: by OTEL_EXPORTER_OTLP_ENDPOINT]",
        ),
    ] = _SERVE.otlp_traces_endpoint,
    log_level: Annotated[LogLevel, typer.Option(help="Least severe messages to log.")] = (
        _SERVE.log_level
    ),
    log_format: Annotated[
        LogFormat, typer.Option(help="json: one object a line.")
    ] = _SERVE.log_format,
    # Model
    tokenizer: Annotated[
        str | None,
        typer.Option(help="Where the tokenizer comes from, as MODEL. [default: from MODEL]"),
    ] = None,
    chat_template: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            readable=True,
            help="File with a Jinja chat template. [default: the model's]",
        ),
    ] = None,
    dtype: Annotated[
        DType,
        typer.Option(
            help="Of weights and activations. auto: the checkpoint's, but float32 on a CPU without "
            "bfloat16 instructions."
        ),
    ] = "auto",
    load_format: Annotated[
        Literal["auto", "dummy"], typer.Option(help="dummy: random weights, for speed tests.")
    ] = "auto",
    quantization: Annotated[
        Quantization,
        typer.Option(
            help="Of the weights of linear layers. auto: as in the checkpoint, so a GGUF "
            "file's quantised blocks stay as they are; none: floats of --dtype; int8, int4 (on a "
            "CPU), fp8 (on a GPU): quantised here, with scales for each 32 weights, or of fp8 for "
            "each output."
        ),
    ] = "auto",
    max_model_len: Annotated[
        int | None,
        typer.Option(
            min=1, help="Longest prompt and answer together, in tokens. [default: the model's]"
        ),
    ] = None,
    task: Annotated[
        Task,
        typer.Option(
            help="What the model is for. auto: embed for a model of sentence-transformers or one "
            "without a head, score for a classifier of sequences, else generate."
        ),
    ] = "auto",
    pooling: Annotated[
        Literal["last", "mean", "cls"] | None,
        typer.Option(
            help="Which tokens' states become an embedding: the last one's, the mean of all, or "
            "the first one's. [default: the model's, else last]"
        ),
    ] = None,
    score_tokens: Annotated[
        str | None,
        typer.Option(
            metavar="NO,YES",
            parser=parse_score_tokens,
            help="Score by how likely a generating model says YES rather than NO.",
        ),
    ] = None,
    # LoRA
    enable_lora: Annotated[
        bool, typer.Option("--enable-lora", help="Serve adapters of the model, chosen by name.")
    ] = _LORA.enabled,
    lora_modules: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SOURCE",
            parser=parse_lora_module,
            help="An adapter as PEFT saves it (a folder, hf://ORG/NAME[@REVISION] or "
            "s3://BUCKET/FOLDER) and the name that requests use; may be repeated.",
        ),
    ] = None,
    max_loras: Annotated[
        int, typer.Option(min=1, help="Most different adapters in one step.")
    ] = _LORA.max_loras,
    max_cpu_loras: Annotated[
        int,
        typer.Option(min=1, help="Most adapters in memory; others are read again when needed."),
    ] = _LORA.max_cpu_loras,
    max_lora_rank: Annotated[
        int, typer.Option(min=1, help="Largest rank of an adapter.")
    ] = _LORA.max_rank,
    allow_lora_updates: Annotated[
        bool,
        typer.Option(
            "--allow-lora-updates",
            help="Let requests load and unload adapters while the server runs.",
        ),
    ] = _LORA.allow_updates,
    device: Annotated[
        Literal["auto", "cpu", "cuda"], typer.Option(help="auto: a GPU if there is one.")
    ] = "auto",
    # KV cache and scheduler
    block_size: Annotated[
        int,
        typer.Option(
            parser=_parse_block_size,
            metavar="[8|16|32|64|128]",
            help="Tokens a KV cache block.",
        ),
    ] = str(_CACHE.block_size),  # type: ignore[assignment]
    kv_cache_dtype: Annotated[
        KVCacheDType,
        typer.Option(
            help="Of cached keys and values; int8 (and fp8, on a GPU) holds twice the tokens of "
            "bfloat16."
        ),
    ] = _CACHE.kv_cache_dtype,
    kv_cache_memory: Annotated[
        int | None,
        typer.Option(
            metavar="BYTES",
            parser=_parse_size,
            help="Size of the KV cache, such as 2GiB. [default: from --memory-utilization]",
        ),
    ] = None,
    memory_utilization: Annotated[
        float | None,
        typer.Option(
            callback=check_share,
            help="Share of the device's memory for weights, activations and KV cache together. "
            "[default: 0.9 on a GPU, 0.4 on a CPU]",
        ),
    ] = None,
    num_blocks: Annotated[
        int | None,
        typer.Option(
            min=2, help="Blocks of the KV cache, in place of a size. [default: as many as fit]"
        ),
    ] = None,
    enable_prefix_caching: Annotated[
        bool, typer.Option(help="Compute a prompt prefix that was seen before only once.")
    ] = _CACHE.enable_prefix_caching,
    max_num_seqs: Annotated[
        int, typer.Option(min=1, help="Most requests in one step.")
    ] = _SCHEDULER.max_num_seqs,
    max_num_batched_tokens: Annotated[
        int, typer.Option(min=1, help="Most tokens in one step; longer prompts take several.")
    ] = _SCHEDULER.max_num_batched_tokens,
    max_step_seconds: Annotated[
        float | None,
        typer.Option(
            callback=check_positive,
            help="Bound of a step, and so of running streams' latency, that prefills keep to. "
            "[default: 0.1 on a CPU, none on a GPU]",
        ),
    ] = None,
    scheduling_policy: Annotated[
        Literal["fcfs", "priority"],
        typer.Option(help="priority: smaller `priority` first, then first come, first served."),
    ] = _SCHEDULER.policy,
    async_scheduling: Annotated[
        bool, typer.Option(help="Schedule the next step while the last one runs.")
    ] = _SCHEDULER.async_scheduling,
    speculative_config: Annotated[
        SpeculationOptions | None,
        typer.Option(
            metavar="JSON",
            parser=_parse_speculation,
            help='Guess tokens and verify several at once: {"method": "ngram"} from the prompt, '
            '{"method": "draft_model", "model": SOURCE} by a smaller model; beside that '
            "num_speculative_tokens, prompt_lookup_max, prompt_lookup_min, quantization and "
            "adaptive. [default: off]",
        ),
    ] = None,
    # Processes
    tensor_parallel_size: Annotated[
        int, typer.Option(min=1, help="Processes (GPUs) that divide each layer of the model.")
    ] = _PARALLEL.tensor_parallel_size,
    pipeline_parallel_size: Annotated[
        int,
        typer.Option(
            min=1, help="Stages that divide the layers, with --tensor-parallel-size processes each."
        ),
    ] = _PARALLEL.pipeline_parallel_size,
    enable_expert_parallel: Annotated[
        bool,
        typer.Option(
            "--enable-expert-parallel",
            help="Divide a mixture's experts over the processes, in place of each expert.",
        ),
    ] = _PARALLEL.enable_expert_parallel,
    data_parallel_size: Annotated[
        int, typer.Option(min=1, help="Copies of the model, each with an engine of its own.")
    ] = _PARALLEL.data_parallel_size,
    nnodes: Annotated[
        int, typer.Option(min=1, help="Machines that a copy of the model is divided over.")
    ] = _PARALLEL.nnodes,
    node_rank: Annotated[
        int,
        typer.Option(
            min=0, help="This machine among them; 0 is the head, and the one that serves."
        ),
    ] = _PARALLEL.node_rank,
    master_addr: Annotated[
        str, typer.Option(help="The head's address, by which the other machines reach it.")
    ] = _PARALLEL.master_addr,
    master_port: Annotated[
        int,
        typer.Option(
            min=1,
            max=65534,
            help="Where the head waits for them: this port and the next, for each data-parallel "
            "rank in turn.",
        ),
    ] = _PARALLEL.master_port,
    cpu_share: Annotated[
        float,
        typer.Option(
            callback=check_share,
            help="Share of this machine's cores and memory for each rank on a CPU, where several "
            "servers run side by side.",
        ),
    ] = CpuOptions().share,
    cpu_threads: Annotated[
        int | None,
        typer.Option(
            min=1, help="Threads that compute on a CPU, a rank. [default: the share of the cores]"
        ),
    ] = None,
    cpu_memory: Annotated[
        int | None,
        typer.Option(
            metavar="BYTES",
            parser=_parse_size,
            help="Memory of a rank on a CPU, such as 8GiB, of which --memory-utilization is a "
            "share. [default: the share of the machine's]",
        ),
    ] = None,
    enforce_eager: Annotated[
        bool,
        typer.Option(
            "--enforce-eager",
            help="On a GPU, launch every kernel by itself, in place of CUDA graphs for decoding.",
        ),
    ] = False,
    cudagraph_capture_sizes: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            help="Number of decoding requests to capture a CUDA graph of; give it again for more. "
            "[default: 1, 2, 4, 8, 16, ..., 512, up to --max-num-seqs]",
        ),
    ] = None,
    # KV events
    kv_events_endpoint: Annotated[
        str | None,
        typer.Option(
            help="ZMQ endpoint to publish KV events at, such as tcp://*:5557. [default: off]"
        ),
    ] = None,
    kv_events_replay_endpoint: Annotated[
        str | None,
        typer.Option(
            help="ZMQ endpoint that replays missed events, such as tcp://*:5558. [default: off]"
        ),
    ] = None,
    kv_events_topic: Annotated[
        str,
        typer.Option(help="Topic of KV events, such as kv@ADDRESS@MODEL. [default: empty]"),
    ] = "",
    # Simulation
    runner: Annotated[
        Literal["model", "simulated"],
        typer.Option(help="simulated: no model runs, its time does; tokens are made up."),
    ] = "model",
    simulated_step_seconds: Annotated[
        float, typer.Option(min=0, help="Simulated runner: seconds a step.")
    ] = _SIMULATED.step_seconds,
    simulated_token_seconds: Annotated[
        float, typer.Option(min=0, help="Simulated runner: seconds for each token of a step.")
    ] = _SIMULATED.token_seconds,
    simulated_context_token_seconds: Annotated[
        float, typer.Option(min=0, help="Simulated runner: seconds for each token of context.")
    ] = _SIMULATED.context_token_seconds,
    simulated_weights_seconds: Annotated[
        float,
        typer.Option(
            min=0, help="Simulated runner: least seconds for a step's tokens, however few they are."
        ),
    ] = _SIMULATED.weights_seconds,
) -> None:
    """Serve a model over the OpenAI API.

    SIGTERM or Ctrl-C lets streams finish, then exits with code 0; a second one stops at once. Exit
    code 78 says that the configuration cannot work, 1 that something keeps crashing or that streams
    did not finish within --drain-timeout.
    """
    _check_together(num_blocks, kv_cache_memory, kv_events_endpoint, kv_events_replay_endpoint)
    options = EngineOptions(
        model=ModelOptions(
            source=model,
            tokenizer=tokenizer,
            chat_template=None if chat_template is None else str(chat_template),
            served_model_names=served_model_name or [],
            dtype=dtype,
            quantization=quantization,
            max_model_len=max_model_len,
            load_format=load_format,
            task=task,
            pooling=pooling,
            score_tokens=score_tokens.split(",") if score_tokens else [],
        ),
        cache=CacheOptions(
            block_size=block_size,  # type: ignore[arg-type]
            kv_cache_dtype=kv_cache_dtype,
            kv_cache_memory_bytes=kv_cache_memory,
            memory_utilization=memory_utilization,
            num_blocks=num_blocks,
            enable_prefix_caching=enable_prefix_caching,
        ),
        scheduler=SchedulerOptions(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_step_seconds=max_step_seconds,
            policy=scheduling_policy,
            async_scheduling=async_scheduling,
        ),
        parallel=ParallelOptions(
            tensor_parallel_size=tensor_parallel_size,
            pipeline_parallel_size=pipeline_parallel_size,
            data_parallel_size=data_parallel_size,
            enable_expert_parallel=enable_expert_parallel,
            nnodes=nnodes,
            node_rank=node_rank,
            master_addr=master_addr,
            master_port=master_port,
        ),
        cuda=CudaOptions(
            enforce_eager=enforce_eager, cudagraph_capture_sizes=cudagraph_capture_sizes or None
        ),
        cpu=CpuOptions(share=cpu_share, threads=cpu_threads, memory_bytes=cpu_memory),
        kv_events=KVEventsOptions(
            endpoint=kv_events_endpoint,
            replay_endpoint=kv_events_replay_endpoint,
            topic=kv_events_topic,
        ),
        speculation=speculative_config,
        lora=check_lora(
            LoraOptions(
                enabled=enable_lora,
                modules=dict(module.split("=", 1) for module in lora_modules or ()),
                max_loras=max_loras,
                max_cpu_loras=max_cpu_loras,
                max_rank=max_lora_rank,
                allow_updates=allow_lora_updates,
            )
        ),
        runner=runner,
        simulated=SimulatedRunnerOptions(
            step_seconds=simulated_step_seconds,
            token_seconds=simulated_token_seconds,
            context_token_seconds=simulated_context_token_seconds,
            weights_seconds=simulated_weights_seconds,
        ),
        device=device,
    )
    settings = ServeSettings(
        host=host,
        port=port,
        api_keys=api_key or [],
        api_key_file=None if api_key_file is None else str(api_key_file),
        max_queue=max_queue,
        rate_limit=rate_limit,
        max_body_bytes=max_body_bytes,
        response_store=response_store,
        cors_origins=cors_origin or [],
        metric_aliases=metric_aliases,
        drain_timeout=drain_timeout,
        step_timeout=step_timeout,
        tool_call_parser=tool_call_parser,
        otlp_traces_endpoint=otlp_traces_endpoint,
        log_level=log_level,
        log_format=log_format,
    )
    from pagelet.agent.supervisor.run import run_server

    raise typer.Exit(run_server(options, settings))
