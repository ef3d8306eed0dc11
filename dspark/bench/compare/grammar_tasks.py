"""Defines the grammars of `dspark bench --compare grammar`."""

import asyncio
import json
from collections.abc import Callable

from dspark.bench.compare.grammar import Masks
from engine import EngineInfo, TokenMask
from server.structured_output.compiler import GrammarCompiler
from server.structured_output.grammar_spec import GrammarSpec
from server.structured_output.output_grammar import OutputGrammar
from server.text.tokenizer import TextCodec

ANY_TEXT = r"(?s:.*)"
SCHEMA = {
    "type": "object",
    "properties": {
        "answer": {"type": "string", "maxLength": 200},
        "kind": {"enum": ["number", "code", "text", "list"]},
        "steps": {"type": "array", "items": {"type": "string", "maxLength": 80}, "maxItems": 4},
        "confidence": {"type": "number", "minimum": 0, "maximum": 1},
    },
    "required": ["answer", "kind", "steps", "confidence"],
    "additionalProperties": False,
}


def masks_for(text: TextCodec, info: EngineInfo, *, timeout_s: float) -> Masks:
    """Compile the grammars for the engine's vocabulary."""
    compiler = GrammarCompiler(
        text=text, vocab_size=info.vocab_size, eos_ids=info.eos_token_ids, timeout_s=timeout_s
    )
    any_text = GrammarSpec("any text", "regex", ANY_TEXT)
    grammar = GrammarSpec("grammar", "json_schema", json.dumps(SCHEMA))
    return Masks(any_text=_maker(compiler, any_text), grammar=_maker(compiler, grammar))


def _maker(compiler: GrammarCompiler, spec: GrammarSpec) -> Callable[[], TokenMask]:
    compiled = asyncio.run(compiler.compile(OutputGrammar(spec)))
    return lambda: compiled.mask(ignore_eos=False)
