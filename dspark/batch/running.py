"""Sends requests of a batch to the server's application, in this process."""

import asyncio
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any

import httpx
from fastapi import FastAPI

from dspark.batch.batch_files import BatchRequest, ResultFile
from engine import EngineClient, EngineDead

_RETRY_S = 0.05  # after a request for which the queue has no room


async def answer(
    app: FastAPI,
    engine: EngineClient,
    requests: Iterable[BatchRequest],
    *,
    output: ResultFile,
    errors: ResultFile,
    concurrency: int,
    advance: Callable[[], object],
) -> None:
    """Answer requests, `concurrency` at a time; refused ones go into the errors.

    advance is called after each. Raises EngineDead; the requests that it ends have no result.
    """
    remaining = iter(requests)

    async def work() -> None:
        for request in remaining:
            response = await _response(client, request)
            if not response.is_success and not engine.is_healthy():
                raise EngineDead("the engine has ended; run the command again to continue")
            file = output if response.is_success else errors
            request_id = response.headers["x-request-id"]
            file.append(request.custom_id, response.status_code, request_id, response.json())
            advance()

    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://batch") as client:
        tasks = [asyncio.create_task(work()) for _ in range(concurrency)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _response(client: httpx.AsyncClient, request: BatchRequest) -> httpx.Response:
    """Send a request until the queue has room for it."""
    body: dict[str, Any] = request.body
    if body.get("stream"):
        return _refused_stream()
    while True:
        response = await client.post(request.url, json=body)
        if response.status_code != HTTPStatus.TOO_MANY_REQUESTS:
            return response
        await asyncio.sleep(_RETRY_S)


def _refused_stream() -> httpx.Response:
    error = {
        "message": "'stream' must be false in a batch; found true",
        "type": "invalid_request_error",
        "param": "stream",
        "code": "invalid_value",
    }
    return httpx.Response(400, json={"error": error}, headers={"x-request-id": ""})
