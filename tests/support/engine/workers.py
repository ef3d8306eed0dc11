"""Engine workers over tiny models, and requests to them."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from engine import EngineSamplingParams, EngineSnapshot, Request, TokenEvent
from engine.core.worker import EngineWorker
from tests.support.engine.running import prompts
from tests.support.engine.tiny_models import VOCAB, tiny_engine, tiny_target


@asynccontextmanager
async def running_worker(
    folder: Path,
    *,
    delivers_after_launch: bool = False,
    observers: Sequence[Callable[[EngineSnapshot], None]] = (),
    **settings: object,
) -> AsyncIterator[EngineWorker]:
    """A worker over a tiny engine with a draft; settings are fields of EngineConfig."""
    built = tiny_engine(
        target=tiny_target(has_eos=False), draft_folder=folder, **{"num_pages": 200, **settings}
    )
    worker = EngineWorker(
        built.engine,
        num_threads=1,
        observers=observers,
        delivers_after_launch=delivers_after_launch,
    )
    try:
        yield worker
    finally:
        worker.close()


def greedy_request(request_id: str = "a", max_new_tokens: int = 12, seed: int = 5) -> Request:
    """A request for greedy tokens after a random prompt."""
    (prompt,) = prompts(1, vocab=VOCAB, seed=seed)
    return Request(request_id, tuple(prompt), EngineSamplingParams(max_new_tokens=max_new_tokens))


async def collect_events(worker: EngineWorker, request: Request) -> list[TokenEvent]:
    """Run a request to its end; its events."""
    events: list[TokenEvent] = []
    await worker.generate(request, events.append)
    return events
