"""An engine of known behaviour, for what a real one does not do on demand: die in mid-answer, be
slow, or say when it was told to abort. Its streams are the real ones."""

import asyncio
import dataclasses
import functools
from collections.abc import Callable
from types import SimpleNamespace

from pagelet.engine.observer import EngineObserver
from pagelet.engine.outputs import (
    EngineAbsent,
    Logprob,
    PositionLogprobs,
    PromptPositions,
    RequestOutput,
)
from pagelet.engine.request_stream import RequestStream
from pagelet.protocol.config import EngineOptions, ModelOptions
from pagelet.protocol.errors import InvalidRequest

BOS = 1
EOS = 2


class CharTokenizer:
    """A token is a character; two are special."""

    special_ids = frozenset((BOS, EOS))

    def encode(self, text, add_special_tokens=True):
        return ([BOS] if add_special_tokens else []) + [ord(c) + 10 for c in text]

    def decode(self, ids, skip_special_tokens=True):
        names = {BOS: "<s>", EOS: "</s>"}
        texts = ["" if skip_special_tokens and i in names else names.get(i) for i in ids]
        return "".join(chr(i - 10) if t is None else t for i, t in zip(ids, texts, strict=True))

    def token_text(self, token_id):
        text = self.decode([token_id], skip_special_tokens=False)
        return text, text.encode()


@dataclasses.dataclass
class Behaviour:
    """Of all answers from now on."""

    text: str = "Hello, wörld!"
    step: float = 0.0
    hold: asyncio.Event | None = None
    """Awaited before the last delta."""
    lockstep: bool = False
    """Each delta waits until the one before was read, so that none are merged."""
    hide_until: int = 0
    """Deltas before this one hold their text back."""
    die_after: int | None = None
    """Deltas before the engine dies."""
    fail_after: int | None = None
    """Deltas before the answer ends with an error of its own."""
    make_prompt_position: Callable[[PositionLogprobs], PositionLogprobs] = lambda made: made


class FakeLLM:
    def __init__(self, observer=None):
        self.options = EngineOptions(
            model=ModelOptions(source="folder/tiny", served_model_names=["tiny", "org/alias"])
        )
        self.served_model_names = self.options.model.served_model_names
        self.adapters = {}
        self.config = SimpleNamespace(vocab_size=0x110000 + 10)
        self.tokenizer = CharTokenizer()
        self.processor = SimpleNamespace(
            default_sampling={"temperature": 0.5, "top_p": 0.75}, process=self._process
        )
        self.prompts = SimpleNamespace(
            check_token_ids=self._check_token_ids, tokenizer=self.tokenizer, chat_template=None
        )
        self.max_model_len = 1000
        self.is_ready = True
        self.health = None
        self.ready_engines = []
        self.engine_stats = []
        self.behaviour = Behaviour()
        self.observer = observer or EngineObserver()
        self.running = set()
        self.streams = []
        self.aborted = []
        self.seen = []

    def _check_token_ids(self, param, token_ids):
        if any(token_id >= self.config.vocab_size for token_id in token_ids):
            raise InvalidRequest("not in the vocabulary", param)

    def _process(self, ids, sampling, **_):
        """Refuses what cannot be answered."""
        if not ids:
            raise InvalidRequest("the prompt is empty", "prompt")
        if sampling.max_tokens is not None and sampling.max_tokens < 1:
            raise InvalidRequest("max_tokens must be at least 1", "max_tokens")

    @property
    def num_unfinished(self):
        return len(self.running)

    def check_health(self):
        return self.health

    def step_ages(self):
        return [4.5 if self.health else 0.0]

    def foreign_gpu_memory(self):
        return [{}]

    async def render_chat(self, messages, tools=None, add_generation_prompt=True, **kwargs):
        if kwargs.get("fail"):
            raise InvalidRequest("the template refuses this conversation", "messages")
        text = "".join(f"<{m['role']}>{m['content']}" for m in messages)
        text += "<assistant>" if add_generation_prompt else ""
        return self.tokenizer.encode(text, kwargs.get("add_special_tokens", False))

    async def encode(self, text, add_special_tokens=True):
        await asyncio.sleep(0)
        return self.tokenizer.encode(text, add_special_tokens)

    async def decode(self, token_ids, skip_special_tokens=True):
        return self.tokenizer.decode(token_ids, skip_special_tokens)

    async def generate(
        self,
        prompt,
        sampling,
        *,
        request_id,
        priority=0,
        cache_salt=None,
        shared_prefix_tokens=0,
        add_special_tokens=True,
        so_far=None,
        lora=None,
    ):
        if not self.is_ready:
            raise EngineAbsent("the engine is not ready")
        ids = await self.encode(prompt, add_special_tokens) if isinstance(prompt, str) else prompt
        self._process(ids, sampling)
        self.seen.append((request_id, ids, sampling, cache_salt))
        n = sampling.n or 1
        stream = RequestStream(n, self._abort)
        stream.request_ids = [request_id]
        stream.num_prompt_tokens = len(ids)
        stream.num_put = 0
        task = asyncio.create_task(self._run(stream, ids, sampling, n))
        self.running.add(task)
        task.add_done_callback(self.running.discard)
        stream.task = task
        self.streams.append(stream)
        return stream

    def die(self):
        """Breaks all answers off."""
        for stream in self.streams:
            stream.lose("engine core 0 died")

    def _abort(self, stream):
        self.aborted += stream.request_ids
        stream.task.cancel()

    async def _run(self, stream, ids, sampling, n):
        behaviour = self.behaviour
        answer = behaviour.text
        limit = sampling.max_tokens or sampling.default_max_tokens
        cut = limit is not None and limit <= len(answer)
        shown = answer[:limit] if cut else answer
        for position, char in enumerate(shown, start=1):
            await asyncio.sleep(behaviour.step)
            while behaviour.lockstep and stream._pending:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            if behaviour.hold is not None and position == len(shown):
                await behaviour.hold.wait()
            if behaviour.die_after is not None and position > behaviour.die_after:
                stream.lose("engine core 0 died")
                return
            for index in range(n):
                last = position == len(shown)
                failed = behaviour.fail_after is not None and position > behaviour.fail_after
                output = RequestOutput(
                    index=index,
                    text=char,
                    token_ids=[ord(char) + 10],
                    num_prompt_tokens=len(ids),
                    num_generated_tokens=position,
                    num_cached_tokens=len(ids) // 16 * 16,
                )
                if position < behaviour.hide_until:
                    output.text = ""
                elif position == behaviour.hide_until:
                    output.text = answer[:position]
                if last:
                    output.finish_reason = "length" if cut else "stop"
                if failed:
                    output.finish_reason, output.error = "error", "out of blocks"
                if sampling.logprobs is not None:
                    output.logprobs = [self._position(char, sampling.logprobs)]
                if sampling.prompt_logprobs is not None and position == 1:
                    output.prompt_logprobs = PromptPositions(
                        [None, *ids[1:]],
                        functools.partial(self._prompt_position, sampling.prompt_logprobs),
                    )
                stream.put(output)
                stream.num_put += 1
            if failed:
                return

    def _prompt_position(self, count, token_id):
        position = self._position(self.tokenizer.token_text(token_id)[0], count)
        return self.behaviour.make_prompt_position(position)

    def _position(self, char, count):
        def logprob(text, value, rank):
            return Logprob(ord(text[0]) + 10, text, text.encode(), value, rank)

        top = [logprob(chr(ord("a") + i), -1.0 - i, i + 1) for i in range(count)]
        return PositionLogprobs(logprob(char, -0.5, 1), top)
