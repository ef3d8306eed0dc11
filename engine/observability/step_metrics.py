"""Counts what steps do, for the statistics log and /metrics."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from engine.scheduler.scheduler import Committed


class StepMetrics:
    """Counts steps, rounds and rows, and times stages. Written by the engine's thread alone."""

    def __init__(self, *, block_size: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.num_steps = 0
        self.num_rounds = 0
        self.num_draft_tokens = 0
        self.num_accepted_tokens = 0
        self.accepted_per_position = [0] * block_size
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
            if done.scheduled.num_drafts > 0 and done.fault is None:
                self._record_round(done.scheduled.num_drafts, len(done.event.token_ids) - 1)
            if done.event.finish is not None:
                self.finished[done.event.finish.reason.value] += 1

    def record_rows(self, *, processed: int, with_logprobs: int) -> None:
        """Count rows that logits processors changed, once for each, and rows with logprobs."""
        self.num_processed_rows += processed
        self.num_logprob_rows += with_logprobs

    def _record_round(self, num_drafts: int, num_accepted: int) -> None:
        self.num_rounds += 1
        self.num_draft_tokens += num_drafts
        self.num_accepted_tokens += num_accepted
        for position in range(num_accepted):
            self.accepted_per_position[position] += 1
