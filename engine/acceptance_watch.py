"""Verification hides a broken draft: the text stays right while acceptance falls to 1."""

import logging

from engine.api import EngineSnapshot

logger = logging.getLogger(__name__)

_WINDOW_ROUNDS = 200
_COLLAPSED = 1.3  # mean accept length, bonus included


class AcceptanceWatch:
    """Warns, once per collapse, when the mean accept length of the last rounds is hopeless."""

    def __init__(self) -> None:
        self._rounds_before = 0
        self._accepted_before = 0
        self.has_collapsed = False

    def __call__(self, snapshot: EngineSnapshot) -> None:
        rounds = snapshot.num_rounds - self._rounds_before
        if rounds < _WINDOW_ROUNDS:
            return
        mean = 1 + (snapshot.num_accepted_tokens - self._accepted_before) / rounds
        self._rounds_before = snapshot.num_rounds
        self._accepted_before = snapshot.num_accepted_tokens
        if mean < _COLLAPSED and not self.has_collapsed:
            logger.warning(
                "acceptance has collapsed: mean accept length %.2f over %d rounds. Answers stay "
                "right, but speculation only costs time. Likely causes, in this order: the draft "
                "was trained for another target or another version of it; its slots follow the "
                "other convention (sample_from_anchor); its taps are off by one layer; the text "
                "is unlike its training data. Compare with speculative.algorithm: none.",
                mean,
                rounds,
            )
        self.has_collapsed = mean < _COLLAPSED
