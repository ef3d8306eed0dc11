"""Grammars compiled for the model's tokens: tried elsewhere first, kept for whoever asks again."""

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
from server.structured_output.framing import Frame
from server.structured_output.grammar_mask import GrammarMask
from server.structured_output.grammar_spec import ANY_OBJECT, GrammarSpec
from server.structured_output.limits import LIMITS
from server.structured_output.llguidance_grammar import joined, written_part
from server.structured_output.sandbox import ProbeFailed, Probes
from server.structured_output.vocabulary import grammar_tokenizer
from server.text.tokenizer import TextCodec

_THREADS = 2  # grammars that are compiled at once
_MOST_KEPT = 32
_MOST_WAITING = 32  # for a thread
_LONGEST_ERROR = 500  # characters of the library's words that are repeated


@dataclass(frozen=True, slots=True)
class Grammar:
    """A compiled grammar. Every choice of every answer follows it with a mask of its own."""

    field: str  # the client's name for it
    matcher: LLMatcher  # at its beginning; copied, never moved
    make: Callable[[], LLMatcher]
    give_away: Callable[[], None]  # the next request compiles it anew
    tokenizer: LLTokenizer
    eos_ids: tuple[int, ...]

    def mask(self, *, ignore_eos: bool) -> GrammarMask:
        return GrammarMask(
            template=self.matcher,
            afresh=self._made_again,
            tokenizer=self.tokenizer,
            eos_ids=self.eos_ids,
            ignore_eos=ignore_eos,
        )

    def _made_again(self) -> LLMatcher:
        """The copies of the kept one have used up what they may explore together."""
        self.give_away()
        return self.make()


class GrammarCompiler:
    """Compiles what requests ask for, off the event loop and within a time.

    A grammar is tried in a process of its own first. That one can be ended; this one must never
    be held up, or grow, by what a stranger sends.
    """

    def __init__(
        self, *, text: TextCodec, vocab_size: int, eos_ids: Sequence[int], timeout_s: float
    ) -> None:
        """vocab_size: ids that the model has logits for, which may be more than it has tokens."""
        self._text = text
        self._vocab_size = vocab_size
        self._eos_ids = tuple(eos_ids)
        self._probes = Probes(timeout_s=timeout_s)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="grammars")
        self._kept: OrderedDict[Frame, Grammar] = OrderedDict()
        self._num_waiting = 0
        self._making_tokenizer = Lock()

    async def compile(self, frame: Frame) -> Grammar:
        """Raises ApiError that names the field at fault, and the place inside a schema.

        Raises EngineBusy where too many others wait for theirs.
        """
        if frame in self._kept:
            self._kept.move_to_end(frame)
            return replace(self._kept[frame], field=_last(frame).field)
        if self._num_waiting >= _MOST_WAITING:
            raise EngineBusy(f"{self._num_waiting} grammars wait to be compiled; try again later")
        loop = asyncio.get_running_loop()
        self._num_waiting += 1
        try:
            grammar = await loop.run_in_executor(self._threads, self._compiled, frame)
        finally:
            self._num_waiting -= 1
        self._kept[frame] = grammar
        while len(self._kept) > _MOST_KEPT:
            self._kept.popitem(last=False)
        return grammar

    def _compiled(self, frame: Frame) -> Grammar:
        parts = {name: self._part(asked) for name, asked in frame.asked.items()}
        lark = frame.lark()
        whole = joined(parts if lark is None else {"whole": {"lark_grammar": lark}, **parts})
        last = _last(frame)
        if lark is not None:
            self._asked(last, {"grammar": whole})
        make = partial(LLMatcher, self._tokenizer, whole, log_level=0, limits=LIMITS)
        give_away = partial(self._forget, frame)
        matcher = make()
        grammar = Grammar(last.field, matcher, make, give_away, self._tokenizer, self._eos_ids)
        if matcher.is_error() or not grammar.mask(ignore_eos=True).can_begin:
            why = matcher.get_error() or "this model has no tokens for it"
            raise _refused(last, why)
        return grammar

    def _forget(self, frame: Frame) -> None:
        self._kept.pop(frame, None)

    def _part(self, asked: GrammarSpec) -> dict[str, Any]:
        try:
            answer = self._asked(asked, {"kind": asked.kind, "text": asked.text})
        except ApiError:
            if asked.is_strict:
                raise
            return written_part("json_schema", ANY_OBJECT)
        part: dict[str, Any] = answer["part"]
        return part

    def _asked(self, asked: GrammarSpec, request: dict[str, Any]) -> dict[str, Any]:
        """A probe's answer, without an error. Raises ApiError."""
        try:
            answer = self._probes.ask(request)
        except ProbeFailed as error:
            raise _refused(asked, str(error)) from error
        if "error" in answer:
            raise _refused(asked, answer["error"], at=answer.get("at", ""))
        return answer

    @property
    def _tokenizer(self) -> LLTokenizer:
        with self._making_tokenizer:
            return self._made_tokenizer

    @cached_property
    def _made_tokenizer(self) -> LLTokenizer:
        return grammar_tokenizer(
            self._text.token_bytes(self._vocab_size),
            self._eos_ids,
            lambda text: self._text.encode(text, add_special_tokens=False),
        )


def _last(frame: Frame) -> GrammarSpec:
    """What a refusal of the whole names."""
    return list(frame.asked.values())[-1]


def _refused(asked: GrammarSpec, why: str, *, at: str = "") -> ApiError:
    place = f" at {at}" if at else ""
    return ApiError(
        f"'{asked.field}' cannot be served{place}: {why[:_LONGEST_ERROR]}",
        param=asked.field,
        code="invalid_grammar",
    )
