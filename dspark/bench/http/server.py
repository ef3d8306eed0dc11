"""One server of a comparison: how it is asked, and how it is made to forget."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import httpx

from dspark.bench.http.backends import Backend, Messages, Sampling
from dspark.bench.http.streamed_request import Call, call, transport_failure, words_of
from engine import EngineError

# What servers of this kind offer to drop cached prefixes: ours and SGLang's, then vLLM's.
_FORGETTING = ("/flush_cache", "/reset_prefix_cache")


class ServerUnusable(EngineError):
    """A server cannot be asked at all; the message names it and says why."""


@dataclass(frozen=True, slots=True)
class Address:
    """A server as the command line names it."""

    name: str
    url: str
    backend: Backend
    model: str | None  # None: the first that /v1/models lists
    extra_body: Mapping[str, object]


class Server:
    """A server with its connections."""

    def __init__(self, address: Address, client: httpx.AsyncClient, *, model: str) -> None:
        self.name = address.name
        self._address = address
        self._client = client
        self._model = model

    @classmethod
    async def find(cls, address: Address, client: httpx.AsyncClient) -> "Server":
        """Raises ServerUnusable when it cannot be reached or does not say what it serves."""
        model = address.model or await _first_model(address, client)
        return cls(address, client, model=model)

    async def ask(self, messages: Messages, sampling: Sampling, *, prompt: int) -> Call:
        address = self._address
        body = address.backend.body(messages, sampling, model=self._model)
        return await call(
            self._client, address.backend, {**body, **address.extra_body}, prompt=prompt
        )

    async def forget(self) -> bool:
        """Ask it to drop cached prefixes; whether it says that it has."""
        for path in _FORGETTING:
            try:
                answer = await self._client.post(path)
            except httpx.HTTPError:
                return False
            if answer.status_code == httpx.codes.OK:
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


def client_of(
    address: Address, *, timeout_s: float, headers: Mapping[str, str]
) -> httpx.AsyncClient:
    """As many connections to a server as are asked for; timeout_s is how long it may be silent."""
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
        answer = await client.get("/v1/models")
    except httpx.HTTPError as error:
        failure = transport_failure(error)
        raise ServerUnusable(f"{where}{failure.kind} ({failure.detail})") from error
    if answer.status_code != httpx.codes.OK:
        raise ServerUnusable(
            f"{where}/v1/models answers {answer.status_code} ({words_of(answer.text)}); "
            "name the model with --model"
        )
    try:
        names: Sequence[str] = [str(model["id"]) for model in answer.json()["data"]]
    except (ValueError, KeyError, TypeError):
        names = ()
    if not names:
        raise ServerUnusable(f"{where}/v1/models lists none; name the model with --model")
    return names[0]
