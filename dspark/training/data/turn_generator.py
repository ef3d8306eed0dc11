"""Generates users' turns with the target."""

from collections.abc import Iterator, Sequence

from dspark.training.config import OwnPromptsConfig
from dspark.training.data.own_prompts import GeneratedTurn, UserTurn
from dspark.training.seeds import seed_of
from engine.api import EngineSamplingParams, FinishReason, Request
from engine.core.engine_core import EngineCore
from engine.core.offline import drive_each


class TurnGenerator:
    """Generates users' turns; each depends only on its number."""

    def __init__(
        self, *, engine: EngineCore, turn: UserTurn, config: OwnPromptsConfig, concurrency: int
    ) -> None:
        self._engine = engine
        self._turn = turn
        self._config = config
        self._concurrency = concurrency

    def __call__(self, numbers: Sequence[int]) -> Iterator[GeneratedTurn]:
        """Yield each turn when it ends. Raises RequestRejected if one does not fit."""
        requests = [Request(str(n), self._turn.opening_ids, self._params(n)) for n in numbers]
        for run in drive_each(self._engine, requests, concurrency=self._concurrency):
            assert run.finish is not None
            has_end = run.finish.reason == FinishReason.STOP
            token_ids = run.token_ids[:-1] if has_end else run.token_ids
            yield GeneratedTurn(int(run.request.request_id), tuple(token_ids), has_end)

    def _params(self, number: int) -> EngineSamplingParams:
        config = self._config
        return EngineSamplingParams(
            max_new_tokens=config.max_tokens,
            temperature=config.temperature,
            top_p=config.top_p,
            seed=seed_of(config.seed, "user", number),
            stop_token_ids=self._turn.end_ids,
        )
