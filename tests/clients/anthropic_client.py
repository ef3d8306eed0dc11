"""The official anthropic client: a message, a stream and a parsed message."""

import sys
from typing import Any

import anthropic
from pydantic import BaseModel


class Answer(BaseModel):
    yes: bool


def main(url: str, model: str) -> None:
    client = anthropic.Anthropic(base_url=url, api_key="x", max_retries=0)
    user: Any = {"role": "user", "content": "Say hello."}
    options: Any = {
        "model": model,
        "messages": [user],
        "max_tokens": 24,
        "extra_body": {"temperature": 0},
    }
    whole = client.messages.create(**options)
    with client.messages.stream(**options) as stream:
        assert stream.get_final_text() == whole.content[0].text  # type: ignore[union-attr]
    parsed = client.messages.parse(output_format=Answer, **options)
    assert isinstance(parsed.parsed_output, Answer), parsed
    assert client.models.list().data[0].id == model


main(*sys.argv[1:3])
