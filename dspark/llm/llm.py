"""Text generation with a target and its draft, in this process."""

import asyncio
import time
import weakref
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import ExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, cast, overload
from uuid import uuid4

from tqdm.auto import tqdm

from dspark.llm.background_loop import BackgroundLoop
from dspark.llm.results import Completion, Prompt, StreamedChoice, TextDelta, choice_of
from dspark.llm.sampling_params import SamplingParams
from dspark.llm.settings import resolve_settings
from dspark.llm.validation import json_value, python_errors
from dspark.runtime.models import resolved_engine_config, running_engine
from dspark.runtime.service import server_options
from dspark.runtime.text import load_text
from engine.platform.openmp import limit_spinning
from server.generation.chat_requests import ChatProcessor
from server.generation.delta_queue import KeepAlive
from server.generation.deltas import CompletionOutput
from server.generation.generator import DeltaBatch, TextGenerator
from server.generation.input_processor import InputProcessor, TokenizedRequest
from server.generation.native_requests import tokenize_native
from server.http.auth import KeyRing
from server.http.metrics import ServerMetrics
from server.http.request_records import RequestRecord
from server.parsers.chat_parser import ChatParser
from server.parsers.message_parts import NewParser, PlainTextParser
from server.protocol.common import Message as ChatMessage
from server.protocol.native import GenerateBody, SamplingBody
from server.protocol.tools import ToolFields
from server.text.chat_template import ChatExtras

T = TypeVar("T")
Message = dict[str, Any]
Params = SamplingParams | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Body:
    """One prompt with its options, validated."""

    prompt: Prompt
    fields: GenerateBody
    tools: ToolFields | None  # of a chat
    where: str  # how errors call the prompt among others


@dataclass(frozen=True, slots=True)
class _Prepared:
    """One prompt as token ids, once for each of its choices."""

    body: _Body
    requests: list[TokenizedRequest]
    new_parser: NewParser

    @property
    def with_logprobs(self) -> bool:
        return self.body.fields.return_logprob

    def completion(self, outputs: Sequence[CompletionOutput]) -> Completion:
        """Put the choices' outputs together."""
        first, params = outputs[0], self.requests[0].params
        return Completion(
            prompt=self.body.prompt,
            prompt_token_ids=self.requests[0].prompt_ids,
            prompt_logprobs=(
                first.prompt_logprobs if params.prompt_logprobs_from is not None else None
            ),
            num_cached_tokens=first.finish.num_cached_tokens,
            choices=tuple(
                choice_of(i, output, self.new_parser(), with_logprobs=self.with_logprobs)
                for i, output in enumerate(outputs)
            ),
        )


