"""Picks the executor that the options ask for. Imports torch only where this process needs it."""

import os
from collections.abc import Callable

from pagelet.engine.errors import ConfigurationError
from pagelet.engine.executor.base import Executor
from pagelet.engine.executor.nodes import check_nodes
from pagelet.engine.layers.pipeline import check_pipeline
from pagelet.engine.layers.tensor_parallel import check_tensor_parallel
from pagelet.engine.model_config import ModelConfig
from pagelet.engine.source import ModelFiles
from pagelet.protocol.config import EngineOptions


def make_executor(
    options: EngineOptions,
    files: ModelFiles,
    config: ModelConfig,
    max_model_len: int,
    stage: Callable[[str], None] = lambda text: None,
    num_real_tokens: int | None = None,
) -> Executor:
    """Loads the model in this process, or in one worker a rank; `stage` is told how far it is.
    `num_real_tokens` is the tokenizer's size, where the vocabulary is padded beyond
    it. Raises `ConfigurationError` or `ExecutorFailed`.
    """
    if options.speculation is not None and config.pooling is not None:
        raise ConfigurationError(
            "--speculative-config is for models that generate, and this one does not: leave it out"
        )
    drafts = options.speculation is not None and options.speculation.method == "draft_model"
    if options.runner == "simulated":
        if config.pooling is not None:
            raise ConfigurationError("--runner simulated only generates: give --task generate")
        from pagelet.engine.runner.simulated import SimulatedExecutor

        if drafts:
            raise ConfigurationError(
                "the simulated runner runs no draft model: take the method ngram, or none"
            )
        windows = [config.window(layer) for layer in range(config.num_layers)]
        asked = options.cache.num_blocks
        blocks = {} if asked is None else {"num_blocks": asked}
        return SimulatedExecutor(options.simulated, config.vocab_size, windows, **blocks)
    parallel = options.parallel
    if parallel.num_ranks > 1 or parallel.enable_expert_parallel or parallel.nnodes > 1:
        try:
            check_tensor_parallel(
                config,
                parallel.tensor_parallel_size,
                expert_parallel=parallel.enable_expert_parallel,
            )
            check_pipeline(config, parallel.pipeline_parallel_size)
            check_nodes(parallel)
        except ValueError as error:
            raise ConfigurationError(str(error)) from error
        from pagelet.engine.executor.multiproc import MultiprocExecutor

        return MultiprocExecutor(options, files, config, max_model_len, stage, num_real_tokens)
    # Read when torch is first imported. Threads that spin while they wait for one another stall for
    # milliseconds an operation on a machine that does anything else.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        from pagelet.engine.executor.inproc import InprocExecutor
        from pagelet.engine.executor.load import load_runner
    except ValueError as error:  # PAGELET_KERNELS, which operations read when they are imported
        raise ConfigurationError(str(error)) from error

    return InprocExecutor(
        lambda: load_runner(options, files, config, max_model_len, stage, num_real_tokens)
    )
