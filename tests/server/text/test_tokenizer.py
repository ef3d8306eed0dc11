"""TextCodec: incremental decoding equals decoding at once."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import TemplateError
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from server.text.chat_template import ChatTemplateError
from server.text.detokenizer import ByteDecoder
from server.text.tokenizer import TextCodec
from tests.support.server.byte_text import BOS, EOS, NUM_IDS, byte_codec

CORPUS = ["naïve café 日本語 日本 👩‍👩‍👧 👍🏽 e\u0301 the then 日"] * 4
# Letters with accents on top, ideographs, emoji with joiners and skin tones, plain text.
TEXTS = st.text(
    st.sampled_from("ab é日本語👍🏽👩\u200d👧\u0301\u0308\ufe0f\U0001f1e9\n"), max_size=24
) | st.text(max_size=12)


def byte_level_codec() -> TextCodec:
    """A byte-level BPE whose merges join bytes across characters and within them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    return TextCodec(tokenizer=PreTrainedTokenizerFast(tokenizer_object=tokenizer))


def byte_fallback_codec() -> TextCodec:
    """A SentencePiece-like tokenizer: a mark for spaces, bytes for unknown characters."""
    pieces = [f"<0x{byte:02X}>" for byte in range(256)] + ["\u2581", "a", "b", "e", "\u2581a"]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab, [("\u2581", "a")], byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return TextCodec(tokenizer=PreTrainedTokenizerFast(tokenizer_object=tokenizer))


BYTE_LEVEL = byte_level_codec()
BYTE_FALLBACK = byte_fallback_codec()


def pieces_of(codec: TextCodec, token_ids: list[int]) -> list[str]:
    decoder = codec.decoder()
    return [decoder.push(token_id) for token_id in token_ids] + [decoder.flush()]


@pytest.mark.parametrize("codec", [BYTE_LEVEL, BYTE_FALLBACK], ids=["byte level", "byte fallback"])
@settings(deadline=None)
@given(text=TEXTS)
def test_incremental_pieces_join_to_the_text_in_whole_characters(
    codec: TextCodec, text: str
) -> None:
    token_ids = codec.encode(text, add_special_tokens=False)
    pieces = pieces_of(codec, token_ids)
    assert "".join(pieces) == codec.decode(token_ids)
    if codec is BYTE_LEVEL:
        assert "".join(pieces) == text
    if "\ufffd" not in text:
        assert "\ufffd" not in "".join(pieces)


@settings(deadline=None)
@given(token_ids=st.lists(st.integers(0, 329), max_size=80))
def test_invalid_bytes_decode_incrementally_as_at_once(token_ids: list[int]) -> None:
    assert "".join(pieces_of(BYTE_LEVEL, token_ids)) == BYTE_LEVEL.decode(token_ids)


@settings(deadline=None)
@given(text=TEXTS)
def test_emitted_text_is_always_a_prefix_of_the_whole(text: str) -> None:
    token_ids = BYTE_LEVEL.encode(text, add_special_tokens=False)
    decoder, shown = BYTE_LEVEL.decoder(), ""
    for token_id in token_ids:
        shown += decoder.push(token_id)
        assert text.startswith(shown)


def test_an_incomplete_character_is_withheld_until_the_end() -> None:
    decoder = byte_codec().decoder()
    assert [decoder.push(byte) for byte in "日".encode()[:2]] == ["", ""]
    assert decoder.flush() == "\ufffd"
    assert decoder.flush() == ""


@pytest.mark.parametrize("num_bytes", [1, 2, 3])
def test_a_long_run_of_invalid_bytes_is_emitted_incrementally(num_bytes: int) -> None:
    data = "👍".encode()[:num_bytes] * 200 + "👍".encode()
    pieces = pieces_of(byte_codec(), list(data))
    longest_wait = max(len(run) for run in "".join("x" if p else "." for p in pieces).split("x"))
    assert longest_wait < 80
    assert "".join(pieces) == data.decode(errors="replace")


def test_special_tokens_and_unused_ids_have_no_text() -> None:
    token_ids = [BOS, *b"a", EOS, NUM_IDS + 5, *b"b"]
    assert "".join(pieces_of(byte_codec(), token_ids)) == "ab"


def test_special_tokens_have_text_without_skip_special_tokens() -> None:
    decoder = byte_codec().decoder(skip_special_tokens=False, eos_token_ids=[EOS])
    assert decoder.push(EOS) == "</s>"


def test_eos_tokens_have_no_text_even_if_not_marked_special() -> None:
    codec = byte_codec()
    decoder = codec.decoder(eos_token_ids=[ord("!")])
    assert "".join(map(decoder.push, b"hi!")) == "hi"


def test_added_tokens_marked_special_are_skipped() -> None:
    end = _tokenizer_with_end().token_to_id("<|end|>")
    codec = TextCodec(tokenizer=PreTrainedTokenizerFast(tokenizer_object=_tokenizer_with_end()))
    assert codec.decoder().push(end) == ""
    assert codec.decoder(skip_special_tokens=False).push(end) == "<|end|>"


def _tokenizer_with_end() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE({"a": 0}, []))
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    return tokenizer


def test_a_tokenizer_is_loaded_from_a_folder_with_a_custom_template(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("tokenizer")
    PreTrainedTokenizerFast(tokenizer_object=_tokenizer_with_end()).save_pretrained(folder)
    assert not TextCodec.load(folder).has_chat_template
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    codec = TextCodec.load(folder, chat_template=template)
    assert codec.encode_chat([{"role": "user", "content": "aaa"}]) == [0, 0, 0]
    refusing = TextCodec.load(folder, chat_template="{{ raise_exception('no') }}")
    with pytest.raises(ChatTemplateError, match="no") as caught:
        refusing.encode_chat([{"role": "user", "content": "a"}])
    assert isinstance(caught.value.__cause__, TemplateError)


def test_truncation_of_a_tokenizer_file_is_removed_at_construction() -> None:
    tokenizer = Tokenizer(models.BPE({"a": 0}, []))
    tokenizer.enable_truncation(max_length=2)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    codec = TextCodec(tokenizer=wrapped)
    assert wrapped.backend_tokenizer.truncation is None
    assert codec.encode("aaaaa") == [0] * 5


def test_a_tokenizer_that_changes_decoded_text_uses_the_window_decoder() -> None:
    """Its decoder is byte-level, but the class changes the decoded text."""

    class Cleaning(PreTrainedTokenizerFast):  # type: ignore[misc]
        def _decode(self, *args: object, **kwargs: object) -> str:
            return str(super()._decode(*args, **kwargs)).replace("a", "A")

    tokenizer = Tokenizer(models.BPE({"a": 0, "b": 1}, []))
    tokenizer.decoder = decoders.ByteLevel()
    plain = TextCodec(tokenizer=PreTrainedTokenizerFast(tokenizer_object=tokenizer))
    assert isinstance(plain.decoder(), ByteDecoder)
    cleaning = TextCodec(tokenizer=Cleaning(tokenizer_object=tokenizer))
    assert "".join(map(cleaning.decoder().push, [0, 1])) == "Ab"
