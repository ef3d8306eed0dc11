"""Compiles grammars for the model's vocabulary: checked in a sandbox, then cached."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from threading import Lock
from typing import Any

from llguidance import LLMatcher, LLTokenizer

from engine import EngineBusy
from server.errors.api_errors import ApiError
from server.structured_output.grammar_mask import GrammarMask
from server.structured_output.grammar_spec import ANY_OBJECT, GrammarSpec
from server.structured_output.llguidance_grammar import LIMITS, grammar_list, grammar_part
from server.structured_output.output_grammar import OutputGrammar
from server.structured_output.sandbox import SandboxError, SandboxPool
from server.structured_output.vocabulary import grammar_tokenizer
from server.text.tokenizer import TextCodec

_NUM_THREADS = 2  # grammars compiled at the same time
_CACHE_SIZE = 32  # compiled grammars
_MAX_PENDING = 32  # compilations running or waiting for a thread
_MAX_ERROR_CHARS = 500  # of a library message that is quoted


@dataclass(frozen=True, slots=True)
class CompiledGrammar:
    """A compiled grammar. Each completion gets a mask from it."""

    field: str  # the request field it comes from
    matcher: LLMatcher  # in its initial state; copied, never advanced
    new_matcher: Callable[[], LLMatcher]
    evict: Callable[[], None]  # from the cache; called on the engine's thread
    tokenizer: LLTokenizer
    eos_ids: tuple[int, ...]

    def mask(self, *, ignore_eos: bool) -> GrammarMask:
        return GrammarMask(
            template=self.matcher,
            new_matcher=self._replacement,
            tokenizer=self.tokenizer,
            eos_ids=self.eos_ids,
            ignore_eos=ignore_eos,
        )

    def _replacement(self) -> LLMatcher:
        """Return a new matcher, once copies of `matcher` have used up their shared limits."""
        self.evict()
        return self.new_matcher()


class GrammarCache:
    """Caches the most recently used grammars.

    Thread-safe: requests read and write it on the event loop, masks evict on the engine's thread.
    """

    def __init__(self, size: int = _CACHE_SIZE) -> None:
        self._size = size
        self._lock = Lock()
        self._grammars: OrderedDict[OutputGrammar, CompiledGrammar] = OrderedDict()

    def get(self, key: OutputGrammar) -> CompiledGrammar | None:
        with self._lock:
            grammar = self._grammars.get(key)
            if grammar is not None:
                self._grammars.move_to_end(key)
            return grammar

    def put(self, key: OutputGrammar, grammar: CompiledGrammar) -> None:
        with self._lock:
            self._grammars[key] = grammar
            self._grammars.move_to_end(key)
            if len(self._grammars) > self._size:
                self._grammars.popitem(last=False)

    def evict(self, key: OutputGrammar, matcher: LLMatcher) -> None:
        """Remove the grammar with this matcher; a newer one under the same key stays."""
        with self._lock:
            grammar = self._grammars.get(key)
            if grammar is not None and grammar.matcher is matcher:
                del self._grammars[key]


class GrammarCompiler:
    """Compiles grammars off the event loop, within a time limit.

    A sandbox process compiles each grammar first. It can be killed; the server itself must not
    hang or grow on a hostile grammar.
    """

    def __init__(
        self, *, text: TextCodec, vocab_size: int, eos_ids: Sequence[int], timeout_s: float
    ) -> None:
        """vocab_size: size of the model's logits, which may exceed the number of tokens."""
        self._text = text
        self._vocab_size = vocab_size
        self._eos_ids = tuple(eos_ids)
        self._sandboxes = SandboxPool(timeout_s=timeout_s)
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="grammars")
        self._cache = GrammarCache()
        self._num_pending = 0
        self._tokenizer_lock = Lock()

    async def compile(self, grammar: OutputGrammar) -> CompiledGrammar:
        """Return the compiled grammar, from the cache where possible.

        Raises ApiError with the field at fault and, for a schema, the location inside it.
        Raises EngineBusy while too many compilations are pending.
        """
        cached = self._cache.get(grammar)
        if cached is not None:
            return replace(cached, field=_last_spec(grammar).field)
        if self._num_pending >= _MAX_PENDING:
            raise EngineBusy(f"{self._num_pending} grammars wait for compilation; try again later")
        loop = asyncio.get_running_loop()
        self._num_pending += 1
        try:
            compiled = await loop.run_in_executor(self._threads, self._compile, grammar)
        finally:
            self._num_pending -= 1
        self._cache.put(grammar, compiled)
        return compiled

    def _compile(self, grammar: OutputGrammar) -> CompiledGrammar:
        opens = grammar.opens_objects
        parts = {name: self._part(spec, opens) for name, spec in grammar.specs.items()}
        lark = grammar.lark()
        text = grammar_list(parts if lark is None else {"output": {"lark_grammar": lark}, **parts})
        last = _last_spec(grammar)
        if lark is not None:
            self._check(last, {"grammar": text})
        new_matcher = partial(LLMatcher, self._tokenizer, text, log_level=0, limits=LIMITS)
        matcher = new_matcher()
        evict = partial(self._cache.evict, grammar, matcher)
        compiled = CompiledGrammar(
            last.field, matcher, new_matcher, evict, self._tokenizer, self._eos_ids
        )
        if matcher.is_error() or not compiled.mask(ignore_eos=True).can_begin:
            reason = matcher.get_error() or "this model has no tokens for it"
            raise _invalid_grammar(last, reason)
        return compiled

    def _part(self, spec: GrammarSpec, opens_objects: bool) -> dict[str, Any]:
        request = {"kind": spec.kind, "text": spec.text, "opens_objects": opens_objects}
        try:
            result = self._check(spec, request)
        except ApiError:
            if spec.is_strict:
                raise
            return grammar_part("json_schema", ANY_OBJECT)
        part: dict[str, Any] = result["part"]
        return part

    def _check(self, spec: GrammarSpec, request: dict[str, Any]) -> dict[str, Any]:
        """Return the sandbox's result. Raises ApiError for an invalid grammar."""
        try:
            result = self._sandboxes.check(request)
        except SandboxError as error:
            raise _invalid_grammar(spec, str(error)) from error
        if "error" in result:
            raise _invalid_grammar(spec, result["error"], at=result.get("at", ""))
        return result

    @property
    def _tokenizer(self) -> LLTokenizer:
        with self._tokenizer_lock:
            return self._cached_tokenizer

    @cached_property
    def _cached_tokenizer(self) -> LLTokenizer:
        return grammar_tokenizer(
            self._text.token_bytes(self._vocab_size),
            self._eos_ids,
            lambda text: self._text.encode(text, add_special_tokens=False),
        )


def _last_spec(grammar: OutputGrammar) -> GrammarSpec:
    """Return the spec that an error about the combined grammar names."""
    return list(grammar.specs.values())[-1]


def _invalid_grammar(spec: GrammarSpec, reason: str, *, at: str = "") -> ApiError:
    location = f" at {at}" if at else ""
    return ApiError(
        f"'{spec.field}' cannot be served{location}: {reason[:_MAX_ERROR_CHARS]}",
        param=spec.field,
        code="invalid_grammar",
    )
