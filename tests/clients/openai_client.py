"""The official openai client: chat, a stream, a parsed chat and a parsed response."""

import sys
from typing import Any

import openai
from pydantic import BaseModel


class Answer(BaseModel):
    yes: bool


def main(url: str, model: str) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0)
    user: Any = {"role": "user", "content": "Say hello."}
    options: Any = {"model": model, "messages": [user], "max_tokens": 24, "temperature": 0}
    whole = client.chat.completions.create(**options).choices[0].message.content
    chunks = client.chat.completions.create(stream=True, **options)
    assert whole == "".join(c.choices[0].delta.content or "" for c in chunks)
    parsed = client.chat.completions.parse(response_format=Answer, **options)
    assert isinstance(parsed.choices[0].message.parsed, Answer), parsed
    with client.responses.stream(model=model, input="Say hello.", temperature=0) as stream:
        final = stream.get_final_response()
    assert final.output_text
    answer = client.responses.parse(model=model, input="Is it?", text_format=Answer)
    assert isinstance(answer.output_parsed, Answer), answer


main(*sys.argv[1:3])
