"""Checks grammars in a separate process, which the server kills where one exceeds its limits.

Reads one JSON object per line and writes one line per request:

    {"kind": "json_schema", "text": "...", "opens_objects": false}
                          ->  {"part": {...}} or {"error": "...", "at": "/..."}
    {"grammar": "..."}    ->  {} or {"error": "..."}

A grammar that passes here also compiles in the server, within the same limits.
"""

import json
import resource
import sys
from contextlib import suppress
from typing import Any

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from server.structured_output.json_schema import GrammarError
from server.structured_output.llguidance_grammar import (
    LIMITS,
    error_summary,
    failing_location,
    grammar_list,
    grammar_part,
)

_MEMORY_BYTES = 2 * 2**30  # address space
_MAX_ATTEMPTS = 400  # subschemas compiled to locate the one at fault


class _ByteVocabulary:
    """A vocabulary of single bytes: the least that a matcher needs."""

    eos_token_id = 256
    bos_token_id = None
    tokens = (*(bytes([i]) for i in range(256)), b"</s>")
    special_token_ids = (256,)

    def __call__(self, text: str) -> list[int]:
        return list(text.encode())


class GrammarChecker:
    """Compiles grammars over bytes and reports their errors."""

    def __init__(self) -> None:
        self._tokenizer = LLTokenizer(TokenizerWrapper(_ByteVocabulary()), slices=[])

    def check(self, request: dict[str, Any]) -> dict[str, Any]:
        if "grammar" in request:
            error = self._error(request["grammar"])
            return {} if error is None else {"error": error}
        kind, text = request["kind"], request["text"]
        try:
            part = grammar_part(kind, text, opens_objects=request.get("opens_objects", False))
        except GrammarError as error:
            return {"error": str(error), "at": error.at or self._location(kind, text)}
        found = self._error(grammar_list({"content": part}))
        if found is None:
            return {"part": part}
        return {"error": found, "at": self._location(kind, text)}

    def _error(self, grammar: str) -> str | None:
        """Return why the grammar cannot be served; None if it can."""
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=LIMITS)
        if not matcher.is_error():
            first = _first_allowed(matcher.compute_bitmask()[: _ByteVocabulary.eos_token_id // 8])
            if first is not None:  # some grammars do not support rollback
                matcher.consume_token(first)
                matcher.rollback(1)
            if first is not None and not matcher.is_error():
                return None
        return error_summary(matcher.get_error()) or "it matches only the empty text"

    def _location(self, kind: str, text: str) -> str:
        try:
            return self._schema_location(json.loads(text)) if kind == "json_schema" else ""
        except RecursionError:
            return ""  # the message already says that the schema is nested too deeply

    def _schema_location(self, schema: Any) -> str:
        attempts = iter(range(_MAX_ATTEMPTS))

        def error_of(subschema: Any) -> str | None:
            if next(attempts, None) is None:
                return None
            try:
                part = grammar_part("json_schema", json.dumps(subschema))
                return self._error(grammar_list({"content": part}))
            except GrammarError as error:
                return str(error)

        return failing_location(schema, error_of)


def _first_allowed(bits: bytes) -> int | None:
    return next((8 * i + b for i, byte in enumerate(bits) for b in range(8) if byte >> b & 1), None)


def main() -> None:
    with suppress(ValueError, OSError):  # systems without this limit
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    checker = GrammarChecker()
    for line in sys.stdin:
        sys.stdout.write(json.dumps(checker.check(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
