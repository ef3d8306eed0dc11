"""ChatTemplate: a chat becomes text, then token ids."""

import pytest

from server.text.chat_template import ChatTemplateError
from server.text.tokenizer import TextCodec
from tests.support.server.byte_text import ByteTokenizer, byte_codec


def test_a_chat_is_rendered_and_encoded_without_further_special_tokens() -> None:
    ids = byte_codec().encode_chat([{"role": "user", "content": "hi"}])
    assert bytes(ids) == b"user: hi\nassistant: "


def test_a_template_error_is_reported() -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]
    with pytest.raises(ChatTemplateError, match="system must come first"):
        byte_codec().encode_chat(messages)


def test_a_chat_without_a_chat_template_is_refused() -> None:
    tokenizer = ByteTokenizer()
    tokenizer.chat_template = None
    with pytest.raises(ChatTemplateError, match="no chat template; accepted: --chat-template"):
        TextCodec(tokenizer=tokenizer).encode_chat([{"role": "user", "content": "hi"}])
