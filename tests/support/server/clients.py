"""Sends requests that a test can leave open, and chats whole or streamed."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

USER = {"role": "user", "content": "hi"}
# The smallest body of each route that generates text in OpenAI's error shape.
ROUTES: dict[str, dict[str, Any]] = {
    "/generate": {"text": "hi"},
    "/v1/completions": {"prompt": "hi"},
    "/v1/chat/completions": {"messages": [USER]},
}


def has_counted(address: str, outcome: str) -> bool:
    """Whether /metrics counts exactly one request with this outcome."""
    return f'requests_total{{outcome="{outcome}"}} 1.0' in httpx.get(f"{address}/metrics").text


def connection_to(address: str) -> socket.socket:
    host, port = address.partition("://")[2].split(":")
    return socket.create_connection((host, int(port)))


@contextmanager
def pending_request(address: str, route: str, body: dict[str, Any]) -> Iterator[None]:
    """Send a request, keep its connection open, and disconnect at the end of the block."""
    content = json.dumps(body).encode()
    head = (
        f"POST {route} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    with connection_to(address) as connection:
        connection.sendall(head.encode() + content)
        yield


async def chat(client: httpx.AsyncClient, body: dict[str, Any], *, stream: bool) -> tuple[str, str]:
    """Return the text and finish reason of one chat completion."""
    route = "/v1/chat/completions"
    if not stream:
        choice = (await client.post(route, json=body)).json()["choices"][0]
        return choice["message"]["content"], choice["finish_reason"]
    text, reason = "", ""
    async with client.stream("POST", route, json={**body, "stream": True}) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                choice = json.loads(line[6:])["choices"][0]
                text += choice["delta"].get("content") or ""
                reason = choice["finish_reason"] or reason
    return text, reason
