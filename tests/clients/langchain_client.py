"""langchain-openai over both of its APIs, and litellm: calls, streams, structured outputs."""

import sys
from typing import Any

import litellm
from langchain_openai import ChatOpenAI
from pydantic import BaseModel


class Answer(BaseModel):
    """Whether it is so."""

    yes: bool


def langchain(url: str, model: str, *, use_responses_api: bool) -> None:
    chat: Any = ChatOpenAI(
        model=model,
        base_url=f"{url}/v1",
        api_key="x",  # type: ignore[arg-type]
        temperature=0,
        max_tokens=48,  # type: ignore[call-arg]
        use_responses_api=use_responses_api,
    )
    whole = chat.invoke("Say hello.").text
    assert whole
    assert "".join(chunk.text for chunk in chat.stream("Say hello.")) == whole
    typed = chat.with_structured_output(Answer, method="json_schema")
    assert isinstance(typed.invoke("Is the sky blue?"), Answer)


def lite(url: str, model: str) -> None:
    options: Any = {
        "model": f"openai/{model}",
        "api_base": f"{url}/v1",
        "api_key": "x",
        "messages": [{"role": "user", "content": "Say hello."}],
        "temperature": 0,
        "max_tokens": 24,
    }
    whole = litellm.completion(**options).choices[0].message.content
    chunks = litellm.completion(stream=True, **options)
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole
    text = litellm.completion(response_format=Answer, **options).choices[0].message.content
    Answer.model_validate_json(text)


def main(url: str, model: str) -> None:
    langchain(url, model, use_responses_api=False)
    langchain(url, model, use_responses_api=True)
    lite(url, model)


main(*sys.argv[1:3])
