"""Runs steps: state rows, forward pass, sampling."""

import contextlib
import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import torch

from pagelet.engine.kv.spec import stage_layout
from pagelet.engine.layers.context import ALONE, Ranks
from pagelet.engine.layers.lora import LoraBatch
from pagelet.engine.layers.pipeline import stage_layers
from pagelet.engine.model_config import ModelConfig
from pagelet.engine.runner.adapters import Adapters
from pagelet.engine.runner.cpu_forward import (
    QUANTIZED_FORMATS,
    CpuForward,
    compile_kernels,
    describe_kernels,
    limit_threads,
    why_not_recorded,
)
from pagelet.engine.runner.device import (
    check_kernels_run,
    choose_device,
    choose_dtype,
    to_device,
)
from pagelet.engine.runner.draft_model import (
    DraftModel,
    DraftSource,
    LoadedDraft,
    check_draft,
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
from pagelet.engine.runner.kv_pages import PageCopier, PageShape, kv_dtype_name, kv_layout
from pagelet.engine.runner.load_model import Weights, load_model
from pagelet.engine.runner.masks import MaskedRows, masked_rows
from pagelet.engine.runner.memory import (
    OtherNeeds,
    activation_bytes,
    adapter_bytes,
    count_blocks,
    out_of_memory_named,
    read_device_memory,
)
from pagelet.engine.runner.plain_decode import PlainDecode
from pagelet.engine.runner.pooling import pool_states
from pagelet.engine.runner.prompt_logprobs import PromptLogprobs, prompt_logprobs
from pagelet.engine.runner.results import EndedStep, Launched, LaunchedStep, make_copies
from pagelet.engine.runner.sampler import Sampled, raw_logits, sample_tokens
from pagelet.engine.runner.state import IntArray, RequestRows
from pagelet.engine.runner.worst_step import (
    NUM_BLOCKS,
    measurable,
    peak_bytes,
    warm_up_sizes,
    worst_step,
)
from pagelet.engine.step import (
    MAX_DRAFT_TOKENS,
    NewRequestData,
    RunnerInfo,
    RunnerOutput,
    SchedulerOutput,
    TokenMasks,
)
from pagelet.kernels.lora.adapters import MANY_ROWS
from pagelet.protocol.config import EngineOptions, SchedulerOptions


class ModelRunner:
    """One rank's model, KV cache and state rows."""

    _forward: Forward
    _adapted_forward: Forward
    """Of steps with adapters."""

    def __init__(
        self,
        options: EngineOptions,
        config: ModelConfig,
        weights: Weights | None,
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
        tp, pp = ranks.tp, ranks.pp
        self._pp = pp
        self.device = choose_device(options.device, device_index)
        check_kernels_run(self.device)
        self.dtype = choose_dtype(options.model, config.checkpoint_dtype, self.device)
        compile_kernels(self.device, stage)
        limit_threads(options.cpu, tp.size * pp.size, self.device)
        self._options, self._max_model_len = options, max_model_len
        lora = self._make_lora()
        self._loaded = load_model(
            config,
            weights,
            options,
            options.model.quantization,
            dtype=self.dtype,
            device=self.device,
            ranks=ranks,
            lora=lora,
        )
        self._model = self._loaded.model
        self._adapters = None if lora is None else Adapters(self._model, lora)
        stage("making the KV cache")
        block_size = options.cache.block_size
        self._layers = stage_layers(config.num_layers, pp.stage, pp.size)
        self._page = PageShape.of(config, block_size, self._loaded.kv_dtype, tp.size)
        self.layout = stage_layout(kv_layout(config, self._page), self._layers)
        own_bytes = self._model.weight_bytes
        self._draft: DraftModel | None = None
        self._plain_decode: PlainDecode | None = None
        loaded_draft: LoadedDraft | None = None
        if draft is not None:
            check_draft(draft.config, self.layout, max_model_len)
            loaded_draft = LoadedDraft.load(draft, options, self.dtype, self.device)
            block_bytes = loaded_draft.layout.block_bytes
            self.layout = dataclasses.replace(self.layout, draft_bytes=block_bytes)
            own_bytes += loaded_draft.loaded.model.weight_bytes
        self._rows = RequestRows(
            options.scheduler.max_num_seqs, max_model_len, block_size, self.layout, self.device
        )
        self._copies = make_copies(self.device)
        graphs = graphs or make_graph_backend(options.cuda, self.device)
        if pp.size > 1:
            graphs = None
        sizes: list[int] = []
        if graphs is not None:
            sizes = choose_capture_sizes(
                options.cuda.cudagraph_capture_sizes, options.scheduler.max_num_seqs
            )
        adapted_sizes = [] if lora is None else [size for size in sizes if size <= MANY_ROWS]
        if measurable(self.device):
            activations = self._measure_needs(sizes + adapted_sizes, stage)
        else:
            activations = activation_bytes(config, options, max_model_len, self.dtype)
        fitting = count_blocks(
            options.cache,
            read_device_memory(self.device, own_bytes, options.cpu),
            OtherNeeds(activations, adapter_bytes(config, options.lora, self.dtype)),
            self.layout,
            max_model_len,
            self.device.type,
        )
        # The ranks share one block table, so the one with the least memory decides.
        self.num_blocks = ranks.least(fitting)
        self._use_cache(self.num_blocks)
        if isinstance(self._forward, CpuForward) and draft is None:
            self._plain_decode = self._forward.plain_decode(self._rows, self._num_tokens)
        if graphs is not None:
            self._forward = self._captured(graphs, sizes, stage)
            if lora is not None and adapted_sizes:
                with lora.captured():
                    self._adapted_forward = self._captured(graphs, adapted_sizes, stage)
        if loaded_draft is not None:
            self._draft = DraftModel(
                loaded_draft,
                self._rows,
                self.layout,
                self.num_blocks,
                config.vocab_size,
                options,
                max_model_len,
            )
            if measurable(self.device):
                stage("compiling the draft model's kernels")
                self._warm_up(self._draft.rehearse)
        self.info = self._describe(activations)

    def _make_lora(self) -> LoraBatch | None:
        """Where layers learn of a step's adapters, if requests may have any."""
        options = self._options
        if not options.lora.enabled:
            return None
        return LoraBatch(
            options.lora.max_cpu_loras,
            options.lora.max_rank,
            options.scheduler.max_num_batched_tokens,
            self.device,
        )

    def _use_cache(self, num_blocks: int) -> None:
        """Steps run on a new KV cache of so many blocks from now on, and without graphs."""
        self._kv = self._page.allocate(self.layout, self._layers, num_blocks, self.device)
        self._copier = PageCopier(self._kv)
        self._eager_forward = self._forward = self._adapted_forward = self._loaded.bind(
            self._kv, len(self.layout.groups), self._options, self._max_model_len
        )

    def _measure_needs(self, graph_sizes: Sequence[int], stage: Callable[[str], None]) -> int:
        """Bytes that the largest step needs beside weights and KV cache, and graphs of these batch
        sizes; has kernels compiled meanwhile. All ranks run it."""
        self._use_cache(NUM_BLOCKS)
        with contextlib.nullcontext() if self._adapters is None else self._adapters.rehearsed():
            stage("measuring the largest step")
            needs = self._measure_worst_step()
            stage("compiling kernels")
            self._warm_up(self.execute)
            if graph_sizes:
                max_blocks = -(-self._max_model_len // self._options.cache.block_size)
                ladders = 1 if self._adapters is None else 2
                row_bytes = 4 * max_blocks * len(self.layout.groups) * ladders
                largest = self._measure_decode(max(graph_sizes))
                needs += graph_bytes(graph_sizes, largest, row_bytes)
        return needs

    def _captured(
        self, graphs: GraphBackend, sizes: Sequence[int], stage: Callable[[str], None]
    ) -> GraphForward:
        """The forward pass with its decode steps replayed from graphs of these batch sizes."""
        return GraphForward(
            self._eager_forward,
            graphs,
            sizes,
            num_groups=len(self.layout.groups),
            block_size=self._options.cache.block_size,
            max_model_len=self._max_model_len,
            device=self.device,
            stage=stage,
        )

    def _describe(self, activations: int) -> RunnerInfo:
        """What this runs on; `activations` are the bytes that the largest step needs."""
        options, formats = self._options, self._model.linear_formats
        config, block_size = self._model.config, options.cache.block_size
        on_gpu = self.device.type == "cuda"
        return RunnerInfo(
            device=self.device.type,
            dtype=str(self.dtype).removeprefix("torch."),
            kv_cache_dtype=kv_dtype_name(self._loaded.kv_dtype),
            quantization=options.model.quantization if formats & QUANTIZED_FORMATS else "none",
            kernels=describe_kernels(
                formats,
                why_not_recorded(self.device, self.dtype, config.head_dim, block_size),
                self.device,
            )
            + describe_graphs(self._forward),
            held_bytes=torch.cuda.memory_allocated(self.device) if on_gpu else 0,
            step_bytes=activations if on_gpu else 0,
        )

    @torch.inference_mode()
    def _measure_decode(self, size: int) -> int:
        """Bytes that the layers need for a decode step of so many requests. All ranks run it."""
        scheduler = SchedulerOptions(max_num_seqs=size, max_num_batched_tokens=size)
        plan, after = worst_step(
            scheduler, self._max_model_len, self.layout, self._options.cache.block_size
        )
        self._rows.update(plan)
        inputs = build_inputs(plan, self._rows)
        peak = peak_bytes(
            lambda: self._forward(inputs.input_ids, inputs.positions, inputs.attention),
            self.device,
        )
        self._rows.update(after)
        return peak

    def _warm_up(self, run: Callable[[SchedulerOutput], object]) -> None:
        """Has kernels compiled for steps of all sizes, and for a decode of a short context, which
        attention does not split. All ranks do it."""
        limits, longest = self._options.scheduler, max(1, self._max_model_len - 1)
        steps = [
            (min(limits.max_num_seqs, -(-tokens // longest)), tokens, self._max_model_len)
            for tokens in warm_up_sizes(limits.max_num_batched_tokens)
        ]
        for requests, tokens, max_model_len in [*steps, (1, 1, 1)]:
            scheduler = SchedulerOptions(max_num_seqs=requests, max_num_batched_tokens=tokens)
            plan, after = worst_step(
                scheduler, max_model_len, self.layout, self._options.cache.block_size
            )
            run(plan)
            self._rows.update(after)

    def _measure_worst_step(self) -> int:
        """What the largest step needs beside weights and KV cache, in bytes. All ranks run it."""
        options = self._options
        plan, after = worst_step(
            options.scheduler,
            self._max_model_len,
            self.layout,
            options.cache.block_size,
            drafts=MAX_DRAFT_TOKENS,
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

    @property
    def asynchronous(self) -> bool:
        """Whether a launched step still runs, on the device, when `launch` has returned."""
        return self._copies.asynchronous

    def execute(
        self, plan: SchedulerOutput, masks: Callable[[], TokenMasks] | None = None
    ) -> RunnerOutput:
        """Runs one step and returns what it brought, in the plan's order; as `launch`."""
        return self.launch(plan, masks).result()

    def launch(
        self, plan: SchedulerOutput, masks: Callable[[], TokenMasks] | None = None
    ) -> Launched:
        """Queues one step's operations on the device, after those of the steps before. `masks`
        waits for those of a plan with `constrained` requests."""
        self._rows.update(plan)
        if plan.new_requests:
            self._copy_blocks(plan.new_requests)
        if self._is_plain_decode(plan):
            assert self._plain_decode is not None
            if not self._rows.look_at_logits:
                return EndedStep(self._plain_decode.run(plan, masks))
            return self._draw(plan, *self._plain_decode.compute_logits(plan), masks)
        return self._queue(plan, masks)

    @torch.inference_mode()
    def _draw(
        self,
        plan: SchedulerOutput,
        logits: torch.Tensor,
        rows: IntArray,
        positions: IntArray,
        masks: Callable[[], TokenMasks] | None,
    ) -> LaunchedStep:
        """The end of a step that draws a token for each of its requests."""
        every = range(len(plan.scheduled))
        masked = self._masked(plan, np.array(every), masks)
        sampled = self._sample(raw_logits(logits, self._num_tokens), rows, positions, masked)
        nothing = PromptLogprobs([], [])
        return LaunchedStep(plan, every, sampled, nothing, {}, self._copies, {})

    def _copy_blocks(self, requests: Sequence[NewRequestData]) -> None:
        pairs = [pair for data in requests for pair in data.copied_blocks]
        if pairs:
            self._copier.copy(pairs)
            if self._draft is not None:
                self._draft.copy_blocks(pairs)

    @torch.inference_mode()
    def _queue(self, plan: SchedulerOutput, masks: Callable[[], TokenMasks] | None) -> LaunchedStep:
        inputs = build_inputs(plan, self._rows)
        failed, forward = {}, self._forward
        if self._adapters is not None:
            failed = self._adapters.begin(inputs, self._rows)
            if self._adapters.in_use:
                forward = self._adapted_forward
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
            of_rows = hidden
            if len(last_tokens) < len(hidden):
                of_rows = hidden[to_device(last_tokens, self.device)]
            sampled = self._sample(
                self._compute_logits(of_rows),
                inputs.rows[sampling],
                positions,
                self._masked(plan, sampling, masks),
            )
        step = LaunchedStep(
            plan, sampling.tolist(), sampled, of_prompts, pooled, self._copies, failed
        )
        if self._draft is not None:
            self._draft.forget_written(inputs)
            if any(entry.num_proposals for entry in plan.scheduled):
                self._draft.propose(plan, inputs, step.wait())
        return step

    def _is_plain_decode(self, plan: SchedulerOutput) -> bool:
        if self._plain_decode is None or not self._plain_decode.takes(plan):
            return False
        return self._adapters is None or not (self._rows.adapters or self._adapters.in_use)

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

    @staticmethod
    def _masked(
        plan: SchedulerOutput, sampling: IntArray, masks: Callable[[], TokenMasks] | None
    ) -> Callable[[], MaskedRows] | None:
        """What waits for the masks of those of a plan's requests that draw tokens, if any have
        some."""
        if not plan.constrained:
            return None
        assert masks is not None
        return masked_rows(np.flatnonzero(np.isin(sampling, plan.constrained)), masks)

    def _sample(
        self,
        logits: torch.Tensor,
        rows: IntArray,
        positions: IntArray,
        masked: Callable[[], MaskedRows] | None,
    ) -> Sampled:
        """Draws a token for each of `logits` [num_rows, vocab_size] and writes it to its place in
        the state row, where the next step finds it."""
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
