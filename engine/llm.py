"""The engine as a library: `LLM(model).generate(prompts)`, without a server or other processes."""

import dataclasses
import difflib
import functools
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Self, overload

import msgspec
import numpy as np

from pagelet.engine.adapters import AdapterRegistry
from pagelet.engine.arguments import (
    Conversation,
    Prompt,
    checked_flag,
    checked_number,
    checked_sampling,
    listed_adapters,
    listed_conversations,
    listed_prompts,
    listed_sampling,
)
from pagelet.engine.beam_search import BeamSearch, check_searchable
from pagelet.engine.core.build import build_core, download_progress
from pagelet.engine.errors import ConfigurationError
from pagelet.engine.load_tokenizer import load_tokenizer
from pagelet.engine.model_config import context_length
from pagelet.engine.named_arguments import names_arguments, unknown_argument
from pagelet.engine.output_processor import OutputProcessor, Sink
from pagelet.engine.outputs import EngineDead, PositionLogprobs, RequestOutput
from pagelet.engine.processor import Processor, RequestedSampling
from pagelet.engine.progress import ProgressBar, StageView
from pagelet.engine.source import resolve_model, resolve_tokenizer
from pagelet.engine.structured.backend import GrammarError
from pagelet.engine.structured.checker import refuse
from pagelet.engine.structured.requested import RequestedGrammar
from pagelet.engine.vectors import Vector, normalized
from pagelet.engine.weights.load_config import load_model_config
from pagelet.protocol.config import EngineOptions
from pagelet.protocol.engine import EngineCoreRequest
from pagelet.protocol.errors import InvalidRequest
from pagelet.protocol.lora import LoraAdapter
from pagelet.protocol.structured import StructuredOutput

DEFAULT_MAX_TOKENS = 16
"""Of an answer to a raw prompt, as in OpenAI's completions and vLLM's `LLM`; a conversation's
answer may fill the context."""
_CHAT_ARGUMENTS: Final = (
    *("messages", "sampling", "adapter", "progress"),
    *("tools", "add_generation_prompt", "continue_final_message", "add_special_tokens"),
)
"""What `LLM.chat` takes for any template."""


