"""openai-agents over /v1/responses, its default: a run, a streamed run and a structured output."""

import asyncio
import sys

from agents import Agent, ModelSettings, RunConfig, Runner, set_tracing_disabled
from agents.models.openai_provider import OpenAIProvider
from openai.types.responses import ResponseTextDeltaEvent
from pydantic import BaseModel


class Answer(BaseModel):
    yes: bool


async def main(url: str, model: str) -> None:
    set_tracing_disabled(True)
    config = RunConfig(model_provider=OpenAIProvider(base_url=f"{url}/v1", api_key="x"))
    settings = ModelSettings(max_tokens=48, temperature=0)
    plain = Agent(name="a", instructions="Be brief.", model=model, model_settings=settings)
    whole = await Runner.run(plain, "Say hello.", run_config=config)
    assert whole.final_output, whole
    streamed = Runner.run_streamed(plain, "Say hello.", run_config=config)
    text = ""
    async for event in streamed.stream_events():
        if event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent):
            text += event.data.delta
    assert text == whole.final_output, (text, whole.final_output)
    typed = plain.clone(output_type=Answer)
    result = await Runner.run(typed, "Is the sky blue?", run_config=config)
    assert isinstance(result.final_output, Answer), result.final_output


asyncio.run(main(*sys.argv[1:3]))
