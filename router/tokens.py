"""Turns requests into token ids and block hashes as their replicas do, off the event loop.

The tokenizer and the template come from a replica, named by their digest, so that a router needs
no files of any model. What cannot be tokenised here, for whatever reason, goes to a replica as it
is, which says what is wrong with it.
"""

import asyncio
import dataclasses
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Generic, TypeVar

import msgspec
from pydantic import ValidationError

from pagelet.protocol.block_hash import ExtraKey, hash_blocks
from pagelet.protocol.errors import InvalidRequest, ModelSourceError
from pagelet.protocol.openai.chat import ChatCompletionRequest
from pagelet.protocol.openai.completions import CompletionRequest
from pagelet.router.replicas.replica import Replica
from pagelet.router.tenants.shared_prefix import SharedPrefixes
from pagelet.router.upstream.connection import Headers, UpstreamError
from pagelet.text.bundle import decode_bundle
from pagelet.text.prompts import PromptEncoder

_log = logging.getLogger(__name__)

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"

_MOST_CACHED_BYTES: Final = 64 << 20
_NUM_THREADS: Final = 2
_FETCH_SECONDS: Final = 30.0

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


class _Cache(Generic[T]):
    """The values used last, within a number of bytes."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._bytes = 0
        self._values: OrderedDict[bytes, tuple[T, int]] = OrderedDict()

    def get(self, key: bytes) -> T | None:
        if (entry := self._values.get(key)) is None:
            return None
        self._values.move_to_end(key)
        return entry[0]

    def put(self, key: bytes, value: T, size: int) -> None:
        self._bytes -= self._values.pop(key, (value, 0))[1]
        self._values[key] = value, size
        self._bytes += size
        while self._bytes > self._most:
            _, (_, gone) = self._values.popitem(last=False)
            self._bytes -= gone


class Tokeniser:
    """For one pool. `shared_prefixes` are texts, as the chat template spells them."""

    def __init__(self, shared_prefixes: Sequence[str]) -> None:
        self._shared_texts = shared_prefixes
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="tokenise")
        self._cache: _Cache[Prompts] = _Cache(_MOST_CACHED_BYTES)
        self._digest: str | None = None
        self._block_size = 0
        self._encoder: PromptEncoder | None = None
        self._shared = SharedPrefixes([])

    @property
    def digest(self) -> str | None:
        """Of the tokenizer in use; None while there is none."""
        return self._digest

    async def load(self, bundle: bytes, digest: str, block_size: int) -> None:
        """Takes a tokenizer into use. A bundle that cannot be used is only logged: then replicas
        tokenise."""
        try:
            encoder, shared = await self._in_thread(lambda: self._load(bundle))
        except (ModelSourceError, InvalidRequest, msgspec.MsgspecError) as error:
            _log.warning("the replicas' tokenizer cannot be used here: %s", error)
            return
        self._cache = _Cache(_MOST_CACHED_BYTES)
        self._encoder, self._shared = encoder, shared
        self._digest, self._block_size = digest, block_size

    def _load(self, bundle: bytes) -> tuple[PromptEncoder, SharedPrefixes]:
        encoder = decode_bundle(bundle).load()
        shared = [encoder.tokenizer.encode(text, False) for text in self._shared_texts]
        return encoder, SharedPrefixes(shared)

    async def tokenise(self, path: str, body: bytes, salt: str | None) -> Prompts | None:
        """The prompts of a request to `path` (`CHAT` or `COMPLETIONS`); None if that is a replica's
        business."""
        encoder = self._encoder
        if encoder is None:
            return None
        key = hashlib.sha256(b"\0".join((path.encode(), repr(salt).encode(), body))).digest()
        if (known := self._cache.get(key)) is not None:
            return known
        try:
            prompts = await self._in_thread(lambda: self._tokenise(encoder, path, body, salt))
        except (InvalidRequest, ValidationError):
            return None
        size = len(prompts.ids_json) + 64 * len(prompts.block_hashes) + 256
        self._cache.put(key, prompts, size)
        return prompts

    def _tokenise(
        self, encoder: PromptEncoder, path: str, data: bytes, salt: str | None
    ) -> Prompts:
        if path == CHAT:
            chat = ChatCompletionRequest.model_validate_json(data)
            messages = [message.for_template() for message in chat.messages]
            prompts = [encoder.encode_chat(messages, **chat.template_options())]
        else:
            request = CompletionRequest.model_validate_json(data)
            special = request.add_special_tokens is not False
            prompts = [
                encoder.encode(prompt, special) if isinstance(prompt, str) else prompt
                for prompt in request.prompts()
            ]
        shared = min(self._shared.num_tokens(prompt) for prompt in prompts)
        extras: list[ExtraKey] = [] if salt is None else [("salt", salt)]
        assert self._digest is not None
        return Prompts(
            self._digest,
            msgspec.json.encode(prompts),
            sum(map(len, prompts)),
            hash_blocks(prompts[0], self._block_size, extras, shared),
            shared,
        )

    async def _in_thread(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)

    def close(self) -> None:
        """Ends the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)


async def fetch_tokenizer(replica: Replica, headers: Headers) -> bytes:
    """A replica's `TokenizerBundle`. Raises `UpstreamError`."""
    response = await replica.upstream.send("GET", "/v1/tokenizer", headers, seconds=_FETCH_SECONDS)
    try:
        bundle = await response.read_all(_FETCH_SECONDS)
    finally:
        response.close()
    if response.status != 200:
        raise UpstreamError(f"HTTP {response.status} for /v1/tokenizer")
    return bundle
