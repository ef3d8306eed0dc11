"""instructor with a JSON schema, whole and as a stream of partial objects."""

import sys
from typing import Any

import instructor
import openai
from pydantic import BaseModel


class Answer(BaseModel):
    yes: bool


def main(url: str, model: str) -> None:
    client = instructor.from_openai(
        openai.OpenAI(base_url=f"{url}/v1", api_key="x"), mode=instructor.Mode.JSON_SCHEMA
    )
    user: Any = {"role": "user", "content": "Is the sky blue?"}
    options: Any = {"model": model, "messages": [user], "max_tokens": 48, "temperature": 0}
    whole = client.chat.completions.create(response_model=Answer, **options)
    assert isinstance(whole, Answer), whole
    *_, last = client.chat.completions.create_partial(response_model=Answer, **options)
    assert last.yes == whole.yes


main(*sys.argv[1:3])
