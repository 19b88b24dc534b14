"""The engine as an asyncio service: what the agent's HTTP handlers call.

Text goes in and text comes out. The engine cores are processes of their own; this side validates
and tokenises (in threads, off the event loop), spreads requests over the data-parallel cores, and
turns their outputs into deltas. It never imports torch.
"""

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self, TypeVar

from pagelet.engine.adapters import AdapterRegistry
from pagelet.engine.beam_search import BeamSearch, check_searchable
from pagelet.engine.beam_stream import BeamStream
from pagelet.engine.core.client import CoreClient
from pagelet.engine.core.foreign_memory import read_foreign_memory
from pagelet.engine.core.heartbeat import HeartbeatReader
from pagelet.engine.errors import ConfigurationError
from pagelet.engine.load_tokenizer import load_tokenizer
from pagelet.engine.model_config import ModelConfig, context_length
from pagelet.engine.observer import EngineObserver
from pagelet.engine.output_processor import OutputProcessor
from pagelet.engine.outputs import EngineAbsent, EngineDead
from pagelet.engine.processor import Processor, RequestedSampling
from pagelet.engine.request_stream import RequestStream
from pagelet.engine.resume import AnswerSoFar
from pagelet.engine.source import ModelFiles, resolve_model, resolve_tokenizer
from pagelet.engine.structured.checker import GrammarChecker, refuse
from pagelet.engine.structured.requested import RequestedGrammar
from pagelet.engine.weights.load_config import load_model_config
from pagelet.protocol.config import EngineOptions
from pagelet.protocol.engine import (
    AbortRequests,
    EngineCoreOutputs,
    EngineCoreReady,
    EngineCoreRequest,
    SchedulerStats,
)
from pagelet.protocol.lora import LoraAdapter
from pagelet.protocol.structured import StructuredOutput
from pagelet.text.bundle import EncodedBundle, TokenizerBundle
from pagelet.text.tokenizer import Tokenizer

T = TypeVar("T")
_ENCODING_THREADS = 2


class _Engine:
    """One data-parallel rank as the load balancer sees it."""

    def __init__(self, client: CoreClient, heartbeat_path: str) -> None:
        self.client = client
        self.heartbeat_path = heartbeat_path
        self.heartbeat = HeartbeatReader(heartbeat_path)
        self.streams: set[RequestStream] = set()
        self.stats = SchedulerStats()

    @property
    def load(self) -> int:
        """Waiting requests weigh four times a running one, as in vLLM's balancer: they mean that
        the rank is full."""
        in_flight = sum(len(stream.request_ids) for stream in self.streams)
        return in_flight + 3 * self.stats.num_waiting


