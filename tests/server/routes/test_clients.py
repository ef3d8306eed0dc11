"""Features of the official clients, with a live server over a real engine."""

import asyncio
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from tests.support.server.tiny_service import TinyService, tiny_service

USER: Any = {"role": "user", "content": "hello"}
GREEDY: dict[str, Any] = {"model": "tiny", "temperature": 0, "max_tokens": 12}
# Newer versions of Anthropic's client know no temperature.
CALM: dict[str, Any] = {"model": "tiny", "max_tokens": 12, "extra_body": {"temperature": 0}}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyService]:
    with tiny_service(tmp_path_factory.mktemp("clients")) as tiny:
        yield tiny
        tiny.wait_until_idle()


@pytest.fixture(scope="module")
def client(service: TinyService) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{service.url}/v1", api_key="x", max_retries=0) as connected:
        yield connected


@pytest.fixture(scope="module")
def claude(service: TinyService) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=service.url, api_key="x", max_retries=0) as connected:
        yield connected


def test_a_streamed_chat_equals_the_whole_one(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(messages=[USER], **GREEDY)
    chunks = list(
        client.chat.completions.create(
            messages=[USER], stream=True, stream_options={"include_usage": True}, **GREEDY
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 12


def test_the_clients_stream_helper_assembles_a_chat(client: openai.OpenAI) -> None:
    free = client.chat.completions.create(messages=[USER], **GREEDY).choices[0].message.content
    assert free is not None
    stop = free[3:5]  # the helper raises for an completion that was cut at its limit
    with client.chat.completions.stream(messages=[USER], stop=stop, **GREEDY) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == free[: free.index(stop)]
    assert final.choices[0].finish_reason == "stop"


def test_a_completion_ends_at_a_stop_string(client: openai.OpenAI) -> None:
    free = client.completions.create(prompt="abc", **GREEDY).choices[0].text
    stop = free[3:5]
    cut = client.completions.create(prompt="abc", stop=[stop], **GREEDY).choices[0]
    assert cut.text == free[: free.index(stop)]
    assert cut.finish_reason == "stop"


def test_several_prompts_and_seeds_keep_their_order(client: openai.OpenAI) -> None:
    sampled = {**GREEDY, "temperature": 1, "seed": 7}
    one = [client.completions.create(prompt=p, **sampled).choices[0].text for p in ("ab", "cd")]
    both = client.completions.create(prompt=["ab", "cd"], **sampled).choices
    assert [choice.text for choice in both] == one


def test_the_raw_response_has_the_headers(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        messages=[USER], extra_headers={"x-request-id": "mine"}, **GREEDY
    )
    assert raw.headers["x-request-id"] == "mine"
    assert raw.parse().id == "chatcmpl-mine"


def test_extra_fields_reach_the_server(client: openai.OpenAI) -> None:
    completion = client.chat.completions.create(
        messages=[USER], extra_body={"return_speculation": True, "top_k": 1}, **GREEDY
    )
    extra = completion.choices[0].model_extra
    assert extra is not None
    assert extra["speculation"]["num_rounds"] > 0


def test_a_stream_that_is_closed_early_is_cancelled(
    client: openai.OpenAI, service: TinyService
) -> None:
    stream = client.completions.create(prompt="abc", stream=True, **{**GREEDY, "max_tokens": 150})
    next(iter(stream))
    stream.close()
    service.wait_until_idle()


def test_many_at_once_from_the_asynchronous_client(service: TinyService) -> None:
    async def run() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{service.url}/v1", api_key="x") as client:
            calls = [client.completions.create(prompt="abc", **GREEDY) for _ in range(6)]
            return [completion.choices[0].text for completion in await asyncio.gather(*calls)]

    assert len(set(asyncio.run(run()))) == 1


def test_a_message_equals_the_chat_completion_streamed_or_not(
    claude: anthropic.Anthropic, client: openai.OpenAI
) -> None:
    chat = client.chat.completions.create(messages=[USER], **GREEDY).choices[0].message.content
    whole = claude.messages.create(messages=[USER], **CALM)
    with claude.messages.stream(messages=[USER], **CALM) as stream:
        streamed = stream.get_final_message()
    for message in (whole, streamed):
        assert "".join(b.text for b in message.content if b.type == "text") == chat
        assert message.stop_reason == "max_tokens"
        assert message.usage.output_tokens == 12


def test_count_tokens_equals_the_usage(claude: anthropic.Anthropic) -> None:
    count = claude.messages.count_tokens(model="tiny", messages=[USER])
    usage = claude.messages.create(messages=[USER], **CALM).usage
    assert count.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_a_refused_request_is_the_clients_exception(
    client: openai.OpenAI, claude: anthropic.Anthropic
) -> None:
    with pytest.raises(openai.BadRequestError, match="maximum context length"):
        client.chat.completions.create(messages=[USER], **{**GREEDY, "max_tokens": 5000})
    with pytest.raises(anthropic.BadRequestError, match="maximum context length"):
        claude.messages.create(messages=[USER], **{**CALM, "max_tokens": 5000})
