"""Receives every request, sends it to a replica, and reports a replica's end to the client."""

import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from ray.exceptions import RayActorError, RayError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dspark.deploy.asgi_calls import portable
from dspark.deploy.merging import Answer, check_replica_of_abort, is_joined, join
from dspark.deploy.route import Route, route_of
from dspark.deploy.stream_errors import error_event
from dspark.runtime.service import keys_of
from server.errors.api_errors import ApiError, Failure, failure_of
from server.http.auth import has_key
from server.http.middleware import AbsoluteTargets, InternalErrors
from server.settings.schema import Settings

logger = logging.getLogger(__name__)

_MOST_TRIES = 4  # replicas that a request is sent to, while none has begun to answer
_EVERY_REPLICA_S = 90.0  # for an answer of every replica; the routes have shorter limits


class Gateway:
    """A Ray Serve deployment with the address of the server. It loads no model."""

    def __init__(self, replicas: DeploymentHandle, settings: Settings) -> None:
        """settings: the replicas'. A replica refuses a body that is too long, and a wrong key.

        Such a body is cut, and is not read without a right key.
        """
        self._replicas = replicas
        self._streams = replicas.options(method_name="stream", stream=True)
        self._max_body_bytes = settings.server.max_body_bytes
        self._keys = keys_of(settings)

    def __serve_build_asgi_app__(self) -> ASGIApp:
        return _with_lifespan(AbsoluteTargets(InternalErrors(self._serve)))

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await self._read(receive) if has_key(scope, self._keys) else b""
        path = scope["path"]
        try:
            if is_joined(scope["method"], path):
                await self._ask_all(portable(scope), body, send)
            else:
                await self._forward(portable(scope), body, send, route_of(path, body))
        except BackPressureError:
            await _QUEUE_FULL.response(path)(scope, receive, send)
        except DeploymentUnavailableError:
            await _NO_REPLICA.response(path)(scope, receive, send)
        except ApiError as error:
            await error.failure.response(path)(scope, receive, send)

    async def _read(self, receive: Receive) -> bytes:
        parts, num_read = [], 0
        while num_read <= self._max_body_bytes:
            message = await receive()
            parts.append(message.get("body", b""))
            num_read += len(parts[-1])
            if not message.get("more_body", False):
                break
        return b"".join(parts)

    async def _forward(self, scope: Scope, body: bytes, send: Send, route: Route) -> None:
        """Send the response of one replica. Where it refuses or ends at once, try another.

        A request moves once from a replica that has ended: it may be what ended it.
        """
        excluded: set[str] = set()
        has_moved = False
        for number in range(1, _MOST_TRIES + 1):
            is_final = number == _MOST_TRIES or route.replica is not None
            retried = set() if is_final else {429} if has_moved else {429, 503}
            response = _Response(send, retried=retried, tried=excluded)
            stream = self._streams.remote(replace(route, excluded=frozenset(excluded)), scope, body)
            try:
                async for replica, batch in stream:
                    if not await response.take(replica, batch):
                        stream.cancel()
                        break
                else:
                    return
                has_moved |= response.status == 503
            except RayActorError as error:
                logger.warning("path=%s: %s", scope["path"], error)
                if response.has_begun or has_moved or is_final:
                    return await response.fail(scope, _ENDED)
                has_moved = True
            except RayError as error:
                logger.exception("path=%s", scope["path"])
                return await response.fail(scope, failure_of(error))
            except BaseException:  # the client has left
                stream.cancel()
                raise
            if response.replica is not None:
                excluded.add(response.replica)

    async def _ask_all(self, scope: Scope, body: bytes, send: Send) -> None:
        """Send the joined answers of all replicas."""
        calls = self._replicas.broadcast("answer", scope, body)
        results = await calls.results_async(timeout_s=_EVERY_REPLICA_S, return_exceptions=True)
        answers = [result for result in results if isinstance(result, Answer)]
        for error in results:
            if not isinstance(error, Answer):
                logger.warning("path=%s: a replica did not answer: %s", scope["path"], error)
        if not answers:
            return await _NO_REPLICA.response(scope["path"])(scope, _nothing, send)
        if scope["path"] == "/abort_request" and all(a.status < 400 for a in answers):
            check_replica_of_abort(body, answers)
        joined = join(scope["path"], sorted(answers, key=lambda a: a.replica))
        left_out = (b"content-length", _ADDED_BY_PROXY)
        headers = [(name, value) for name, value in joined.headers if name.lower() not in left_out]
        headers.append((b"content-length", str(len(joined.body)).encode()))
        await send({"type": "http.response.start", "status": joined.status, "headers": headers})
        await send({"type": "http.response.body", "body": joined.body})


class _Response:
    """The response to a client, as far as it has been sent."""

    def __init__(self, send: Send, *, retried: Collection[int], tried: Collection[str]) -> None:
        """retried: statuses that are not sent, unless the replica is one of `tried`."""
        self._send = send
        self._retried = retried
        self._tried = tried
        self._is_stream = False
        self._last_part = b""
        self.has_begun = False
        self.status: int | None = None
        self.replica: str | None = None

    async def take(self, replica: str, batch: Sequence[Message]) -> bool:
        """Send messages of a replica; return False for a refusal that is not sent."""
        self.replica = replica
        for message in batch:
            if message["type"] == "http.response.start":
                self.status = message["status"]
                if self.status in self._retried and replica not in self._tried:
                    return False
                message = {**message, "headers": self._headers(message["headers"])}
            else:
                self._last_part = message.get("body") or self._last_part
            self.has_begun = True
            await self._send(message)
        return True

    async def fail(self, scope: Scope, failure: Failure) -> None:
        """Report a failure: as the whole response, or as the last event of a stream.

        Raises ConnectionError in the middle of another body, so that the connection is closed.
        """
        path = scope["path"]
        if not self.has_begun:
            await failure.response(path)(scope, _nothing, self._send)
        elif self._is_stream:
            event = error_event(path, failure, self._last_part)
            await self._send({"type": "http.response.body", "body": event, "more_body": False})
        else:
            raise ConnectionError(failure.message)

    def _headers(self, headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """Return the headers with the replica's name, and without what Ray's proxy adds."""
        kept = [(name, value) for name, value in headers if name.lower() != _ADDED_BY_PROXY]
        self._is_stream = any(value.startswith(b"text/event-stream") for _, value in kept)
        return [*kept, (b"x-dspark-replica", (self.replica or "").encode())]


def _with_lifespan(app: ASGIApp) -> ASGIApp:
    """Answer the web server's events of start and shutdown."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            return await app(scope, receive, send)
        for event in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{event}.complete"})

    return answer


async def _nothing() -> Message:
    return {"type": "http.disconnect"}


_ADDED_BY_PROXY = b"x-request-id"
_QUEUE_FULL = Failure(429, "no replica has room for the request", code="queue_full")
_NO_REPLICA = Failure(503, "no replica is running; others are being started", code="no_replica")
_ENDED = Failure(
    503,
    "the replica that ran this request has ended; send the request again",
    code="replica_ended",
)