@dataclasses.dataclass
class Answer:
    """One of the `n` answers to a prompt."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str
    stop_reason: int | str | None
    logprobs: list[PositionLogprobs] | None


@dataclasses.dataclass
class Completion:
    """A prompt and its answers."""

    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[Answer]
    num_cached_tokens: int
    prompt_logprobs: list[PositionLogprobs | None] | None


class LLM:
    """An engine in this process.

    `model` takes the same sources as `pagelet serve`; keyword arguments are the fields of
    `pagelet.protocol.config`'s options by their own names, such as `max_model_len`, `dtype`,
    `block_size` or `max_num_seqs`. `adapters` are folders of LoRA adapters, by names that the
    methods take as `adapter`. Raises `ConfigurationError` or `ModelSourceError` if they cannot
    work.
    """

    def __init__(
        self, model: str, *, adapters: Mapping[str, str] | None = None, **options: Any
    ) -> None:
        if adapters:
            options |= {"enabled": True, "modules": dict(adapters)}
        self.options = _engine_options(model, options)
        if self.options.parallel.data_parallel_size > 1:
            raise ConfigurationError(
                "data_parallel_size is for `pagelet serve`; LLM has one engine"
            )
        lora = self.options.lora
        if lora.modules and not lora.enabled:
            raise ConfigurationError("modules do nothing by themselves: give them as adapters")
        if lora.max_cpu_loras < lora.max_loras:
            raise ConfigurationError(
                f"max_cpu_loras is {lora.max_cpu_loras}, but the {lora.max_loras} of max_loras "
                "must be in memory together: raise it, or lower max_loras"
            )
        with StageView() as stage:
            self._load(stage)
        self._closed = False

    def _load(self, stage: Callable[[str], None]) -> None:
        files = resolve_model(self.options, download_progress(stage))
        self.config = load_model_config(files, self.options.model)
        self.tokenizer = load_tokenizer(resolve_tokenizer(self.options, files))
        self.max_model_len = context_length(self.config, self.options.model.max_model_len)
        self.processor = Processor(
            self.config, self.tokenizer, self.max_model_len, files, self.options.model
        )
        self.adapters = AdapterRegistry(self.config, self.options.lora)
        for name, source in self.options.lora.modules.items():
            self.adapters.add(self.adapters.find(name, source, download_progress(stage)))
        self._core = build_core(self.options, stage)
        self._woken = threading.Event()
        self._core.on_wake = self._woken.set
        self._outputs = OutputProcessor(self.tokenizer)
        self._ids = itertools.count()
        self.num_drafted = self.num_accepted = 0
        """Tokens that speculation has guessed by now, and those of them that were right."""

    @names_arguments
    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling: RequestedSampling | Sequence[RequestedSampling] | None = None,
        *,
        adapter: str | Sequence[str | None] | None = None,
        progress: bool = True,
    ) -> list[Completion]:
        """Answers every prompt (text or token ids), in the order given, all batched together, with
        at most `DEFAULT_MAX_TOKENS` tokens unless `max_tokens` says otherwise.

        `sampling` and `adapter` are one for all or one a prompt. Raises `InvalidRequest` before
        anything runs if any of them cannot be served.
        """
        return self._generate(prompts, sampling, DEFAULT_MAX_TOKENS, adapter, progress)

    def _generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling: RequestedSampling | Sequence[RequestedSampling] | None,
        default_max_tokens: int | None,
        adapter: str | Sequence[str | None] | None,
        progress: bool,
    ) -> list[Completion]:
        self._check_open()
        listed = listed_prompts(prompts)
        adapters = [self._adapter_of(name) for name in listed_adapters(adapter, len(listed))]
        params = listed_sampling(sampling, len(listed))
        completions, requests = [], []
        encode = self.processor.prompts.encode
        for number, (prompt, wanted) in enumerate(zip(listed, params, strict=True)):
            token_ids = encode(prompt) if isinstance(prompt, str) else prompt
            limit = wanted.default_max_tokens or default_max_tokens
            children = self.processor.process(
                token_ids,
                dataclasses.replace(wanted, default_max_tokens=limit),
                request_id=f"prompt-{number}",
                arrival_time=time.monotonic(),
            )
            for child in children:
                child.lora = adapters[number]
            if wanted.structured is not None:
                structured = self._check_grammar(wanted.structured)
                for child in children:
                    child.structured = structured
            elif wanted.thinking is not None:
                for child in children:
                    child.structured = StructuredOutput(None, wanted.thinking)
            answers = [Answer(i, "", [], "", None, None) for i in range(len(children))]
            text = prompt if isinstance(prompt, str) else None
            completion = Completion(text, token_ids, answers, 0, None)
            completions.append(completion)
            requests += [(child, completion, i) for i, child in enumerate(children)]
        with ProgressBar("prompts", len(requests), enabled=progress) as bar:
            self._run(
                (request, _Collector(completion, bar), index)
                for request, completion, index in requests
            )
        return completions

    @overload
    def chat(
        self,
        messages: Conversation,
        sampling: RequestedSampling | None = None,
        *,
        adapter: str | None = None,
        progress: bool = True,
        add_special_tokens: bool = False,
        **template_kwargs: Any,
    ) -> Completion: ...

    @overload
    def chat(
        self,
        messages: Sequence[Conversation],
        sampling: RequestedSampling | Sequence[RequestedSampling] | None = None,
        *,
        adapter: str | Sequence[str | None] | None = None,
        progress: bool = True,
        add_special_tokens: bool = False,
        **template_kwargs: Any,
    ) -> list[Completion]: ...

    @names_arguments
    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling: RequestedSampling | Sequence[RequestedSampling] | None = None,
        *,
        adapter: str | Sequence[str | None] | None = None,
        progress: bool = True,
        add_special_tokens: bool = False,
        **template_kwargs: Any,
    ) -> Completion | list[Completion]:
        """Answers a conversation, or several, all batched together, by the model's chat template,
        whose variables, `tools` and `continue_final_message` may be given by name. With
        `add_special_tokens` the tokenizer adds its own, such as BOS, as to any text.

        `sampling` and `adapter` are one for all or one a conversation. Raises `InvalidRequest`
        before anything runs for what is no conversation, or one that cannot be served.
        """
        self._check_open()
        listed, is_one = listed_conversations(messages)
        special = checked_flag("add_special_tokens", add_special_tokens)
        template = self.processor.prompts.chat_template
        if template is not None:
            known = [*_CHAT_ARGUMENTS, *sorted(template.variables)]
            for name in template_kwargs:
                if name not in known:
                    raise unknown_argument("chat", name, known)
        prompts = []
        for number, conversation in enumerate(listed):
            try:
                prompts.append(
                    self.processor.prompts.encode_chat(
                        conversation, add_special_tokens=special, **template_kwargs
                    )
                )
            except InvalidRequest as error:
                if is_one:
                    raise
                words = f"conversation {number}: {error}"
                raise InvalidRequest(words, error.param, error.code) from error
        bar = progress and not is_one
        completions = self._generate(prompts, sampling, None, adapter, progress=bar)
        return completions[0] if is_one else completions

    @names_arguments
    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling: RequestedSampling | None = None,
        *,
        length_penalty: float = 1.0,
        adapter: str | None = None,
        progress: bool = True,
    ) -> list[Completion]:
        """The `n` most likely answers to every prompt, the best first, by `BeamSearch`: a longer
        answer wins by a higher `length_penalty`. Raises as `generate`.
        """
        self._check_open()
        lora = self._adapter_of(adapter)
        sampling = checked_sampling(sampling)
        check_searchable(sampling, checked_number("length_penalty", length_penalty))
        limit = sampling.default_max_tokens or DEFAULT_MAX_TOKENS
        sampling = dataclasses.replace(sampling, default_max_tokens=limit)
        searches, completions = [], []
        for number, prompt in enumerate(listed_prompts(prompts)):
            text = prompt if isinstance(prompt, str) else None
            encode = self.processor.prompts.encode
            token_ids = encode(prompt) if isinstance(prompt, str) else prompt
            requests = self.processor.process(
                token_ids,
                sampling,
                request_id=f"prompt-{number}",
                arrival_time=time.monotonic(),
            )
            requests[0].lora = lora
            width = len(requests)
            search = BeamSearch(requests[0], width, length_penalty, sampling.logprobs)
            searches.append(search)
            completions.append(Completion(text, token_ids, [], 0, None))
        with ProgressBar("prompts", len(searches), enabled=progress) as bar:
            unfinished = list(zip(searches, completions, strict=True))
            while unfinished:
                self._extend_beams(unfinished)
                going = [each for each in unfinished if not each[0].done]
                bar.advance(len(unfinished) - len(going))
                unfinished = going
        skip_special = sampling.skip_special_tokens is not False
        for search, completion in zip(searches, completions, strict=True):
            completion.outputs = [
                Answer(
                    index,
                    self.tokenizer.decode(search.shown(beam), skip_special),
                    beam.token_ids,
                    beam.finish_reason or "length",
                    None,
                    beam.positions or None,
                )
                for index, beam in enumerate(search.best)
            ]
        return completions

    def _extend_beams(self, searches: Sequence[tuple[BeamSearch, Completion]]) -> None:
        """One step of each, all batched together."""
        found: list[dict[int, RequestOutput]] = [{} for _ in searches]
        self._run(
            (request, functools.partial(outputs.__setitem__, index), index)
            for (search, _), outputs in zip(searches, found, strict=True)
            for index, request in enumerate(search.requests())
        )
        for (search, completion), outputs in zip(searches, found, strict=True):
            positions = []
            for index in sorted(outputs):
                output = outputs[index]
                if not output.logprobs:
                    raise EngineDead(output.error or "the answer was broken off")
                positions += output.logprobs
            if outputs[0].num_prompt_tokens == search.num_prompt_tokens:  # the first step
                completion.num_cached_tokens = outputs[0].num_cached_tokens
            search.advance(positions)

    @names_arguments
    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        adapter: str | None = None,
        progress: bool = True,
    ) -> Vector:
        """A vector of length 1 for each prompt (text or token ids), in the order given: float32
        [num_prompts, hidden_size]. For a model that embeds, or `task="embed"`.

        Raises `InvalidRequest` before anything runs if any prompt cannot be served.
        """
        self._check_open()
        lora = self._adapter_of(adapter)
        pooling = self.processor.pooling
        if pooling is not None and pooling.task != "embed":
            raise InvalidRequest("this model gives scores and no vectors")
        requests = []
        for number, prompt in enumerate(listed_prompts(prompts)):
            encode = self.processor.prompts.encode
            token_ids = encode(prompt) if isinstance(prompt, str) else prompt
            requests.append(
                self.processor.process_pooled(
                    token_ids, request_id=f"prompt-{number}", arrival_time=time.monotonic()
                )
            )
            requests[-1].lora = lora
        vectors = np.zeros((len(requests), self.config.hidden_size), np.float32)
        errors: list[str] = []
        with ProgressBar("prompts", len(requests), enabled=progress) as bar:

            def take(output: RequestOutput) -> None:
                if output.pooled is None:
                    errors.append(output.error or "a vector was not computed")
                else:
                    vectors[output.index] = np.frombuffer(output.pooled, np.float32)
                bar.advance(1)

            self._run((request, take, index) for index, request in enumerate(requests))
        if errors:
            raise EngineDead(errors[0])
        return normalized(vectors)

    def _adapter_of(self, name: str | None) -> LoraAdapter | None:
        if name is None:
            return None
        if not isinstance(name, str) or name not in self.adapters:
            known = ", ".join(map(repr, self.adapters)) or "none"
            raise InvalidRequest(
                f"there is no adapter {name!r}: the engine was made with {known}", "adapter"
            )
        return self.adapters[name]

    def _check_grammar(self, requested: RequestedGrammar) -> StructuredOutput:
        """Compiles in this process: whoever writes a program may wait for their own grammars."""
        grammar = requested.build()
        try:
            self._core.compile(grammar).result()
        except GrammarError as error:
            raise refuse(str(error), requested.param) from error
        return StructuredOutput(grammar, requested.thinking)

    def _run(self, requests: Iterable[tuple[EngineCoreRequest, Sink, int]]) -> None:
        """Runs requests to their ends, all batched together. Each comes with what takes its
        outputs, and the index that these have."""
        try:
            for request, sink, index in requests:
                request.request_id = next(self._ids)
                self._outputs.register(request, sink, index=index)
                self._core.add(request)
            while self._core.has_work or self._core.num_unfinished:
                self._woken.clear()
                if not self._core.has_work:  # what is left waits for grammars to be compiled
                    self._woken.wait()
                outputs = self._core.step()
                if (counted := outputs.stats.speculation) is not None:
                    self.num_drafted += counted.num_draft_tokens
                    self.num_accepted += counted.num_accepted_tokens
                stopped = self._outputs.process(outputs)
                if stopped:
                    self._core.abort(stopped)
        except BaseException:
            self._core.abort_all()
            self._outputs.forget_all()
            raise

    def close(self) -> None:
        """Frees the model and stops its workers. From then on nothing else can be called."""
        if not self._closed:
            self._closed = True
            self._core.close()

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("this LLM is closed: make another, or call it inside of its `with`")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Collector:
    """The sink of one answer."""

    def __init__(self, completion: Completion, bar: ProgressBar) -> None:
        self._completion = completion
        self._bar = bar

    def __call__(self, delta: RequestOutput) -> None:
        answer = self._completion.outputs[delta.index]
        answer.text += delta.text
        answer.token_ids += delta.token_ids
        if delta.logprobs is not None:
            answer.logprobs = (answer.logprobs or []) + delta.logprobs
        if delta.prompt_logprobs is not None:
            self._completion.prompt_logprobs = list(delta.prompt_logprobs)
        self._completion.num_cached_tokens = delta.num_cached_tokens
        if delta.finish_reason is not None:
            answer.finish_reason, answer.stop_reason = delta.finish_reason, delta.stop_reason
            self._bar.advance(1)


def _engine_options(model: str, flat: dict[str, Any]) -> EngineOptions:
    """Sorts flat keyword arguments into the sections that have fields of their names."""
    sections: dict[str, Any] = {"model": {"source": model}}
    places = {
        field.name: section.name
        for section in msgspec.structs.fields(EngineOptions)
        if isinstance(section.type, type) and issubclass(section.type, msgspec.Struct)
        for field in msgspec.structs.fields(section.type)
    }
    top = {field.name for field in msgspec.structs.fields(EngineOptions)} - set(places.values())
    for name, value in flat.items():
        if name in top:
            sections[name] = value
        elif name in places:
            sections.setdefault(places[name], {})[name] = value
        else:
            near = difflib.get_close_matches(name, [*places, *top], 1)
            hint = f", did you mean {near[0]!r}?" if near else ""
            raise ConfigurationError(f"there is no engine option {name!r}{hint}")
    try:
        return msgspec.convert(sections, EngineOptions)
    except msgspec.ValidationError as error:
        raise ConfigurationError(str(error)) from error
