"""Options that cannot go together are refused before anything is loaded."""

import dataclasses

import pytest

from pagelet.engine.errors import ConfigurationError
from pagelet.engine.executor.factory import make_executor
from pagelet.engine.model_config import PoolingConfig
from pagelet.protocol.speculation import SpeculationOptions
from support.ranks import LLAMA, NO_FILES, ranks_options

EMBEDS = dataclasses.replace(LLAMA, head="none", pooling=PoolingConfig("embed"))
NGRAM = SpeculationOptions(method="ngram")
DRAFT = SpeculationOptions(method="draft_model", model="some/model")


@pytest.mark.parametrize(
    ("config", "speculation", "stages", "runner", "words"),
    [
        (EMBEDS, NGRAM, 1, "model", "--speculative-config is for models that generate"),
        (EMBEDS, None, 1, "simulated", "only generates"),
        (LLAMA, DRAFT, 1, "simulated", "runs no draft model"),
    ],
)
def test_refused(config, speculation, stages, runner, words):
    options = ranks_options(1, stages)
    options.speculation, options.runner = speculation, runner
    with pytest.raises(ConfigurationError, match=words):
        make_executor(options, NO_FILES, config, 128)
