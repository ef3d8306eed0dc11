"""Serves a tiny model pair on a real engine and web server."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from engine import EngineClient, EngineConfig
from engine.core.worker import EngineWorker
from server.app import create_app
from server.options import ServerOptions
from server.text.tokenizer import TextCodec
from tests.support.engine.tiny_models import tiny_engine, tiny_target, write_tiny_draft
from tests.support.server.fakes import served
from tests.support.server.tiny_pair import character_tokenizer


@dataclass(frozen=True, slots=True)
class TinyService:
    """The address of the server, and its engine."""

    url: str
    worker: EngineClient

    def live(self) -> dict[str, Any]:
        live: dict[str, Any] = httpx.get(f"{self.url}/server_info").json()["live"]
        return live

    def wait_until_idle(self) -> None:
        """Wait until no request runs or waits and no page is used; fail after 30 s."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            now = self.live()
            if now["num_running"] == now["num_waiting"] == now["num_used_pages"] == 0:
                return
            time.sleep(0.01)
        raise AssertionError(now)


@contextmanager
def tiny_service(
    folder: Path, *, engine: dict[str, Any] | None = None, **options: Any
) -> Iterator[TinyService]:
    """Serve the pair; engine: fields of EngineConfig; options: fields of ServerOptions."""
    draft = write_tiny_draft(folder / "draft")
    built = tiny_engine(
        target=tiny_target(has_eos=False),
        draft_folder=draft,
        **{"num_pages": 200, "prefix_cache": False, **(engine or {})},
    )
    worker = EngineWorker(built.engine, num_threads=1)
    codec = TextCodec(tokenizer=character_tokenizer())
    limits = EngineConfig(target="tiny", **(engine or {}))
    options = {"capacity": limits.max_running_requests + limits.max_queued_requests, **options}
    app = create_app(
        engine=worker, text=codec, options=ServerOptions(served_name="tiny", **options)
    )
    try:
        with served(app) as url:
            yield TinyService(url, worker)
    finally:
        worker.close()
