"""Whether two models speak of the same tokens."""

from pagelet.engine.errors import ConfigurationError
from pagelet.text.tokenizer import Tokenizer


def check_vocabulary(model: Tokenizer, draft: Tokenizer) -> None:
    """Raises `ConfigurationError` if a token of the model is another one of the draft model, which
    could then guess right by chance only."""
    for token_id in range(model.max_token_id + 1):
        ours, theirs = model.token_text(token_id)[1], draft.token_text(token_id)[1]
        if ours != theirs:
            raise ConfigurationError(
                f"the draft model has another vocabulary: its token {token_id} is {theirs!r}, and "
                f"that of the model {ours!r}. Take a draft model of the same family"
            )
