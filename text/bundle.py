"""A model's tokenizer and chat template as one JSON object, so that a router tokenises exactly as
its replicas do, with no model files of its own."""

import hashlib
from typing import Self

import msgspec
import tokenizers

from pagelet.protocol.errors import ModelSourceError
from pagelet.text.chat_template import ChatTemplate
from pagelet.text.prompts import PromptEncoder
from pagelet.text.tokenizer import Tokenizer


class EncodedBundle(msgspec.Struct, frozen=True):
    """A bundle as it is sent."""

    data: bytes
    digest: str
    """SHA-256 of `data` in hexadecimal digits: its name, and its ETag."""


class TokenizerBundle(msgspec.Struct, kw_only=True):
    """Everything that decides which token ids a prompt becomes, and whether they are accepted.

    The text of `/v1/completions` is encoded with what the tokenizer puts around a text (such as
    BOS) unless the request has `add_special_tokens: false`; a chat is encoded without, as its
    template spells the special tokens, unless the request has `add_special_tokens: true`. The rest
    is as `PromptEncoder` does it.
    """

    model_name: str
    tokenizer: msgspec.Raw
    """As in the file `tokenizer.json` of Hugging Face's `tokenizers`."""
    special_tokens: dict[str, str]
    """Named ones, such as `bos_token`, as chat templates get them."""
    chat_template: str | None
    """Jinja source of the template in force."""
    num_token_ids: int
    max_model_len: int

    @classmethod
    def of(cls, prompts: PromptEncoder) -> Self:
        """The bundle that `load` makes into the like of `prompts`."""
        tokenizer, template = prompts.tokenizer, prompts.chat_template
        return cls(
            model_name=prompts.model_name,
            tokenizer=msgspec.Raw(tokenizer.backend.to_str().encode()),
            special_tokens=tokenizer.special_tokens,
            chat_template=None if template is None else template.source,
            num_token_ids=prompts.num_token_ids,
            max_model_len=prompts.max_model_len,
        )

    def encode(self) -> EncodedBundle:
        """As JSON; the same bytes for the same model and options."""
        data = msgspec.json.encode(self)
        return EncodedBundle(data, hashlib.sha256(data).hexdigest())

    def load(self) -> PromptEncoder:
        """The tokenizer and the template, ready for use. Raises ModelSourceError if either is not
        valid. Takes a large part of a second for large vocabularies."""
        try:
            backend = tokenizers.Tokenizer.from_buffer(bytes(self.tokenizer))
        except Exception as error:  # `tokenizers` raises no narrower class
            raise ModelSourceError(f"tokenizer of {self.model_name}: {error}") from error
        source = self.chat_template
        return PromptEncoder(
            Tokenizer(backend, special_tokens=self.special_tokens, chat_template=source),
            None if source is None else ChatTemplate(source, self.special_tokens),
            model_name=self.model_name,
            num_token_ids=self.num_token_ids,
            max_model_len=self.max_model_len,
        )


def decode_bundle(data: bytes) -> TokenizerBundle:
    """Reads what `TokenizerBundle.encode` wrote. Raises `msgspec.ValidationError`."""
    return msgspec.json.decode(data, type=TokenizerBundle)