class LLM:
    """A target and its draft, loaded; generates text from any thread, script or notebook.

    Use it in a `with` block, or call `close` to free the models.
    """

    def __init__(
        self,
        config: str | Path | None = None,
        *,
        model: str | Path | Mapping[str, Any] | None = None,
        draft: str | Path | None = None,
        **settings: Any,
    ) -> None:
        """Load the models; starts the engine's thread.

        config is a YAML file or the name of a packaged one, such as "demo". model and draft are
        folders or hub ids. Any setting is a keyword: `kv={"page_size": 32}`, `page_size=32`, or
        `**{"kv.page_size": 32}`; keywords win over the environment, and that over the config.

        Raises ValueError for settings that are not accepted, and LoadError.
        """
        given = {"model": model, "draft": draft}
        settings |= {name: value for name, value in given.items() if value is not None}
        resolved = resolve_settings(config, settings)
        limit_spinning()
        engine_config = resolved_engine_config(resolved)
        with python_errors():
            text = load_text(resolved, engine_config)
        options = server_options(resolved, engine_config, keys=KeyRing())
        scheduler = resolved.scheduler
        with ExitStack() as stack:
            engine = stack.enter_context(running_engine(engine_config))
            self._loop = BackgroundLoop(name="LLM")
            stack.callback(self._loop.close)
            self._generator = TextGenerator(
                engine=engine, text=text, metrics=ServerMetrics(), limits=options.limits
            )
            self._input_processor = InputProcessor(text=text, info=engine.info, options=options)
            self._chats = ChatProcessor(
                input_processor=self._input_processor,
                parser=ChatParser(
                    text=text,
                    tool_parser=options.tool_parser,
                    reasoning_parser=options.reasoning_parser,
                ),
            )
            # What the engine takes at once; other requests wait here, so that none is refused.
            self._num_slots = scheduler.max_running_requests + scheduler.max_queued_requests
            self._slots = asyncio.Semaphore(self._num_slots)
            self._one_at_a_time = asyncio.Lock()
            self._close = weakref.finalize(self, stack.pop_all().close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Free the models. Calls that still run, and later ones, raise RuntimeError."""
        self._close()

    @overload
    def generate(
        self,
        prompts: str | list[int],
        sampling_params: Params | None = ...,
        *,
        return_logprob: bool = ...,
        logprob_start_len: int = ...,
        top_logprobs_num: int = ...,
        use_tqdm: bool = ...,
    ) -> Completion: ...

    @overload
    def generate(
        self,
        prompts: list[str] | list[list[int]],
        sampling_params: Params | Sequence[Params] | None = ...,
        *,
        return_logprob: bool = ...,
        logprob_start_len: int = ...,
        top_logprobs_num: int = ...,
        use_tqdm: bool = ...,
    ) -> list[Completion]: ...

    def generate(
        self,
        prompts: Any,
        sampling_params: Params | Sequence[Params] | None = None,
        *,
        return_logprob: bool = False,
        logprob_start_len: int = -1,
        top_logprobs_num: int = 0,
        use_tqdm: bool = True,
    ) -> Completion | list[Completion]:
        """Continue one prompt or many; a prompt is a text or token ids.

        sampling_params is one value or one for each prompt. Results come in the prompts' order. The
        other arguments are POST /generate's; many prompts show a progress bar. Raises ValueError.
        """
        is_many = _is_many(prompts) and not _is_token_ids(prompts)
        fields = {
            "return_logprob": return_logprob,
            "logprob_start_len": logprob_start_len,
            "top_logprobs_num": top_logprobs_num,
        }
        bodies = [
            _body(prompt, params, fields, where=where, tools=None)
            for prompt, params, where in _each(prompts, sampling_params, is_many=is_many)
        ]
        return self._complete(bodies, is_many=is_many, use_tqdm=use_tqdm)

    @overload
    def chat(
        self,
        messages: list[Message],
        sampling_params: Params | None = ...,
        *,
        chat_template_kwargs: Mapping[str, Any] | None = ...,
        tools: Sequence[Mapping[str, Any]] | None = ...,
        tool_choice: str | Mapping[str, Any] | None = ...,
        parallel_tool_calls: bool | None = ...,
        return_logprob: bool = ...,
        logprob_start_len: int = ...,
        top_logprobs_num: int = ...,
        use_tqdm: bool = ...,
    ) -> Completion: ...

    @overload
    def chat(
        self,
        messages: list[list[Message]],
        sampling_params: Params | Sequence[Params] | None = ...,
        *,
        chat_template_kwargs: Mapping[str, Any] | None = ...,
        tools: Sequence[Mapping[str, Any]] | None = ...,
        tool_choice: str | Mapping[str, Any] | None = ...,
        parallel_tool_calls: bool | None = ...,
        return_logprob: bool = ...,
        logprob_start_len: int = ...,
        top_logprobs_num: int = ...,
        use_tqdm: bool = ...,
    ) -> list[Completion]: ...

    def chat(
        self,
        messages: Any,
        sampling_params: Params | Sequence[Params] | None = None,
        *,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        parallel_tool_calls: bool | None = None,
        return_logprob: bool = False,
        logprob_start_len: int = -1,
        top_logprobs_num: int = 0,
        use_tqdm: bool = True,
    ) -> Completion | list[Completion]:
        """Answer one chat or many; a chat is a list of messages with "role" and "content".

        As `generate`, with the tools of /v1/chat/completions. Raises ValueError.
        """
        is_many = _is_many(messages) and not _is_chat(messages)
        fields = {
            "chat_template_kwargs": chat_template_kwargs,
            "return_logprob": return_logprob,
            "logprob_start_len": logprob_start_len,
            "top_logprobs_num": top_logprobs_num,
        }
        offered = _tool_fields(tools, tool_choice, parallel_tool_calls)
        bodies = [
            _body(chat, params, fields, where=where, tools=offered)
            for chat, params, where in _each(messages, sampling_params, is_many=is_many)
        ]
        return self._complete(bodies, is_many=is_many, use_tqdm=use_tqdm)

    def stream(
        self,
        prompt: Prompt,
        sampling_params: Params | None = None,
        *,
        token_by_token: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        parallel_tool_calls: bool | None = None,
        return_logprob: bool = False,
        top_logprobs_num: int = 0,
    ) -> Iterator[TextDelta]:
        """Yield an answer as it grows; the prompt is a text, token ids, or a chat's messages.

        Closing the iterator cancels the request. Raises ValueError before the first delta.
        """
        fields = {
            "stream": True,
            "token_by_token": token_by_token,
            "chat_template_kwargs": chat_template_kwargs,
            "return_logprob": return_logprob,
            "top_logprobs_num": top_logprobs_num,
        }
        offered = _tool_fields(tools, tool_choice, parallel_tool_calls)
        is_chat = _is_chat(prompt)
        if not is_chat and offered.tools is not None:
            raise ValueError("'tools' is only accepted with messages; found a prompt")
        body = _body(prompt, sampling_params, fields, where="", tools=offered if is_chat else None)
        (prepared,) = self._run(self._prepare([body]))
        return self._deltas(prepared)

    # -- in the caller's thread ---------------------------------------------------------------

    def _complete(
        self, bodies: list[_Body], *, is_many: bool, use_tqdm: bool
    ) -> Completion | list[Completion]:
        with tqdm(total=len(bodies), unit="prompt", disable=not (is_many and use_tqdm)) as bar:
            completions = self._run(self._complete_all(bodies, advance=bar.update))
        return completions if is_many else completions[0]

    def _deltas(self, prepared: _Prepared) -> Iterator[TextDelta]:
        choices = [
            StreamedChoice(i, prepared.new_parser(), with_logprobs=prepared.with_logprobs)
            for i in range(len(prepared.requests))
        ]
        token_by_token = prepared.body.fields.token_by_token
        deltas = self._stream(prepared.requests, token_by_token=token_by_token)
        try:
            while (batch := self._run(_next(deltas))) is not None:
                for index, delta in batch:
                    yield choices[index].delta_of(delta)
        finally:
            self._loop.run_unattended(_end(deltas))

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        with python_errors():
            return self._loop.run(coroutine)

    # -- in the loop's thread -----------------------------------------------------------------

    async def _prepare(self, bodies: Sequence[_Body]) -> list[_Prepared]:
        """Tokenize all prompts, and refuse them together before the first one runs."""
        return [await self._prepare_one(body) for body in bodies]

    async def _prepare_one(self, body: _Body) -> _Prepared:
        with python_errors(where=body.where):
            if body.tools is None:
                requests = await tokenize_native(self._input_processor, body.fields, uuid4().hex)
                return _Prepared(body, requests, PlainTextParser)
            fields = body.fields
            params = cast(SamplingBody, fields.sampling_params or SamplingBody())
            chat = await self._chats.tokenize(
                cast("list[ChatMessage]", fields.messages),
                params,
                names=(uuid4().hex,),
                extras=ChatExtras(
                    tools=body.tools.template_tools,
                    template_kwargs=fields.chat_template_kwargs or {},
                ),
                tool_choice=body.tools.tool_choice_mode(),
                sampling_prefix="sampling_params.",
                logprobs=fields.logprob_options(),
            )
            return _Prepared(body, chat.tokenized.choices(params.num_choices), chat.new_parser)

    async def _complete_all(
        self, bodies: Sequence[_Body], *, advance: Callable[[], object]
    ) -> list[Completion]:
        """Run all prompts; when one fails, the others are cancelled and its error is raised."""
        prepared = await self._prepare(bodies)
        tasks = [asyncio.create_task(self._complete_one(each, advance)) for each in prepared]
        try:
            return await asyncio.gather(*tasks)
        finally:
            await _cancel(tasks)

    async def _complete_one(self, prepared: _Prepared, advance: Callable[[], object]) -> Completion:
        tasks = [asyncio.create_task(self._whole(request)) for request in prepared.requests]
        try:
            outputs = await asyncio.gather(*tasks)
        finally:
            await _cancel(tasks)
        advance()
        return prepared.completion(outputs)

    async def _whole(self, request: TokenizedRequest) -> CompletionOutput:
        async with self._slots:
            (output,) = await self._generator.generate([request], record=_record())
        return output

    async def _stream(
        self, requests: list[TokenizedRequest], *, token_by_token: bool
    ) -> AsyncGenerator[DeltaBatch, None]:
        async with self._slots_of(len(requests)):
            deltas = self._generator.stream(
                requests, keepalive_s=None, record=_record(), token_by_token=token_by_token
            )
            async with aclosing(deltas):
                async for batch in deltas:
                    assert not isinstance(batch, KeepAlive)  # there is no interval for one
                    yield batch

    @asynccontextmanager
    async def _slots_of(self, count: int) -> AsyncIterator[None]:
        """Hold a slot for each of several choices, or all slots where there are fewer."""
        held = 0
        try:
            async with self._one_at_a_time:  # two that hold half of theirs would wait for ever
                while held < min(count, self._num_slots):
                    await self._slots.acquire()
                    held += 1
            yield
        finally:
            for _ in range(held):
                self._slots.release()


def _is_many(prompts: object) -> bool:
    return isinstance(prompts, Iterable) and not isinstance(prompts, str | bytes | Mapping)


def _is_token_ids(prompt: object) -> bool:
    return isinstance(prompt, list | tuple) and bool(prompt) and isinstance(prompt[0], int)


def _is_chat(messages: object) -> bool:
    return (
        isinstance(messages, list | tuple) and bool(messages) and isinstance(messages[0], Mapping)
    )


def _each(
    prompts: Any, sampling_params: Params | Sequence[Params] | None, *, is_many: bool
) -> Iterator[tuple[Any, Any, str]]:
    """Pair each prompt with its sampling parameters, and with how errors call it."""
    listed = list(sampling_params) if isinstance(sampling_params, list | tuple) else None
    if not is_many:
        if listed is not None:
            raise ValueError("'sampling_params' is a list, but there is one prompt; send one value")
        yield prompts, sampling_params, ""
        return
    many = list(prompts)
    if listed is not None and len(listed) != len(many):
        raise ValueError(f"'sampling_params' must be one value or {len(many)}; found {len(listed)}")
    for i, prompt in enumerate(many):
        yield prompt, sampling_params if listed is None else listed[i], f"prompt {i}: "


def _body(
    prompt: Any, params: Any, options: Mapping[str, Any], *, where: str, tools: ToolFields | None
) -> _Body:
    """Validate one prompt with its options. Raises ValueError."""
    name = "input_ids" if _is_token_ids(prompt) else "text"
    if tools is not None:
        name = "messages"
    with python_errors(where=where):
        given = {key: json_value(key, value) for key, value in options.items() if value is not None}
        fields = GenerateBody.model_validate(
            {name: json_value(name, prompt), "sampling_params": _sampling(params), **given}
        )
        if fields.is_list:
            raise ValueError(f"'{name}' must be one prompt; found a list of prompts")
    return _Body(prompt, fields, tools, where)


def _sampling(params: Any) -> SamplingParams | None:
    if params is None or isinstance(params, SamplingParams):
        return params
    if isinstance(params, Mapping):
        return SamplingParams(**params)
    raise ValueError(
        f"'sampling_params' must be SamplingParams or a dict; found {type(params).__name__}"
    )


def _tool_fields(tools: Any, tool_choice: Any, parallel_tool_calls: Any) -> ToolFields:
    given = {
        "tools": tools,
        "tool_choice": tool_choice,
        "parallel_tool_calls": parallel_tool_calls,
    }
    with python_errors():
        return ToolFields.model_validate({k: json_value(k, v) for k, v in given.items()})


def _record() -> RequestRecord:
    """Return an unused request record; only the HTTP service reads records."""
    return RequestRecord(uuid4().hex, client="", method="", path="", started_at=time.time())


async def _next(deltas: AsyncGenerator[DeltaBatch, None]) -> DeltaBatch | None:
    return await anext(deltas, None)


async def _end(deltas: AsyncGenerator[DeltaBatch, None]) -> None:
    await deltas.aclose()


async def _cancel(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
