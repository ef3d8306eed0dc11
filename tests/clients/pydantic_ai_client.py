"""pydantic-ai over chat completions: a run, a streamed run and a structured output."""

import asyncio
import sys

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


class Answer(BaseModel):
    yes: bool


async def main(url: str, name: str) -> None:
    model = OpenAIChatModel(name, provider=OpenAIProvider(base_url=f"{url}/v1", api_key="x"))
    settings = {"max_tokens": 24, "temperature": 0}
    agent = Agent(model, model_settings=settings)
    whole = await agent.run("Say hello.")
    async with agent.run_stream("Say hello.") as stream:
        assert await stream.get_output() == whole.output
    typed = Agent(model, output_type=NativeOutput(Answer), model_settings=settings)
    assert isinstance((await typed.run("Is the sky blue?")).output, Answer)


asyncio.run(main(*sys.argv[1:3]))
