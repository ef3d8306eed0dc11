"""Counts what steps do, for the statistics log and /metrics."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from engine.api import SOURCES, SourceStats
from engine.scheduler.plan import ScheduledSequence
from engine.scheduler.scheduler import Committed


class StepMetrics:
    """Counts steps, rounds and rows, and times stages. Written by the engine's thread alone."""

    def __init__(
        self, *, num_positions: int, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """num_positions: the most draft tokens of a round."""
        self._clock = clock
        self.num_steps = 0
        self.num_rounds = 0
        self.num_draft_tokens = 0
        self.num_accepted_tokens = 0
        self.accepted_per_position = [0] * num_positions
        self.sources: dict[str, SourceStats] = {source: SourceStats() for source in SOURCES}
        self.plain_rounds: Counter[str] = Counter()  # without drafts, by reason
        self.num_processed_rows = 0
        self.num_logprob_rows = 0
        self.finished: Counter[str] = Counter()
        self.stage_seconds: dict[str, float] = {}
        self.step_seconds: dict[str, float] = {}  # of each stage, in the latest step
        self.idle_seconds = 0.0

    def begin_step(self) -> None:
        """Start the seconds of a step's stages at zero."""
        self.step_seconds.clear()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the seconds spent inside to a stage."""
        started = self._clock()
        try:
            yield
        finally:
            spent = self._clock() - started
            self.step_seconds[name] = self.step_seconds.get(name, 0.0) + spent
            self.stage_seconds[name] = self.stage_seconds.get(name, 0.0) + spent

    def record(self, committed: Sequence[Committed]) -> None:
        """Count one step and what it committed."""
        self.num_steps += 1
        for done in committed:
            if done.event is None:
                continue
            if done.scheduled.is_round and done.fault is None:
                self._record_round(done.scheduled, len(done.event.token_ids) - 1)
            if done.event.finish is not None:
                self.finished[done.event.finish.reason.value] += 1

    def record_rows(self, *, processed: int, with_logprobs: int) -> None:
        """Count rows that logits processors changed, once for each, and rows with logprobs."""
        self.num_processed_rows += processed
        self.num_logprob_rows += with_logprobs

    def _record_round(self, scheduled: ScheduledSequence, num_accepted: int) -> None:
        num_drafts, source = scheduled.num_drafts, scheduled.source
        self.sources[source] = self.sources[source].plus(num_drafts, num_accepted)
        if num_drafts == 0:
            assert scheduled.reason is not None, "a plain round without a reason"
            self.plain_rounds[scheduled.reason] += 1
            return
        self.num_rounds += 1
        self.num_draft_tokens += num_drafts
        self.num_accepted_tokens += num_accepted
        for position in range(num_accepted):
            self.accepted_per_position[position] += 1
