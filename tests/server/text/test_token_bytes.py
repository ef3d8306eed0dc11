"""Text and bytes of single tokens, for byte-level and byte-fallback tokenizers."""

import functools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from server.generation.stop_strings import OutputText, StopTable
from server.text.tokenizer import TextCodec

TEXT = "the the 日本 e\u0301 👩\u200d👩\u200d👧 na\u00efve"
ANY_TEXT = st.text(
    st.sampled_from("ab the日本語👍👩\u200d\u0301\u0300é가e\n") | st.characters(codec="utf-8"),
    max_size=20,
)


def _byte_level() -> Tokenizer:
    """Byte-level BPE as in GPT-2: every byte is a letter, with some merges."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merged = ["th", "the", "Ġthe", "Ġt", "æĹ", "æĹ¥"]
    vocabulary = {text: i for i, text in enumerate([*letters, *merged])}
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("Ġ", "t"), ("æ", "Ĺ"), ("æĹ", "¥")]
    tokenizer = Tokenizer(BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _byte_fallback() -> Tokenizer:
    """Byte fallback as in SentencePiece: unknown characters become bytes such as <0xE6>."""
    names = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocabulary = {text: i for i, text in enumerate([*names, *"▁abthe日", "▁th", "th"])}
    tokenizer = Tokenizer(
        BPE(vocabulary, [("t", "h"), ("▁", "th")], unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer


@functools.cache
def codec(kind: str) -> TextCodec:
    tokenizer = _byte_level() if kind == "byte level" else _byte_fallback()
    return TextCodec(tokenizer=PreTrainedTokenizerFast(tokenizer_object=tokenizer))


KINDS = pytest.mark.parametrize("kind", ["byte level", "byte fallback"])


@KINDS
@settings(deadline=None, max_examples=60)
@given(text=ANY_TEXT)
def test_token_bytes_join_to_the_bytes_of_the_text(kind: str, text: str) -> None:
    tokens = codec(kind).tokens
    ids = codec(kind).encode(text, add_special_tokens=False)
    assert b"".join(tokens.bytes(token_id) for token_id in ids) == text.encode()


@KINDS
def test_a_partial_character_has_a_replacement_text_and_its_bytes(kind: str) -> None:
    tokens = codec(kind).tokens
    ids = codec(kind).encode("本", add_special_tokens=False)
    assert len(ids) == 3
    assert [tokens.text(token_id) for token_id in ids] == ["\ufffd"] * 3
    assert b"".join(tokens.bytes(token_id) for token_id in ids) == "本".encode()


@KINDS
def test_the_leading_space_of_a_token_is_part_of_its_text(kind: str) -> None:
    (token_id, *_) = codec(kind).encode(" th", add_special_tokens=False)
    assert codec(kind).tokens.text(token_id).startswith(" ")


@KINDS
@pytest.mark.parametrize("stop", ["日本", "e\u0301", "👩\u200d👩", "\u0301", " na", "本 e"])
def test_a_stop_of_several_bytes_is_cut_out_completely(kind: str, stop: str) -> None:
    output = OutputText(decoder=codec(kind).decoder(), table=StopTable([stop]))
    ids = codec(kind).encode(TEXT, add_special_tokens=False)
    pieces = [output.push(token_id) for token_id in ids] + [output.flush()]
    assert "".join(pieces) == TEXT[: TEXT.index(stop)]
