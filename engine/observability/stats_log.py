"""Logs throughput and acceptance, one line per interval of work and none per request."""

import logging
import time
from collections.abc import Callable

from engine.api import EngineSnapshot

logger = logging.getLogger(__name__)


class StatsLog:
    """Logs the counters' increase since the last line, as key=value.

    An interval lasts interval_s seconds of work; idle time does not count. busy_s is its length.
    """

    def __init__(
        self, *, interval_s: float = 10.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._interval_s = interval_s
        self._clock = clock
        self._at = clock()
        self._before = EngineSnapshot()

    def __call__(self, now: EngineSnapshot) -> None:
        at = self._clock()
        seconds = at - self._at - (now.idle_seconds - self._before.idle_seconds)
        if seconds < self._interval_s:
            return
        before, self._before, self._at = self._before, now, at
        rounds = now.num_rounds - before.num_rounds
        accepted = now.num_accepted_tokens - before.num_accepted_tokens
        logger.info(
            "steps=%d busy_s=%.1f tokens_per_s=%.1f accept_length=%s withheld_drafts=%d running=%d "
            "waiting=%d used_pages=%d/%d",
            now.num_steps - before.num_steps,
            seconds,
            (now.num_output_tokens - before.num_output_tokens) / seconds,
            f"{1 + accepted / rounds:.2f}" if rounds else "-",
            now.num_withheld_draft_tokens - before.num_withheld_draft_tokens,
            now.num_running,
            now.num_waiting,
            now.num_used_pages,
            now.num_pages,
        )
        if rounds:
            logger.info("SpecDecoding metrics: %s", _speculation_line(before, now, seconds))


def _speculation_line(before: EngineSnapshot, now: EngineSnapshot, seconds: float) -> str:
    rounds = now.num_rounds - before.num_rounds
    drafted = now.num_draft_tokens - before.num_draft_tokens
    accepted = now.num_accepted_tokens - before.num_accepted_tokens
    earlier = before.accepted_per_position or (0,) * len(now.accepted_per_position)
    rates = [
        f"{(b - a) / rounds:.3f}" for a, b in zip(earlier, now.accepted_per_position, strict=True)
    ]
    return (
        f"mean acceptance length: {1 + accepted / rounds:.2f}, "
        f"accepted throughput: {accepted / seconds:.1f} tokens/s, "
        f"drafted throughput: {drafted / seconds:.1f} tokens/s, "
        f"accepted: {accepted} tokens, drafted: {drafted} tokens, "
        f"per-position acceptance rate: {', '.join(rates)}, "
        f"average draft acceptance rate: {100 * accepted / max(drafted, 1):.1f}%"
    )
