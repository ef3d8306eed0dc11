"""Verification hides a broken draft: the text stays right while acceptance falls to 1."""

import logging
from collections.abc import Callable

from engine.api import EngineSnapshot

logger = logging.getLogger(__name__)

_WINDOW_ROUNDS = 200
_COLLAPSED = 1.3  # mean accept length, bonus included
_LIKELY_CAUSES = (
    "Likely causes, in this order: the draft was trained for another target or another version "
    "of it; its slots follow the other convention (sample_from_anchor); its taps are off by one "
    "layer; the text is unlike its training data. Compare with speculative.algorithm: none."
)


class AcceptanceMonitor:
    """Warns, once per collapse, when the mean accept length of the last rounds is hopeless."""

    def __init__(
        self,
        *,
        diagnose: Callable[[], str | None] | None = None,
        window_rounds: int = _WINDOW_ROUNDS,
    ) -> None:
        """diagnose names the likely cause, or returns None; it is asked between two steps.

        It is asked once: running requests wait for it, and what is wrong with a checkpoint does
        not change.
        """
        self._cause: str | None = None
        self._diagnose = diagnose
        self._window_rounds = window_rounds
        self._rounds_before = 0
        self._accepted_before = 0
        self.has_collapsed = False

    def __call__(self, snapshot: EngineSnapshot) -> None:
        rounds = snapshot.num_rounds - self._rounds_before
        if rounds < self._window_rounds:
            return
        mean = 1 + (snapshot.num_accepted_tokens - self._accepted_before) / rounds
        self._rounds_before = snapshot.num_rounds
        self._accepted_before = snapshot.num_accepted_tokens
        if mean < _COLLAPSED and not self.has_collapsed:
            logger.warning(
                "acceptance has collapsed: mean accept length %.2f over %d rounds. Answers stay "
                "right, but speculation only costs time. %s",
                mean,
                rounds,
                self._likely_cause(),
            )
        self.has_collapsed = mean < _COLLAPSED

    def _likely_cause(self) -> str:
        if self._cause is None:
            self._cause = self._ask()
        return self._cause

    def _ask(self) -> str:
        """A diagnosis that fails must not take the engine with it."""
        if self._diagnose is None:
            return _LIKELY_CAUSES
        try:
            return self._diagnose() or _LIKELY_CAUSES
        except Exception:
            logger.exception("the diagnosis of the collapse failed")
            return _LIKELY_CAUSES