class AsyncLLM:
    """Use `AsyncLLM.connect`."""

    def __init__(
        self,
        options: EngineOptions,
        files: ModelFiles,
        config: ModelConfig,
        tokenizer: Tokenizer,
        observer: EngineObserver,
        step_timeout: float,
    ) -> None:
        self.options = options
        self.config = config
        self.tokenizer = tokenizer
        self.max_model_len = context_length(config, options.model.max_model_len)
        self.served_model_names = options.model.served_model_names or [files.name]
        self.processor = Processor(config, tokenizer, self.max_model_len, files, options.model)
        self.prompts = self.processor.prompts
        self.adapters = AdapterRegistry(config, options.lora)
        self._observer = observer
        self._outputs = OutputProcessor(tokenizer, observer)
        self._engines: list[_Engine] = []
        self._ids = itertools.count(1)
        self._next_engine = itertools.count()
        self._step_timeout = step_timeout
        self._first_ready = asyncio.Event()
        self._broken_off: str | None = None
        self._threads = ThreadPoolExecutor(_ENCODING_THREADS, "tokenizer")
        self._grammars = GrammarChecker(options)
        self._bundle: asyncio.Future[EncodedBundle] | None = None

    @classmethod
    async def connect(
        cls,
        options: EngineOptions,
        socket_paths: Sequence[str],
        heartbeat_paths: Sequence[str],
        observer: EngineObserver | None = None,
        step_timeout: float = 60.0,
    ) -> Self:
        """Loads the tokenizer and connects to the cores, which may come up later and come back
        after a crash: see `is_ready`.

        Raises `ModelSourceError` or `ConfigurationError` if the model cannot be served.
        """
        files = resolve_model(options)
        config = load_model_config(files, options.model)
        tokenizer = load_tokenizer(resolve_tokenizer(options, files))
        llm = cls(options, files, config, tokenizer, observer or EngineObserver(), step_timeout)
        for name, source in options.lora.modules.items():
            if name in llm.served_model_names:
                raise ConfigurationError(f"--lora-modules {name}=...: is the model's own name")
            llm.adapters.add(await asyncio.to_thread(llm.adapters.find, name, source))
        for index, (path, beat) in enumerate(zip(socket_paths, heartbeat_paths, strict=True)):
            llm._engines.append(_Engine(CoreClient(index, path, llm), beat))
        return llm

    # State

    @property
    def is_ready(self) -> bool:
        """Whether any core can take requests."""
        return any(engine.client.connected for engine in self._engines)

    @property
    def num_unfinished(self) -> int:
        """Answers that are being generated."""
        return len(self._outputs)

    @property
    def ready_engines(self) -> list[EngineCoreReady]:
        """What the connected cores said of themselves."""
        return [engine.client.ready for engine in self._engines if engine.client.ready is not None]

    @property
    def engine_stats(self) -> list[SchedulerStats]:
        """What the connected cores told last of their load and speed."""
        return [engine.stats for engine in self._engines if engine.client.connected]

    def check_health(self) -> str | None:
        """None, or why this replica does not work. With several data-parallel ranks it works as
        long as one does: the supervisor brings the others back, and the replica need not die."""
        troubles = [self._trouble(index, engine) for index, engine in enumerate(self._engines)]
        return None if None in troubles else "; ".join(filter(None, troubles))

    def _trouble(self, index: int, engine: _Engine) -> str | None:
        """Why a core does not work: it is not there, or its step counter stands still with work
        to do."""
        beat = engine.heartbeat.read()
        if not engine.client.connected:
            if beat is None:
                stage = "not started"
            else:  # "ready" is what a core that is gone said last
                stage = "restarting" if beat.stage == "ready" else beat.stage
            return f"engine core {index} is not connected ({stage})"
        if beat is not None and (stuck := beat.step_age(time.monotonic())) > self._step_timeout:
            return f"engine core {index}: step {beat.step + 1} has run for {stuck:.0f} s"
        return None

    def step_ages(self) -> list[float]:
        """Of each core: for how many seconds it has been at its step; 0.0 without work, and while
        it is not connected."""
        now = time.monotonic()
        beats = [
            engine.heartbeat.read() if engine.client.connected else None for engine in self._engines
        ]
        return [0.0 if beat is None else beat.step_age(now) for beat in beats]

    def foreign_gpu_memory(self) -> list[dict[str, int]]:
        """Of each core: bytes in use of its GPUs, by UUID, that are not its own, as it measured
        last; empty without GPUs."""
        return [read_foreign_memory(engine.heartbeat_path) for engine in self._engines]

    async def wait_ready(self) -> None:
        """Until a core has been ready for the first time."""
        await self._first_ready.wait()

    # Requests

    async def generate(
        self,
        prompt: str | list[int],
        sampling: RequestedSampling,
        *,
        request_id: str,
        priority: int = 0,
        cache_salt: str | None = None,
        shared_prefix_tokens: int = 0,
        add_special_tokens: bool = True,
        so_far: Sequence[AnswerSoFar] | None = None,
        lora: LoraAdapter | None = None,
    ) -> RequestStream:
        """Starts the answers to a prompt, or goes on with those that another engine began: the
        deltas are then what is missing of them.

        Raises `InvalidRequest` if the request cannot be served as it is, and `EngineDead` if no
        engine core is there.
        """
        arrival = time.monotonic()
        requests = self.processor.process(
            await self._token_ids(prompt, add_special_tokens),
            sampling,
            request_id=request_id,
            priority=priority,
            cache_salt=cache_salt,
            shared_prefix_tokens=shared_prefix_tokens,
            arrival_time=arrival,
            so_far=so_far,
        )
        for request in requests:
            request.lora = lora
        wanted = [
            (index, request)
            for index, request in enumerate(requests)
            if so_far is None or not so_far[index].finished
        ]
        if sampling.structured is not None:
            structured = await self._check_grammar(sampling.structured)
            for request in requests:
                request.structured = structured
        elif sampling.thinking is not None:
            for request in requests:
                request.structured = StructuredOutput(None, sampling.thinking)
        return self._start(wanted, len(requests[0].prompt_token_ids))

    async def _token_ids(self, prompt: str | list[int], add_special_tokens: bool) -> list[int]:
        return await self.encode(prompt, add_special_tokens) if isinstance(prompt, str) else prompt

    async def beam_search(
        self,
        prompt: str | list[int],
        sampling: RequestedSampling,
        length_penalty: float,
        *,
        request_id: str,
        priority: int = 0,
        cache_salt: str | None = None,
        shared_prefix_tokens: int = 0,
        add_special_tokens: bool = True,
        lora: LoraAdapter | None = None,
    ) -> BeamStream:
        """Starts the search for the `n` most likely answers to a prompt; see `BeamSearch`.

        Raises as `generate`.
        """
        arrival = time.monotonic()
        check_searchable(sampling, length_penalty)
        requests = self.processor.process(
            await self._token_ids(prompt, add_special_tokens),
            sampling,
            request_id=request_id,
            priority=priority,
            cache_salt=cache_salt,
            shared_prefix_tokens=shared_prefix_tokens,
            arrival_time=arrival,
        )
        requests[0].lora = lora
        search = BeamSearch(requests[0], len(requests), length_penalty, sampling.logprobs)
        return BeamStream(search, self._start, self.decode)

    def pool(
        self,
        prompt: list[int],
        *,
        request_id: str,
        priority: int = 0,
        cache_salt: str | None = None,
        shared_prefix_tokens: int = 0,
        lora: LoraAdapter | None = None,
    ) -> RequestStream:
        """Starts to compute a prompt's vector, which the stream's only delta has in `pooled`.

        Raises as `generate`.
        """
        request = self.processor.process_pooled(
            prompt,
            request_id=request_id,
            priority=priority,
            cache_salt=cache_salt,
            shared_prefix_tokens=shared_prefix_tokens,
            arrival_time=time.monotonic(),
        )
        request.lora = lora
        return self._start([(0, request)], len(prompt))

    def _start(
        self,
        wanted: Sequence[tuple[int, EngineCoreRequest]],
        num_prompt_tokens: int,
        engine_index: int | None = None,
    ) -> RequestStream:
        """Hands a prompt's requests, each with the index of its answer, to a core: to the one of
        `engine_index`, if it is there."""
        engine = self._least_loaded(engine_index)
        stream = RequestStream(len(wanted), self._abort_stream)
        stream.engine_index = engine.client.engine_index
        stream.num_prompt_tokens = num_prompt_tokens
        for index, request in wanted:
            request.request_id = next(self._ids)
            goes_on = self._outputs.register(
                request, stream.put, index=index, engine_index=stream.engine_index
            )
            if goes_on:
                stream.request_ids.append(request.request_id)
                engine.client.send(request)
        if stream.request_ids:
            engine.streams.add(stream)
        return stream

    async def _check_grammar(self, requested: RequestedGrammar) -> StructuredOutput:
        grammar = await self._in_thread(requested.build)
        # Others may wait for the same verdict: whoever goes away first must not take it along.
        verdict = await asyncio.shield(asyncio.wrap_future(self._grammars.check(grammar)))
        if verdict.error:
            raise refuse(verdict.error, requested.param)
        return StructuredOutput(grammar, requested.thinking, verdict.slow)

    def _least_loaded(self, preferred: int | None = None) -> _Engine:
        if self._broken_off is not None:
            raise EngineDead(self._broken_off)
        connected = [engine for engine in self._engines if engine.client.connected]
        if not connected:
            raise EngineAbsent("the engine is not ready: it is starting, or starting again")
        if preferred is not None and self._engines[preferred].client.connected:
            return self._engines[preferred]
        first = next(self._next_engine) % len(connected)
        return min(connected[first:] + connected[:first], key=lambda engine: engine.load)

    def break_off(self, why: str) -> None:
        """Ends all answers, for good: readers of those that are being generated, and whoever asks
        for more, get `EngineDead`."""
        self._broken_off = why
        for engine in self._engines:
            for stream in list(engine.streams):
                self._abort_stream(stream)
                stream.lose(why)

    def _abort_stream(self, stream: RequestStream) -> None:
        engine = self._engines[stream.engine_index]
        engine.streams.discard(stream)
        aborted = self._outputs.abort(stream.request_ids)
        if aborted and engine.client.connected:
            engine.client.send(AbortRequests(aborted))

    # Text, off the event loop

    async def render_chat(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        *,
        add_special_tokens: bool = False,
        **template_kwargs: Any,
    ) -> list[int]:
        """Token ids of a conversation by the model's chat template. Raises `InvalidRequest` with
        the template's own message if it refuses the conversation."""
        return await self._in_thread(
            lambda: self.prompts.encode_chat(
                messages,
                tools,
                add_generation_prompt,
                add_special_tokens=add_special_tokens,
                **template_kwargs,
            )
        )

    async def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a prompt. Raises `InvalidRequest` if it is far too long for the model."""
        return await self._in_thread(lambda: self.prompts.encode(text, add_special_tokens))

    async def encode_batch(
        self, texts: Sequence[str], add_special_tokens: bool = True
    ) -> list[list[int]]:
        """`encode` of each text."""
        return await self._in_thread(lambda: self.prompts.encode_batch(texts, add_special_tokens))

    async def encode_pairs(self, pairs: Sequence[tuple[str, str]]) -> list[list[int]]:
        """Token ids of prompts of a query and a document each. Raises `InvalidRequest`."""
        return await self._in_thread(
            lambda: [self.processor.encode_pair(query, document) for query, document in pairs]
        )

    async def decode(self, token_ids: list[int], skip_special_tokens: bool = True) -> str:
        """Text of token ids."""
        return await self._in_thread(lambda: self.tokenizer.decode(token_ids, skip_special_tokens))

    async def tokenizer_bundle(self) -> EncodedBundle:
        """What a router needs to make the same prompts; encoded once, when it is first asked
        for."""
        if self._bundle is None:
            encode = self._in_thread(lambda: TokenizerBundle.of(self.prompts).encode())
            self._bundle = asyncio.ensure_future(encode)
        return await asyncio.shield(self._bundle)

    async def _in_thread(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)

    # CoreEvents

    def on_ready(self, engine_index: int, ready: EngineCoreReady) -> None:
        """See `CoreEvents`."""
        self._first_ready.set()
        self._observer.on_ready(ready)

    def on_outputs(self, engine_index: int, outputs: EngineCoreOutputs) -> None:
        """See `CoreEvents`."""
        engine = self._engines[engine_index]
        engine.stats = outputs.stats
        self._observer.on_stats(engine_index, outputs.stats)
        if not outputs.outputs:
            return
        to_abort = self._outputs.process(outputs)
        if to_abort:
            engine.client.send(AbortRequests(to_abort))
        if any(output.finish_reason is not None for output in outputs.outputs) or to_abort:
            engine.streams = {stream for stream in engine.streams if not stream.finished}

    def on_lost(self, engine_index: int, cause: str | None) -> None:
        """See `CoreEvents`."""
        engine = self._engines[engine_index]
        why = f"engine core {engine_index} died" + (f": {cause}" if cause else "")
        for stream in engine.streams:
            stream.lose(why)
        engine.streams.clear()
        engine.stats = SchedulerStats()
        self._outputs.engine_lost(engine_index, why)
        self._observer.on_lost(engine_index)

    async def close(self) -> None:
        """Lets go of the cores, which abort what is left."""
        for engine in self._engines:
            await engine.client.close()
            engine.heartbeat.close()
        self._threads.shutdown(cancel_futures=True)
        self._grammars.close()
