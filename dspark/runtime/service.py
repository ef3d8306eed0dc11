"""Derives the options of text generation and of the HTTP service from the settings."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pydantic import SecretStr

from dspark.runtime.text import text_of
from engine import EngineConfig
from server.generation.generation_config import model_sampling
from server.http.auth import KeyRing
from server.http.request_records import RequestRecord
from server.http.timeouts import TimeLimits
from server.http.tracing import otlp_exporter
from server.options import ServerOptions
from server.settings.engine_config import count_or_none
from server.settings.model_sources import DEMO_PREFIX, is_gguf
from server.settings.rendering import public_values
from server.settings.schema import Settings, SettingsError


def server_options(
    settings: Settings, config: EngineConfig, *, keys: KeyRing, replica: str | None = None
) -> ServerOptions:
    """Derive what the service takes from the settings. Raises LoadError."""
    server = settings.server
    sampling = {}
    if server.sampling_defaults == "model":
        sampling = model_sampling(config.target, revision=config.target_revision)
    return ServerOptions(
        served_name=served_name(settings),
        config=public_values(settings),
        replica=replica,
        default_sampling=sampling,
        default_max_tokens=server.default_max_tokens,
        max_tokens_cap=count_or_none(server.max_tokens_cap),
        responses_store=server.responses_store,
        keys=keys,
        cors_origins=server.cors_origins,
        capacity=settings.scheduler.max_running_requests + settings.scheduler.max_queued_requests,
        max_body_bytes=server.max_body_bytes,
        keepalive_s=server.keepalive_s,
        limits=TimeLimits(settings.scheduler.queue_timeout_s, settings.scheduler.request_timeout_s),
        metric_aliases=settings.observability.metric_aliases,
        log_requests=settings.observability.log_requests,
        playground=server.playground,
        profile_dir=settings.observability.profile_dir,
        ready_when_collapsed=settings.observability.ready_when_collapsed,
        tool_parser=settings.model.tool_call_parser,
        reasoning_parser=settings.model.reasoning_parser,
        grammar_timeout_s=settings.server.grammar_timeout_s,
        additional_properties=settings.server.additional_properties,
        special_tokens_in_content=settings.server.special_tokens_in_content,
        stall_s=settings.observability.stall_seconds,
    )


def served_name(settings: Settings) -> str:
    """Return the name in /v1/models: as set, else the hub id, else that of the folder or file."""
    path = settings.model.path
    if settings.model.served_name is not None:
        return settings.model.served_name
    if path.startswith(DEMO_PREFIX):
        return path.removeprefix(DEMO_PREFIX)
    if is_gguf(path):
        return Path(path).stem
    # A symbolic link keeps its own name; abspath follows none.
    return Path(os.path.abspath(path)).name if Path(path).is_dir() else path


@contextmanager
def tracing(settings: Settings) -> Iterator[list[Callable[[RequestRecord], None]]]:
    """Yield the receivers of request records, and send what they have buffered at the end.

    Raises SettingsError without the packages that traces need.
    """
    endpoint = settings.observability.otlp_endpoint
    if endpoint is None:
        yield []
        return
    traces = otlp_exporter(endpoint, service_name=served_name(settings))
    try:
        yield [traces]
    finally:
        traces.close()


def keys_of(settings: Settings) -> KeyRing:
    """Read the keys from their settings or files. Raises SettingsError for a file without one."""
    server = settings.server
    return KeyRing(
        callers=_keys("api_key", server.api_key, server.api_key_file),
        admins=_keys("admin_api_key", server.admin_api_key, server.admin_api_key_file),
    )


def _keys(name: str, given: Sequence[SecretStr] | None, file: str | None) -> tuple[str, ...]:
    if given is not None:
        return tuple(key.get_secret_value() for key in given)
    if file is None:
        return ()
    lines = [line.strip() for line in text_of(file, f"server.{name}_file").splitlines()]
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise SettingsError(f"server.{name}_file: found {file} empty; accepted: a key a line")
    return keys
