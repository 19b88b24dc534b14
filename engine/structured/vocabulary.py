"""A model's tokens as the grammar libraries need them."""

import dataclasses
from collections.abc import Callable, Sequence

from pagelet.engine.model_config import ModelConfig
from pagelet.text.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """What every token stands for. A mask has a bit for each of the `size` ids."""

    tokens: Sequence[bytes]
    """Exact bytes by token id; empty for an id that has no token."""
    special_ids: Sequence[int]
    """Tokens that are no text: a grammar allows them only by name."""
    eos_token_ids: Sequence[int]
    """What ends an answer, at least one."""
    encode: Callable[[str], list[int]]
    """The model's own way to cut a text into tokens."""

    @property
    def size(self) -> int:
        """Token ids, from 0 on."""
        return len(self.tokens)


def make_vocabulary(config: ModelConfig, tokenizer: Tokenizer) -> Vocabulary:
    """The tokens that the model can draw. The work of a tenth of a second or several."""
    size = min(config.vocab_size, tokenizer.max_token_id + 1)
    return Vocabulary(
        tokens=[tokenizer.token_text(token_id)[1] for token_id in range(size)],
        special_ids=sorted(token_id for token_id in tokenizer.special_ids if token_id < size),
        eos_token_ids=eos_token_ids(config, tokenizer),
        encode=lambda text: tokenizer.encode(text, add_special_tokens=False),
    )


def eos_token_ids(config: ModelConfig, tokenizer: Tokenizer) -> list[int]:
    """Tokens that end an answer: the model's, then the tokenizer's own."""
    own = () if tokenizer.eos_token_id is None else (tokenizer.eos_token_id,)
    return [
        token_id
        for token_id in dict.fromkeys((*config.eos_token_ids, *own))
        if 0 <= token_id < config.vocab_size
    ]
