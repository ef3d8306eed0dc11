"""The target speaks in the user's place."""

from collections.abc import Iterator, Sequence

from dspark.training.config import OwnPromptsConfig
from dspark.training.data.own_prompts import UserTurn, WrittenTurn
from dspark.training.seeds import seed_of
from engine.api import EngineSamplingParams, FinishReason, Request
from engine.core.engine_core import EngineCore
from engine.core.offline import drive_each


class TurnWriter:
    """Writes users' turns, each from its number alone."""

    def __init__(
        self, *, engine: EngineCore, turn: UserTurn, config: OwnPromptsConfig, concurrency: int
    ) -> None:
        self._engine = engine
        self._turn = turn
        self._config = config
        self._concurrency = concurrency

    def __call__(self, numbers: Sequence[int]) -> Iterator[WrittenTurn]:
        """Each as it ends. Raises RequestRejected when the engine has no room for one."""
        requests = [Request(str(n), self._turn.opening_ids, self._params(n)) for n in numbers]
        for run in drive_each(self._engine, requests, concurrency=self._concurrency):
            assert run.finish is not None
            has_end = run.finish.reason == FinishReason.STOP
            said = run.token_ids[:-1] if has_end else run.token_ids
            yield WrittenTurn(int(run.request.request_id), tuple(said), has_end)

    def _params(self, number: int) -> EngineSamplingParams:
        config = self._config
        return EngineSamplingParams(
            max_new_tokens=config.max_tokens,
            temperature=config.temperature,
            top_p=config.top_p,
            seed=seed_of(config.seed, "user", number),
            stop_token_ids=self._turn.end_ids,
        )
