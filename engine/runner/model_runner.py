"""Runs steps: state rows, forward pass, sampling."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import numpy as np
import torch

from pagelet.engine.errors import ConfigurationError
from pagelet.engine.kv.spec import KVLayout, stage_layout
from pagelet.engine.layers.context import (
    ALONE,
    ForwardContext,
    KVBinding,
    Ranks,
)
from pagelet.engine.layers.lora import LoraBatch
from pagelet.engine.layers.pipeline import stage_layers
from pagelet.engine.layers.placement import Packing
from pagelet.engine.layers.tensor_parallel import kv_heads_per_rank
from pagelet.engine.model_config import ModelConfig
from pagelet.engine.models.causal_lm import CausalLM
from pagelet.engine.models.registry import build_model
from pagelet.engine.runner.adapters import Adapters
from pagelet.engine.runner.cpu_forward import (
    QUANTIZED_FORMATS,
    CpuForward,
    choose_packing,
    compile_kernels,
    describe_kernels,
    limit_threads,
    why_not_recorded,
)
from pagelet.engine.runner.device import choose_device, choose_dtype, to_device
from pagelet.engine.runner.draft_model import (
    DraftModel,
    DraftSource,
    check_draft,
    draft_layout,
)
from pagelet.engine.runner.graphs import (
    Forward,
    GraphBackend,
    GraphForward,
    choose_capture_sizes,
    describe_graphs,
    graph_bytes,
    make_graph_backend,
)
from pagelet.engine.runner.inputs import build_inputs
from pagelet.engine.runner.masks import MaskedRows, masked_rows
from pagelet.engine.runner.memory import (
    activation_bytes,
    adapter_bytes,
    count_blocks,
    kv_layout,
    out_of_memory_named,
    read_device_memory,
)
from pagelet.engine.runner.pooling import pool_states
from pagelet.engine.runner.prompt_logprobs import PromptLogprobs, prompt_logprobs
from pagelet.engine.runner.results import LaunchedStep, make_copies
from pagelet.engine.runner.sampler import Sampled, raw_logits, sample_tokens
from pagelet.engine.runner.state import IntArray, RequestRows
from pagelet.engine.runner.worst_step import NUM_BLOCKS, measurable, peak_bytes, worst_step
from pagelet.engine.step import (
    MAX_DRAFT_TOKENS,
    RunnerInfo,
    RunnerOutput,
    SchedulerOutput,
    TokenMasks,
)
from pagelet.engine.weights.quantized_tensor import StoredTensor
from pagelet.kernels.cpu.memory import empty_bytes
from pagelet.kernels.paged_attention.pages import token_size
from pagelet.protocol.config import EngineOptions, KVCacheDType, Quantization, SchedulerOptions


class ModelRunner:
    """One rank's model, KV cache and state rows."""

    def __init__(
        self,
        options: EngineOptions,
        config: ModelConfig,
        weights: Iterable[tuple[str, StoredTensor]] | None,
        max_model_len: int,
        *,
        device_index: int = 0,
        ranks: Ranks = ALONE,
        num_real_tokens: int | None = None,
        stage: Callable[[str], None] = lambda text: None,
        graphs: GraphBackend | None = None,
        draft: DraftSource | None = None,
    ) -> None:
        """Loads the weights and makes the KV cache.

        `weights` are the checkpoint's full tensors, or None for random ones. `num_real_tokens` is
        the tokenizer's size, if the vocabulary is padded beyond it. `stage` is told what the
        start-up is at. Decode steps are captured by `graphs`, by default those of the device, if it
        has any. `draft` is a model that proposes tokens. Raises `ConfigurationError` if a model
        cannot be built so, a checkpoint does not fit it, or memory does not suffice.
        """
        self._num_tokens = min(config.vocab_size, num_real_tokens or config.vocab_size)
        tp, self._pp = ranks.tp, ranks.pp
        self.device = choose_device(options.device, device_index)
        self.dtype = choose_dtype(options.model, config.checkpoint_dtype, self.device)
        compile_kernels(self.device, stage)
        limit_threads(options.cpu, tp.size * ranks.pp.size, self.device)
        block_size = options.cache.block_size
        packings = self._choose_packings(options.model.quantization, config.head_dim, block_size)
        kv_dtype = _choose_kv_dtype(
            options.cache.kv_cache_dtype, self.dtype, recorded=packings is not None
        )
        lora = LoraBatch() if options.lora.enabled else None
        self._model = _load_model(
            config,
            weights,
            self.dtype,
            self.device,
            ranks,
            packings,
            lora,
            quantization=options.model.quantization,
        )
        self._adapters: Adapters | None = None
        if lora is not None:
            self._adapters = Adapters(self._model, lora, options.lora.max_cpu_loras)
        stage("making the KV cache")
        layers = stage_layers(config.num_layers, ranks.pp.stage, ranks.pp.size)
        self.layout = stage_layout(kv_layout(config, block_size, kv_dtype, tp.size), layers)
        self._draft: DraftModel | None = None
        own_bytes = self._model.weight_bytes
        if draft is not None:
            check_draft(draft.config, self.layout, max_model_len)
            draft_model, pages, draft_kv_dtype = self._load_draft(draft, options)
            self.layout = dataclasses.replace(self.layout, draft_bytes=pages.block_bytes)
            own_bytes += draft_model.weight_bytes
        page_shape = (
            kv_heads_per_rank(config.num_kv_heads, tp.size),
            block_size,
            token_size(config.head_dim, kv_dtype),
        )

        def make_cache(num_blocks: int) -> dict[int, KVBinding]:
            return _make_kv_cache(
                self.layout, layers, num_blocks, page_shape, kv_dtype, self.device
            )

        self._rows = RequestRows(
            options.scheduler.max_num_seqs, max_model_len, block_size, self.layout, self.device
        )
        self._copies = make_copies(self.device)
        graphs = graphs or make_graph_backend(options.cuda, self.device)
        if ranks.pp.size > 1:
            graphs = None
        sizes = choose_capture_sizes(
            options.cuda.cudagraph_capture_sizes, options.scheduler.max_num_seqs
        )
        if measurable(self.device):
            stage("measuring the largest step")
            self._kv = make_cache(NUM_BLOCKS)
            self._forward = self._make_forward(
                self._model, self._kv, len(self.layout.groups), options, max_model_len
            )
            self._eager_forward = self._forward
            activations = self._measure_worst_step(options, max_model_len)
            if graphs is not None:
                activations += graph_bytes(
                    sizes, self._measure_decode(sizes[-1], options, max_model_len)
                )
        else:
            activations = activation_bytes(config, options, max_model_len, self.dtype)
        fitting = count_blocks(
            options.cache,
            read_device_memory(self.device, own_bytes, options.cpu),
            activations + adapter_bytes(config, options.lora, self.dtype),
            self.layout,
            max_model_len,
            self.device.type,
        )
        # The ranks share one block table, so the one with the least memory decides.
        self.num_blocks = ranks.least(fitting)
        self._kv = make_cache(self.num_blocks)
        self._forward = self._make_forward(
            self._model, self._kv, len(self.layout.groups), options, max_model_len
        )
        self._eager_forward = self._forward
        if graphs is not None:
            self._forward = GraphForward(
                self._forward,
                graphs,
                sizes,
                num_groups=len(self.layout.groups),
                block_size=block_size,
                max_model_len=max_model_len,
                device=self.device,
                stage=stage,
            )
        if draft is not None:
            page_shape = (
                draft.config.num_kv_heads,
                block_size,
                token_size(draft.config.head_dim, draft_kv_dtype),
            )
            draft_layers = range(draft.config.num_layers)
            draft_kv = _make_kv_cache(
                pages, draft_layers, self.num_blocks, page_shape, draft_kv_dtype, self.device
            )
            self._draft = DraftModel(
                draft_model,
                self._make_forward(draft_model, draft_kv, 1, options, max_model_len),
                self._rows,
                self.layout,
                self.num_blocks,
                config.vocab_size,
                options.scheduler.max_num_batched_tokens,
            )
        formats = self._model.linear_formats
        self.info = RunnerInfo(
            device=self.device.type,
            dtype=str(self.dtype).removeprefix("torch."),
            kv_cache_dtype=str(kv_dtype).removeprefix("torch."),
            quantization=options.model.quantization if formats & QUANTIZED_FORMATS else "none",
            kernels=describe_kernels(
                formats,
                why_not_recorded(self.device, self.dtype, config.head_dim, block_size),
                self.device,
            )
            + describe_graphs(self._forward),
        )

    def _choose_packings(
        self, quantization: Quantization, head_dim: int, block_size: int
    ) -> tuple[Packing, Packing] | None:
        """For layers and head; None if the model is to run on torch's operations."""
        if quantization == "fp8" and self.device.type == "cpu":
            raise ConfigurationError(
                "--quantization fp8 is for a GPU: on a CPU give int8, which reads as few bytes"
            )
        reason = why_not_recorded(self.device, self.dtype, head_dim, block_size)
        if reason is None:
            return choose_packing(quantization, self.dtype)
        if quantization in ("int8", "int4") and self.device.type == "cpu":
            raise ConfigurationError(
                f"--quantization {quantization} needs the CPU library, which cannot run this model "
                f"here: {reason}. Leave --quantization out"
            )
        if quantization == "int4":
            raise ConfigurationError(
                "--quantization int4 is for the CPU: on a GPU give int8 or fp8, or take a "
                "checkpoint of 4 bits (GPTQ, AWQ or GGUF) and leave --quantization out"
            )
        return None

    @torch.inference_mode()
    def _measure_decode(self, size: int, options: EngineOptions, max_model_len: int) -> int:
        """Bytes that the layers need for a decode step of so many requests. All ranks run it."""
        scheduler = SchedulerOptions(max_num_seqs=size, max_num_batched_tokens=size)
        plan, after = worst_step(scheduler, max_model_len, self.layout, options.cache.block_size)
        self._rows.update(plan)
        inputs = build_inputs(plan, self._rows)
        peak = peak_bytes(
            lambda: self._forward(inputs.input_ids, inputs.positions, inputs.attention),
            self.device,
        )
        self._rows.update(after)
        return peak

    def _measure_worst_step(self, options: EngineOptions, max_model_len: int) -> int:
        """What the largest step needs beside weights and KV cache, in bytes. All ranks run it."""
        plan, after = worst_step(
            options.scheduler,
            max_model_len,
            self.layout,
            options.cache.block_size,
            drafts=0 if options.speculation is None else MAX_DRAFT_TOKENS,
        )

        def run() -> None:
            self.execute(plan)

        with out_of_memory_named(
            self.device,
            "the largest step",
            "Lower --max-num-batched-tokens or --max-num-seqs, or take a smaller model",
        ):
            peak = peak_bytes(run, self.device)
        self._rows.update(after)
        return peak

    def _load_draft(
        self, draft: DraftSource, options: EngineOptions
    ) -> tuple[CausalLM, KVLayout, torch.dtype]:
        """A draft model without a KV cache yet, and that cache's layout and dtype. Every rank has
        all of it: it is small, and what it says need not be sent from one to another."""
        assert options.speculation is not None
        config, block_size = draft.config, options.cache.block_size
        packings = self._choose_packings(
            options.speculation.quantization, config.head_dim, block_size
        )
        kv_dtype = _choose_kv_dtype(
            options.cache.kv_cache_dtype, self.dtype, recorded=packings is not None
        )
        model = _load_model(
            config,
            draft.weights,
            self.dtype,
            self.device,
            ALONE,
            packings,
            quantization=options.speculation.quantization,
        )
        page_bytes = kv_layout(config, block_size, kv_dtype, 1).page_bytes
        return model, draft_layout(config.num_layers, page_bytes), kv_dtype

    def _make_forward(
        self,
        model: CausalLM,
        kv: Mapping[int, KVBinding],
        num_groups: int,
        options: EngineOptions,
        max_model_len: int,
    ) -> Forward:
        """Over pages of `num_groups` KV groups, in some of which a pipeline stage has no layer."""
        if model.placement.packing is not None:
            return CpuForward(
                model,
                kv,
                max_tokens=options.scheduler.max_num_batched_tokens,
                max_requests=options.scheduler.max_num_seqs,
                max_model_len=max_model_len,
                num_groups=num_groups,
            )
        return lambda input_ids, positions, attention: model.forward(
            input_ids, positions, ForwardContext(attention, kv)
        )

    @property
    def asynchronous(self) -> bool:
        """Whether a launched step still runs, on the device, when `launch` has returned."""
        return self._copies.asynchronous

    def execute(
        self, plan: SchedulerOutput, masks: Callable[[], TokenMasks] | None = None
    ) -> RunnerOutput:
        """Runs one step and returns what it brought, in the plan's order; as `launch`."""
        return self.launch(plan, masks).result()

    @torch.inference_mode()
    def launch(
        self, plan: SchedulerOutput, masks: Callable[[], TokenMasks] | None = None
    ) -> LaunchedStep:
        """Queues one step's operations on the device, after those of the steps before. `masks`
        waits for those of a plan with `constrained` requests."""
        self._rows.update(plan)
        inputs = build_inputs(plan, self._rows)
        failed, forward = {}, self._forward
        if self._adapters is not None:
            failed = self._adapters.begin(inputs, self._rows)
            if self._adapters.in_use:
                forward = self._eager_forward  # graphs know no adapters
        hidden = forward(inputs.input_ids, inputs.positions, inputs.attention)
        if not self._pp.is_last:
            nothing = PromptLogprobs([], [])
            return LaunchedStep(plan, [], None, nothing, {}, self._copies, failed)
        of_prompts = prompt_logprobs(hidden, inputs, self._rows, self._compute_logits)
        pooled = {}
        if self._rows.pooling:
            pooled = pool_states(hidden, inputs, self._rows, self._finish_pooled)
            inputs.samples[list(pooled)] = False  # they end with a vector in place of a token
        sampling, last_tokens, positions = inputs.sampled_rows()
        sampled = None
        if len(sampling):
            masked = None
            if plan.constrained:
                assert masks is not None
                masked = masked_rows(np.flatnonzero(np.isin(sampling, plan.constrained)), masks)
            of_rows = hidden[to_device(last_tokens, self.device)]
            sampled = self._sample(of_rows, inputs.rows[sampling], positions, masked)
        step = LaunchedStep(
            plan, sampling.tolist(), sampled, of_prompts, pooled, self._copies, failed
        )
        if self._draft is not None:
            self._draft.forget_written(inputs)
            if any(entry.num_proposals for entry in plan.scheduled):
                self._draft.propose(plan, inputs, step.wait())
        return step

    def take_tokens(
        self,
        request_ids: Sequence[int],
        positions: Sequence[int],
        token_ids: Sequence[Sequence[int]],
    ) -> None:
        """Takes in tokens that the last pipeline stage drew, for a stage before it; `positions` are
        those of each request's first one. Requests that are gone by now are left out."""
        for request_id, position, tokens in zip(request_ids, positions, token_ids, strict=True):
            if request_id in self._rows:
                row = self._rows.find([request_id]).repeat(len(tokens))
                at = np.arange(position, position + len(tokens))
                self._rows.append(row, at, torch.tensor(tokens, device=self.device))

    def _sample(
        self,
        hidden: torch.Tensor,
        rows: IntArray,
        positions: IntArray,
        masked: Callable[[], MaskedRows] | None,
    ) -> Sampled:
        """Draws a token for each of `hidden` [num_rows, hidden_size] and writes it to its place in
        the state row, where the next step finds it."""
        logits = self._compute_logits(hidden)
        sampled = sample_tokens(logits, self._rows, rows, positions, masked)
        self._rows.append(rows, positions, sampled.token_ids)
        return sampled

    def _compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return raw_logits(self._model.compute_logits(hidden), self._num_tokens)

    def _finish_pooled(self, state: torch.Tensor, token_ids: list[int]) -> torch.Tensor:
        """A pooled state's vector: its scores, its logits of these tokens, or itself."""
        if self._model.score is not None:
            return self._model.score(state)
        return self._compute_logits(state)[:, token_ids] if token_ids else state


