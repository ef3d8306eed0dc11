"""Connects to one server: finds its model, sends requests and flushes its prefix cache."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import httpx

from dspark.bench.http.backends import Backend, Messages, Sampling
from dspark.bench.http.streamed_request import (
    RequestRecord,
    error_message,
    send_request,
    transport_failure,
)
from engine import EngineError

# Routes that flush the prefix cache: ours and SGLang's, then vLLM's.
_FLUSH_PATHS = ("/flush_cache", "/reset_prefix_cache")


class ServerUnusable(EngineError):
    """A server cannot be measured; the message names it and the reason."""


@dataclass(frozen=True, slots=True)
class Address:
    """A server as named on the command line."""

    name: str
    url: str
    backend: Backend
    model: str | None  # None: the first in /v1/models
    extra_body: Mapping[str, object]


class Server:
    """A server, its model and its connections."""

    def __init__(self, address: Address, client: httpx.AsyncClient, *, model: str) -> None:
        self.name = address.name
        self._address = address
        self._client = client
        self._model = model

    @classmethod
    async def find(cls, address: Address, client: httpx.AsyncClient) -> "Server":
        """Connect and find the model. Raises ServerUnusable if either fails."""
        model = address.model or await _first_model(address, client)
        return cls(address, client, model=model)

    async def send(self, messages: Messages, sampling: Sampling, *, prompt: int) -> RequestRecord:
        address = self._address
        body = address.backend.body(messages, sampling, model=self._model)
        return await send_request(
            self._client, address.backend, {**body, **address.extra_body}, prompt=prompt
        )

    async def flush_cache(self) -> bool:
        """Flush the prefix cache; return whether the server confirmed it."""
        for path in _FLUSH_PATHS:
            try:
                response = await self._client.post(path)
            except httpx.HTTPError:
                return False
            if response.status_code == httpx.codes.OK:
                return True
        return False

    def values(self) -> dict[str, object]:
        address = self._address
        return {
            "base_url": address.url,
            "path": address.backend.path,
            "model": self._model,
            "extra_body": dict(address.extra_body),
        }


def open_client(
    address: Address, *, timeout_s: float, headers: Mapping[str, str]
) -> httpx.AsyncClient:
    """Return a client with unlimited connections; timeout_s is the longest silence."""
    return httpx.AsyncClient(
        base_url=address.url,
        timeout=httpx.Timeout(timeout_s, connect=10.0, pool=None),
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
        headers=dict(headers),
        trust_env=False,  # a proxy in between would be measured too
    )


async def _first_model(address: Address, client: httpx.AsyncClient) -> str:
    where = f"--base-url {address.url}: "
    try:
        response = await client.get("/v1/models")
    except httpx.HTTPError as error:
        failure = transport_failure(error)
        raise ServerUnusable(f"{where}{failure.kind} ({failure.detail})") from error
    if response.status_code != httpx.codes.OK:
        raise ServerUnusable(
            f"{where}/v1/models answers {response.status_code} ({error_message(response.text)}); "
            "name the model with --model"
        )
    try:
        names: Sequence[str] = [str(model["id"]) for model in response.json()["data"]]
    except (ValueError, KeyError, TypeError):
        names = ()
    if not names:
        raise ServerUnusable(f"{where}/v1/models lists none; name the model with --model")
    return names[0]
