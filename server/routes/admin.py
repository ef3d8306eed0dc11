"""Implements health, metrics and control routes."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from importlib.metadata import version
from typing import TypeVar
from uuid import uuid4

from fastapi import APIRouter, Depends
from fastapi import Request as HttpRequest
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST

from engine import (
    EngineBusy,
    EngineClient,
    EngineDead,
    EngineSamplingParams,
    EngineSnapshot,
    Request,
)
from server.errors.api_errors import ApiError
from server.generation.generator import TextGenerator
from server.http.auth import require_admin
from server.http.metrics import ServerMetrics, mean_accept_length
from server.options import ServerOptions
from server.protocol.native import AbortBody, ContextKVBody
from server.routes.body_route import BodyRoute, JsonBody
from server.routes.openapi_errors import TEXT

T = TypeVar("T")

_MAX_ENGINE_WAIT_S = 2.0  # of /metrics and /server_info, for a hanging engine


def admin_routes(
    *,
    engine: EngineClient,
    generator: TextGenerator,
    metrics: ServerMetrics,
    options: ServerOptions,
    is_draining: Callable[[], bool],
) -> APIRouter:
    """Create the routes. is_draining returns whether the server is shutting down."""
    router = APIRouter(route_class=BodyRoute)
    started_at = time.monotonic()
    timeout_s = min(options.stall_s, _MAX_ENGINE_WAIT_S)

    @router.get("/ping")
    @router.get("/health")
    async def health() -> dict[str, str]:
        """200 unless the engine has died."""
        _check_alive(engine)
        return {"status": "ok"}

    @router.get("/ready")
    async def ready() -> dict[str, str]:
        """200 if the server accepts requests: alive, not draining, not stalled."""
        _check_alive(engine)
        if is_draining():
            raise ApiError("the server is shutting down", status=503, code="draining")
        snapshot = await _or_none(engine.snapshot(), options.stall_s)
        _check_progress(snapshot, options.stall_s)
        _check_acceptance(snapshot, options)
        return {"status": "ready"}

    @router.get("/metrics", response_class=Response, responses=TEXT)
    async def prometheus() -> Response:
        text = metrics.render(
            snapshot=await _or_none(engine.snapshot(), timeout_s),
            status=await _or_none(engine.context_kv_status(), timeout_s),
            is_healthy=engine.is_healthy(),
            with_aliases=options.metric_aliases,
        )
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    @router.get("/get_server_info")
    @router.get("/server_info")
    async def server_info() -> dict[str, object]:
        status = await _or_none(engine.context_kv_status(), timeout_s)
        snapshot = await _or_none(engine.snapshot(), timeout_s)
        return {
            "version": version("dspark-server"),
            "served_model_name": options.served_name,
            "uptime_s": time.monotonic() - started_at,
            "config": dict(options.config),
            "engine": {
                "is_healthy": engine.is_healthy(),
                "served_max_len": engine.info.served_max_len,
                "vocab_size": engine.info.vocab_size,
                "block_size": engine.info.block_size,
                "eos_token_ids": engine.info.eos_token_ids,
                "details": dict(engine.info.details),
            },
            "context_kv": asdict(status) if status is not None else None,
            "live": _live(snapshot) if snapshot is not None else None,
            "internal_states": [_internal_state(snapshot)] if snapshot is not None else [],
        }

    @router.get("/health_generate")
    async def health_generate() -> dict[str, str]:
        """200 if the engine generates a token, or is too busy with others to start one."""
        _check_alive(engine)
        probe = Request(uuid4().hex, (0,), EngineSamplingParams(max_new_tokens=1))
        try:
            async with asyncio.timeout(options.stall_s):
                await engine.generate_whole(probe, [])
        except (EngineBusy, TimeoutError):
            snapshot = await _or_none(engine.snapshot(), options.stall_s)
            _check_progress(snapshot, options.stall_s)
        return {"status": "ok"}

    @router.get("/load")
    async def load() -> dict[str, int]:
        """Return the number of requests that run or wait, under vLLM's name."""
        snapshot = await engine.snapshot()
        return {"server_load": snapshot.num_running + snapshot.num_waiting}

    @router.get("/v1/loads")
    async def loads() -> dict[str, object]:
        """Return the load under SGLang's names."""
        snapshot = await engine.snapshot()
        return {"timestamp": time.time(), "dp_rank_count": 1, "loads": [_load(snapshot)]}

    @router.get("/version")
    async def server_version() -> dict[str, str]:
        return {"version": version("dspark-server")}

    @router.post("/abort_request")
    async def abort_request(body: JsonBody[AbortBody], request: HttpRequest) -> dict[str, int]:
        """Abort requests by name (rid, X-Request-Id or response id), or all of them."""
        if body.rid is None:
            require_admin(request)
        count = await (engine.abort(None) if body.rid is None else generator.abort(body.rid))
        return {"aborted": count}

    @router.post("/set_context_kv", dependencies=[Depends(require_admin)])
    async def set_context_kv(body: JsonBody[ContextKVBody]) -> dict[str, object]:
        return asdict(await engine.set_context_kv(body.mode))

    @router.post("/flush_cache", dependencies=[Depends(require_admin)])
    async def flush_cache() -> dict[str, int]:
        return {"freed_pages": await engine.flush_cache()}

    @router.post("/start_profile", dependencies=[Depends(require_admin)])
    async def start_profile() -> dict[str, str]:
        """Start profiling the engine thread, until /stop_profile."""
        if options.profile_dir is None:
            raise ApiError(
                "profiling is off; set observability.profile_dir",
                code="profiles_off",
            )
        await engine.start_profile(options.profile_dir)
        return {"folder": options.profile_dir}

    @router.post("/stop_profile", dependencies=[Depends(require_admin)])
    async def stop_profile() -> dict[str, str]:
        """Stop profiling and write a Chrome trace. The engine runs no step meanwhile."""
        return {"file": await engine.stop_profile()}

    return router


