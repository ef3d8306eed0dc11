"""GrammarMask: along any drafts it agrees with a matcher that consumed the same tokens."""

import json
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from server.structured_output.grammar_mask import GrammarMask
from server.structured_output.grammar_spec import GrammarKind
from server.structured_output.llguidance_grammar import LIMITS, grammar_list, grammar_part
from server.structured_output.vocabulary import grammar_tokenizer
from tests.support.server.grammar_cases import BOUNDED

EOS = 300
PIECES = (b"true", b'"a', b'":', b", ", b"12", b"\n  ", "日".encode(), "ö".encode()[:1] + b"?")
TOKENS: list[bytes | None] = [bytes([i]) for i in range(256)] + list(PIECES)
TOKENS += [None] * (EOS + 1 - len(TOKENS))
NUM_WORDS = -(-len(TOKENS) // 32)


def _encode(text: str) -> list[int]:
    return list(text.encode())


TOKENIZER = grammar_tokenizer(TOKENS, [EOS], _encode)


def matcher_of(kind: GrammarKind, text: str, tokenizer: LLTokenizer = TOKENIZER) -> LLMatcher:
    grammar = grammar_list({"content": grammar_part(kind, text)})
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=LIMITS)
    assert not matcher.is_error(), matcher.get_error()
    return matcher


def mask_of(kind: GrammarKind, text: str, *, ignore_eos: bool = False) -> GrammarMask:
    return GrammarMask(
        template=matcher_of(kind, text),
        new_matcher=lambda: matcher_of(kind, text),
        tokenizer=TOKENIZER,
        eos_ids=[EOS],
        ignore_eos=ignore_eos,
    )


def allowed(mask: GrammarMask, draft_ids: Sequence[int] = ()) -> list[int]:
    words = np.zeros(NUM_WORDS, dtype=np.uint32)
    mask.fill(list(draft_ids), words)
    return np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist()


def commit_all(mask: GrammarMask, text: str) -> list[bool]:
    """Commit a text byte by byte; return each result."""
    found = []
    for byte in text.encode():
        assert byte in allowed(mask), (text, chr(byte))
        found.append(mask.commit(byte))
    return found


GRAMMARS: list[tuple[GrammarKind, str]] = [
    *(("json_schema", json.dumps(schema)) for schema in BOUNDED.values()),
    ("json_schema", "true"),
    ("regex", "a+b?(cd|ce)*"),
    ("regex", "[0-9]{2,4}(,[0-9]{2,4}){0,3}"),
    ("ebnf", 'root ::= "(" root ")" | "x"'),
    ("ebnf", 'start: "a" start "b" | "c"'),
    ("choice", json.dumps(["yes", "no", "yesterday"])),
]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(GRAMMARS), st.data())
def test_drafts_do_not_change_the_mask_after_committed_tokens(
    grammar: tuple[GrammarKind, str], data: st.DataObject
) -> None:
    """Masks are filled along random drafts; some of their tokens are committed."""
    mask, committed = mask_of(*grammar), list[int]()
    for _ in range(6):
        draft: list[int] = []
        for _ in range(data.draw(st.integers(0, 4))):
            ids = allowed(mask, draft)
            if not ids:
                break
            draft.append(data.draw(st.sampled_from(ids)))
        plain = mask_of(*grammar)
        for token_id in committed:
            assert not plain.commit(token_id)
        cut = data.draw(st.integers(0, len(draft)))
        for k in data.draw(st.permutations(range(cut + 1))):
            replayed = mask_of(*grammar)
            ended = [replayed.commit(t) for t in [*committed, *draft[:k]]]
            if not any(ended):
                assert allowed(mask, draft[:k]) == allowed(plain, draft[:k]) == allowed(replayed)
        new = draft[:cut] or [data.draw(st.sampled_from(allowed(mask)))]
        for token_id in new:
            committed.append(token_id)
            is_over = mask.commit(token_id)
            assert mask.error is None
            if is_over:
                return


@pytest.mark.parametrize("name", list(BOUNDED))
def test_a_text_that_follows_the_mask_to_its_end_is_valid(name: str) -> None:
    validator = _validator(BOUNDED[name])
    rng = np.random.default_rng(len(name))
    for _ in range(20):
        mask, text = mask_of("json_schema", json.dumps(BOUNDED[name])), b""
        for _ in range(400):
            token_id = int(rng.choice(allowed(mask)))
            is_over = mask.commit(token_id)
            text += (TOKENS[token_id] or b"") if token_id != EOS else b""
            if is_over:
                break
        assert is_over
        assert mask.error is None
        validator(json.loads(text))


