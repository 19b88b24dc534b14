"""A model's tokenizer: text to token ids and back, on Hugging Face's `tokenizers`."""

from collections.abc import Sequence

import tokenizers

from pagelet.protocol.errors import InvalidRequest
from pagelet.text.detokenizer import Detokenizer, make_detokenizer
from pagelet.text.token_decoding import MAX_TOKEN_ID, TokenDecoding


class Tokenizer:
    """Encodes and decodes.

    `encode` and `encode_batch` release the GIL while they work; a server calls them in a thread.
    Everything else is quick. Ids are those of the vocabulary: a model's embedding may have more
    rows (padding), whose ids decode to nothing.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        special_tokens: dict[str, str] | None = None,
        chat_template: str | None = None,
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        self.backend = backend
        self.special_tokens = special_tokens or {}
        """Named ones, such as `bos_token`, as chat templates get them."""
        self.chat_template = chat_template
        """Jinja source."""
        vocabulary = backend.get_vocab(with_added_tokens=True)
        self.most_characters = max(map(len, vocabulary), default=1)
        """Of text that one token can stand for."""
        ids = set(vocabulary.values())
        self.vocab_size = len(ids)
        """Tokens that really exist."""
        self.max_token_id = max(ids, default=-1)
        self.missing_ids = frozenset(range(self.max_token_id)) - ids
        """Ids up to the largest that have no token; mostly none."""
        self._decoding = TokenDecoding(backend)
        self.special_ids = self._decoding.special_ids
        """Tokens that `skip_special_tokens` leaves out of the text."""
        self.bos_token_id = self._named_id("bos_token")
        self.eos_token_id = self._named_id("eos_token")
        self._texts: dict[int, tuple[str, bytes]] = {}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text, with what the tokenizer puts around one (such as BOS) unless
        `add_special_tokens` is false. Special tokens spelled in the text become those tokens.

        Raises InvalidRequest if the text is no Unicode text (JSON can spell half a surrogate pair).
        """
        return self.encode_batch([text], add_special_tokens)[0]

    def encode_batch(
        self, texts: Sequence[str], add_special_tokens: bool = True
    ) -> list[list[int]]:
        """`encode` of each text, in parallel."""
        # The fast variant leaves out each token's place in the text, a third of the time.
        check_unicode("prompt", *texts)
        encodings = self.backend.encode_batch_fast(list(texts), False, add_special_tokens)
        return [encoding.ids for encoding in encodings]

    def encode_pair(self, first: str, second: str) -> list[int]:
        """Token ids of two texts, joined as the tokenizer does for models that compare them. Raises
        InvalidRequest as `encode`."""
        check_unicode("prompt", first, second)
        return self.backend.encode(first, second).ids

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of all of these tokens. Ids without a token add nothing."""
        known = [token_id for token_id in token_ids if 0 <= token_id <= MAX_TOKEN_ID]
        return self.backend.decode(known, skip_special_tokens)

    def detokenizer(self, skip_special_tokens: bool = True) -> Detokenizer:
        """A fresh incremental decoder for one answer."""
        return make_detokenizer(self._decoding, skip_special_tokens)

    def token_id(self, token: str) -> int | None:
        """Id of a token as the vocabulary spells it."""
        return self.backend.token_to_id(token)

    def token_text(self, token_id: int) -> tuple[str, bytes]:
        """A token alone: its text, where a part of a character shows as U+FFFD, and its exact
        bytes. Special tokens show; an id without a token is empty."""
        found = self._texts.get(token_id)
        if found is None:
            data = self._decoding.token_bytes(token_id)
            found = data.decode(errors="replace"), data
            if data:
                self._texts[token_id] = found
        return found

    def _named_id(self, name: str) -> int | None:
        token = self.special_tokens.get(name)
        return None if token is None else self.token_id(token)


def check_unicode(param: str, *texts: str) -> None:
    """Raises InvalidRequest for a text with half a surrogate pair, which UTF-8 cannot spell."""
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                f"{param} has half a surrogate pair at character {error.start}, "
                "which is no character",
                param,
            ) from error