def _check_alive(engine: EngineClient) -> None:
    if not engine.is_healthy():
        raise EngineDead("the engine's step loop has stopped; restart the server")


def _check_progress(snapshot: EngineSnapshot | None, stall_s: float) -> None:
    if snapshot is None:
        raise ApiError(
            f"the engine has not responded for {stall_s:g} s", status=503, code="stalled"
        )
    num_requests = snapshot.num_running + snapshot.num_waiting
    if num_requests and snapshot.seconds_since_progress > stall_s:
        raise ApiError(
            f"no progress for {snapshot.seconds_since_progress:.0f} s with "
            f"{num_requests} requests; the limit is {stall_s:g} s",
            status=503,
            code="stalled",
        )


def _check_acceptance(snapshot: EngineSnapshot | None, options: ServerOptions) -> None:
    if snapshot is not None and snapshot.has_collapsed and not options.ready_when_collapsed:
        raise ApiError(
            "acceptance has collapsed: outputs are correct, but slower than without a draft; the "
            "log names likely causes",
            status=503,
            code="acceptance_collapsed",
        )


async def _or_none(result: Awaitable[T], timeout_s: float) -> T | None:
    """Return the engine's result; None if it is dead or does not return within the timeout."""
    try:
        async with asyncio.timeout(timeout_s):
            return await result
    except (EngineDead, TimeoutError):
        return None


def _live(snapshot: EngineSnapshot) -> dict[str, object]:
    num_drafted = snapshot.num_draft_tokens
    return {
        "accept_length": mean_accept_length(snapshot),
        "accept_rate": snapshot.num_accepted_tokens / num_drafted if num_drafted else 0.0,
        **_snapshot_fields(snapshot),
    }


def _internal_state(snapshot: EngineSnapshot) -> dict[str, object]:
    """Return the fields of SGLang's scheduler state that its benchmark reads."""
    return {"avg_spec_accept_length": mean_accept_length(snapshot)}


def _load(snapshot: EngineSnapshot) -> dict[str, object]:
    usage = snapshot.num_used_pages / snapshot.num_pages if snapshot.num_pages else 0.0
    return {
        "dp_rank": 0,
        "num_running_reqs": snapshot.num_running,
        "num_waiting_reqs": snapshot.num_waiting,
        "num_total_reqs": snapshot.num_running + snapshot.num_waiting,
        "token_usage": usage,
    }


def _snapshot_fields(snapshot: EngineSnapshot) -> dict[str, object]:
    """Return the snapshot under the field names of /server_info."""
    fields = asdict(snapshot)
    return {"is_parked" if name == "is_suspended" else name: v for name, v in fields.items()}