def _load_model(
    config: ModelConfig,
    weights: Iterable[tuple[str, StoredTensor]] | None,
    dtype: torch.dtype,
    device: torch.device,
    ranks: Ranks,
    packings: tuple[Packing, Packing] | None,
    lora: LoraBatch | None = None,
    *,
    quantization: Quantization,
) -> CausalLM:
    try:
        with out_of_memory_named(
            device, "the weights", "Take a smaller model, or more --tensor-parallel-size"
        ):
            packing, head_packing = packings or (None, None)
            model = build_model(
                config,
                dtype,
                device,
                ranks,
                packing,
                head_packing,
                lora,
                # On a CPU without its library such weights would be widened every step.
                keep_quantized=device.type == "cuda" and quantization == "auto",
                rounding=_rounding(quantization, device),
            )
            if weights is None:
                model.init_dummy()
            else:
                model.load_weights(weights)
    except ValueError as error:
        raise ConfigurationError(str(error)) from error
    return model


def _rounding(quantization: Quantization, device: torch.device) -> Literal["int8", "fp8"] | None:
    """What a GPU rounds the weights of linear layers to as it loads them."""
    if device.type != "cuda" or quantization not in ("int8", "fp8"):
        return None
    return "int8" if quantization == "int8" else "fp8"


def _choose_kv_dtype(asked: KVCacheDType, dtype: torch.dtype, *, recorded: bool) -> torch.dtype:
    """`dtype` is that of activations; `recorded` says that the CPU library runs the model."""
    if asked == "auto":
        return dtype
    if recorded:
        return getattr(torch, asked)  # type: ignore[no-any-return]
    raise ConfigurationError(
        f"--kv-cache-dtype {asked} needs the CPU library, which does not run this model here; "
        "leave --kv-cache-dtype out"
    )


def _make_kv_cache(
    layout: KVLayout,
    layers: range,
    num_blocks: int,
    page_shape: tuple[int, int, int],
    dtype: torch.dtype,
    device: torch.device,
) -> dict[int, KVBinding]:
    """The pages of each of a stage's layers. Not zeroed, so that on a CPU they take memory when
    they are used."""
    shape = (2, num_blocks, *page_shape)
    num_bytes = math.prod(shape) * dtype.itemsize
    slots = [
        empty_bytes(num_bytes).view(dtype).view(shape)
        if device.type == "cpu"
        else torch.empty(shape, dtype=dtype, device=device)
        for _ in range(layout.num_slots)
    ]
    places = {layer: layout.place(layer) for layer in layers}
    return {layer: KVBinding(slots[slot], group) for layer, (group, slot) in places.items()}
