"""A profile is recorded while the engine serves."""

import asyncio
import json
from pathlib import Path

import pytest

from engine import RequestRejected
from tests.support.engine.tiny_models import write_tiny_draft
from tests.support.engine.workers import collect_events, greedy_request, running_worker


def test_a_profile_has_the_operators_of_the_engines_thread(tmp_path: Path) -> None:
    draft = write_tiny_draft(tmp_path / "draft")

    async def run() -> list[str]:
        async with running_worker(draft) as worker:
            await worker.start_profile(str(tmp_path / "new" / "folder"))
            with pytest.raises(RequestRejected, match="stop it first"):
                await worker.start_profile(str(tmp_path))
            await collect_events(worker, greedy_request())
            first = await worker.stop_profile()
            with pytest.raises(RequestRejected, match="start one first"):
                await worker.stop_profile()
            await worker.start_profile(str(tmp_path / "new" / "folder"))
            return [first, await worker.stop_profile()]

    first, second = asyncio.run(run())
    assert first != second
    names = {event.get("name") for event in json.loads(Path(first).read_text())["traceEvents"]}
    assert "aten::embedding" in names


def test_a_folder_that_cannot_be_created_is_refused_and_the_engine_goes_on(tmp_path: Path) -> None:
    draft = write_tiny_draft(tmp_path / "draft")
    (tmp_path / "file").write_text("")

    async def run() -> bool:
        async with running_worker(draft) as worker:
            with pytest.raises(RequestRejected, match="no profile can be written"):
                await worker.start_profile(str(tmp_path / "file" / "below"))
            await collect_events(worker, greedy_request())
            return worker.is_healthy()

    assert asyncio.run(run())