def _validator(schema: dict[str, Any]) -> Any:
    import jsonschema_rs

    return jsonschema_rs.validator_for(schema).validate


def test_a_mask_ends_with_the_token_that_completes_the_grammar() -> None:
    assert commit_all(mask_of("json_schema", '{"enum":[10,11]}'), "11") == [False, True]
    assert commit_all(mask_of("regex", "ab"), "ab") == [False, True]
    assert commit_all(mask_of("choice", '["no","none"]'), "no") == [False, False]
    assert commit_all(mask_of("choice", '["no","none"]'), "none") == [False, False, False, True]


def test_the_end_of_text_is_allowed_where_the_grammar_may_end_or_continue() -> None:
    mask = mask_of("regex", "ab*")
    assert allowed(mask) == [ord("a")]
    mask.commit(ord("a"))
    assert allowed(mask) == [ord("b"), EOS]
    assert allowed(mask, [ord("b")]) == [ord("b"), EOS]
    assert mask.commit(EOS)


def test_ignore_eos_masks_the_end_of_text() -> None:
    mask = mask_of("regex", "ab{0,2}", ignore_eos=True)
    mask.commit(ord("a"))
    assert allowed(mask) == [ord("b")]
    assert not mask.commit(ord("b"))
    assert mask.commit(ord("b"))


def test_no_token_is_allowed_after_a_draft_that_completes_the_grammar() -> None:
    mask = mask_of("regex", "ab")
    assert allowed(mask, b"a") == [ord("b")]
    assert allowed(mask, b"ab") == []
    assert allowed(mask) == [ord("a")]


def test_a_model_without_an_end_of_text_can_follow_a_grammar() -> None:
    tokens: list[bytes | None] = [bytes([i]) for i in range(256)]
    tokenizer = grammar_tokenizer(tokens, [], _encode)
    template = matcher_of("regex", "ab?", tokenizer)
    mask = GrammarMask(
        template=template,
        new_matcher=template.deep_copy,
        tokenizer=tokenizer,
        eos_ids=[],
        ignore_eos=False,
    )
    words = np.zeros(8, dtype=np.uint32)
    assert not mask.commit(ord("a"))
    mask.fill([], words)
    assert np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")) == [ord("b")]
    assert mask.commit(ord("b"))
    assert mask.error is None


def test_a_grammar_that_exceeds_the_limits_ends_the_output_with_an_error() -> None:
    rules = "\n".join(f"a{i}: a{i + 1} a{i + 1}" for i in range(500))
    mask = mask_of("ebnf", f'start: "x"? a0 | "y"\n{rules}\na500: "z"')
    for _ in range(50):
        ids = allowed(mask)
        if mask.error is not None or mask.commit(ids[0]):
            break
    assert mask.error is not None
    assert "<state>" not in mask.error
    assert allowed(mask) == [EOS]
    assert mask.commit(EOS)


def test_limits_used_up_by_other_outputs_do_not_affect_this_one() -> None:
    """Copies share a limit of lexer states; this regex needs more than one limit in total."""
    grammar = grammar_list({"content": grammar_part("regex", "(.*[a-m].{9}q)|(.*[n-z].{10}w)")})
    made: list[LLMatcher] = []

    def new_matcher() -> LLMatcher:
        few = LLParserLimits(max_lexer_states=6000, verbose_errors=False)
        made.append(LLMatcher(TOKENIZER, grammar, log_level=0, limits=few))
        return made[-1]

    template = new_matcher()
    generator = random.Random(3)
    for _ in range(40):
        mask = GrammarMask(
            template=template,
            new_matcher=new_matcher,
            tokenizer=TOKENIZER,
            eos_ids=[EOS],
            ignore_eos=True,
        )
        for _ in range(60):
            byte = generator.choice(b"abcdefghijklmnoprstuvxyz")
            assert byte in allowed(mask), mask.error
            assert not mask.commit(byte)
        assert mask.error is None
    assert len(made) > 1, "the copies never used up the shared limit"


def test_a_forced_text_is_tokenized_as_the_model_tokenizer_does() -> None:
    tokens: list[bytes | None] = [bytes([i]) for i in range(256)] + [b"ab", b"abc", b"c"]
    tokenizer = grammar_tokenizer(tokens, [], lambda text: [256, 258] if text == "abc" else [])
    template = matcher_of("regex", "abc", tokenizer)
    mask = GrammarMask(
        template=template,
        new_matcher=template.deep_copy,
        tokenizer=tokenizer,
        eos_ids=[],
        ignore_eos=False,
    )
    words = np.zeros(9, dtype=np.uint32)
    mask.fill([], words)
    assert np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist() == [256]
