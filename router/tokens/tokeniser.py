"""Turns requests into token ids and block hashes as their replicas do, off the event loop.

The tokenizer and the template come from a replica, named by their digest, so that a router needs
no files of any model. What cannot be tokenised here, for whatever reason, goes to a replica as it
is, which says what is wrong with it.

Everything that is remembered is remembered for one cache salt, and so one tenant: how long the
router takes must not tell what others have sent, either.
"""

import asyncio
import dataclasses
import hashlib
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

import msgspec

from pagelet.protocol.block_hash import ExtraKey, hash_blocks
from pagelet.protocol.errors import InvalidRequest, ModelSourceError
from pagelet.protocol.openai.chat import ChatCompletionRequest
from pagelet.protocol.openai.completions import CompletionRequest
from pagelet.protocol.openai.errors import ApiError
from pagelet.protocol.openai.parse import parse
from pagelet.router.tenants.shared_prefix import SharedPrefixes
from pagelet.router.tokens.cache import WeightedCache
from pagelet.router.tokens.segments import SegmentEncoder
from pagelet.text.bundle import decode_bundle
from pagelet.text.prompts import PromptEncoder

_log = logging.getLogger(__name__)

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"

_PROMPT_BYTES: Final = 64 << 20
_SEGMENT_BYTES: Final = 64 << 20
_NUM_THREADS: Final = 2
_SHOWN: Final = 60
"""Most characters of a declared prefix that a log line repeats."""
_NOT_OF_THE_PROMPT: Final = (
    *("model", "stream", "stream_options", "n", "best_of", "max_tokens", "max_completion_tokens"),
    *("temperature", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids", "logit_bias"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "logprobs", "top_logprobs"),
    *("user", "metadata", "request_id", "priority", "safety_identifier", "prompt_cache_key"),
)
"""Fields that change no prompt: it is known again with other values of them."""

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class Prompts:
    """The prompts of one request."""

    tokenizer: str
    """Digest of the tokenizer that made them."""
    ids_json: bytes
    """`[[1,2,3]]`: the field `pagelet.prompt_token_ids`."""
    num_tokens: int
    """Of all of them."""
    block_hashes: Sequence[bytes]
    """Of the first, by which the request is routed."""
    shared_tokens: int
    """How many first tokens of all of them lie in a declared shared prefix."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Loaded:
    """One tokenizer, and what was made with it."""

    digest: str
    block_size: int
    encoder: PromptEncoder
    shared: SharedPrefixes
    segments: SegmentEncoder
    prompts: WeightedCache[bytes, Prompts]


class Tokeniser:
    """For one pool. `shared_prefixes` are texts, as the chat template spells them."""

    def __init__(self, shared_prefixes: Sequence[str]) -> None:
        self._shared_texts = shared_prefixes
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="tokenise")
        self._loaded: _Loaded | None = None
        self.tried: str | None = None
        """Digest of the bundle that was loaded last, or could not be."""

    @property
    def digest(self) -> str | None:
        """Of the tokenizer in use; None while there is none."""
        return None if self._loaded is None else self._loaded.digest

    async def load(self, bundle: bytes, digest: str, block_size: int) -> None:
        """Takes a tokenizer into use. A bundle that cannot be used is only logged: then replicas
        tokenise."""

        def load() -> _Loaded:
            encoder = decode_bundle(bundle).load()
            shared = [encoder.tokenizer.encode(text, False) for text in self._shared_texts]
            for text, tokens in zip(self._shared_texts, shared, strict=True):
                if len(tokens) < block_size:
                    _log.warning(
                        "a shared prefix of %d tokens is not shared, which takes a block of %d: "
                        "declare a longer text than %r",
                        *(len(tokens), block_size, text[:_SHOWN]),
                    )
            segments = SegmentEncoder(encoder.tokenizer, _SEGMENT_BYTES)
            prompts: WeightedCache[bytes, Prompts] = WeightedCache(_PROMPT_BYTES)
            return _Loaded(digest, block_size, encoder, SharedPrefixes(shared), segments, prompts)

        self.tried = digest
        try:
            self._loaded = await self._in_thread(load)
        except (ModelSourceError, InvalidRequest, msgspec.MsgspecError) as error:
            _log.warning("the replicas' tokenizer cannot be used here: %s", error)

    async def tokenise(
        self, path: str, body: bytes, salt: str | None, adapter: str | None = None
    ) -> Prompts | None:
        """The prompts of a request to `path` (`CHAT` or `COMPLETIONS`), for an adapter of that
        digest; None if that is a replica's business."""
        loaded = self._loaded
        if loaded is None:
            return None
        key = _key(path, body, salt, adapter)
        known = loaded.prompts.get(key)
        if known is not None:
            return known
        try:
            prompts = await self._in_thread(lambda: _tokenise(loaded, path, body, salt, adapter))
        except (InvalidRequest, ApiError):
            return None
        weight = len(prompts.ids_json) + 64 * len(prompts.block_hashes) + 256
        loaded.prompts.put(key, prompts, weight)
        return prompts

    async def _in_thread(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)

    def close(self) -> None:
        """Ends the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _key(path: str, body: bytes, salt: str | None, adapter: str | None) -> bytes:
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    for name in _NOT_OF_THE_PROMPT:
        fields.pop(name, None)
    return hashlib.sha256(msgspec.json.encode([path, salt, adapter, fields])).digest()


def _tokenise(
    loaded: _Loaded, path: str, body: bytes, salt: str | None, adapter: str | None
) -> Prompts:
    encoder = loaded.encoder
    if path == CHAT:
        chat = parse(body, ChatCompletionRequest)
        messages = [message.for_template() for message in chat.messages]
        text = encoder.render_chat(messages, **chat.template_options())
        if chat.add_special_tokens:  # which may go anywhere: of the whole text, not of its pieces
            prompts = [encoder.encode(text)]
        else:
            encoder.check_length(text)
            prompts = [loaded.segments.encode(text, salt)]
    else:
        request = parse(body, CompletionRequest)
        special = request.add_special_tokens is not False
        prompts = [
            encoder.encode(prompt, special) if isinstance(prompt, str) else prompt
            for prompt in request.prompts()
        ]
    shared = min(loaded.shared.num_tokens(prompt) for prompt in prompts)
    extras: list[ExtraKey] = [] if adapter is None else [("adapter", adapter)]
    extras += [] if salt is None else [("salt", salt)]
    return Prompts(
        tokenizer=loaded.digest,
        ids_json=msgspec.json.encode(prompts),
        num_tokens=sum(map(len, prompts)),
        block_hashes=hash_blocks(prompts[0], loaded.block_size, extras, shared),
        shared_tokens=shared,
    )
