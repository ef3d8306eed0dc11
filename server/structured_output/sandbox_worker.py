"""A process that tries grammars, so that a hostile one can be ended with it.

It reads requests, a JSON object a line, and answers each with a line:

    {"kind": "json_schema", "text": "..."}    ->  {"part": {...}} or {"error": "...", "at": "/..."}
    {"grammar": "..."}                        ->  {} or {"error": "..."}

What passes here compiles in the server too, within the same limits.
"""

import json
import resource
import sys
from contextlib import suppress
from typing import Any

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from server.structured_output.limits import LIMITS
from server.structured_output.llguidance_grammar import (
    GrammarError,
    failing_place,
    first_words,
    joined,
    written_part,
)

_MEMORY_BYTES = 2 * 2**30  # address space
_MOST_TRIES = 400  # subschemas that are tried to find the one at fault


class _Bytes:
    """A vocabulary of single bytes: the least that a matcher needs."""

    eos_token_id = 256
    bos_token_id = None
    tokens = (*(bytes([i]) for i in range(256)), b"</s>")
    special_token_ids = (256,)

    def __call__(self, text: str) -> list[int]:
        return list(text.encode())


class Prober:
    """Compiles grammars over bytes and says what is wrong with them."""

    def __init__(self) -> None:
        self._tokenizer = LLTokenizer(TokenizerWrapper(_Bytes()), slices=[])

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if "grammar" in request:
            error = self._error(request["grammar"])
            return {} if error is None else {"error": error}
        kind, text = request["kind"], request["text"]
        try:
            part = written_part(kind, text)
        except GrammarError as error:
            return {"error": str(error), "at": self._place_in(kind, text)}
        found = self._error(joined({"answer": part}))
        if found is None:
            return {"part": part}
        return {"error": found, "at": self._place_in(kind, text)}

    def _error(self, grammar: str) -> str | None:
        """Why a matcher cannot be made, or could say nothing; None if it can."""
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=LIMITS)
        if not matcher.is_error():
            first = _first_allowed(matcher.compute_bitmask()[: _Bytes.eos_token_id // 8])
            if first is not None:  # a step, and back: some grammars know no way back
                matcher.consume_token(first)
                matcher.rollback(1)
            if first is not None and not matcher.is_error():
                return None
        return first_words(matcher.get_error()) or "no text but the empty one keeps to it"

    def _place_in(self, kind: str, text: str) -> str:
        try:
            return self._place(json.loads(text)) if kind == "json_schema" else ""
        except RecursionError:
            return ""  # nobody needs to be told where a schema is too deep

    def _place(self, schema: Any) -> str:
        tries = iter(range(_MOST_TRIES))

        def error_of(some: Any) -> str | None:
            if next(tries, None) is None:
                return None
            try:
                return self._error(
                    joined({"answer": written_part("json_schema", json.dumps(some))})
                )
            except GrammarError as error:
                return str(error)

        return failing_place(schema, error_of)


def _first_allowed(bits: bytes) -> int | None:
    return next((8 * i + b for i, byte in enumerate(bits) for b in range(8) if byte >> b & 1), None)


def main() -> None:
    with suppress(ValueError, OSError):  # where a system knows no such limit
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    prober = Prober()
    for line in sys.stdin:
        sys.stdout.write(json.dumps(prober.answer(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
