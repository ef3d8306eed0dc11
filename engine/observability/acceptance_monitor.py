"""Warns of a collapsed acceptance: the text stays right, so nothing else shows a bad draft."""

import logging

from engine.api import EngineSnapshot

logger = logging.getLogger(__name__)

COLLAPSED_ACCEPT_LENGTH = 1.3  # mean, bonus included; below it a draft costs more than it saves
_WINDOW_ROUNDS = 200


class AcceptanceMonitor:
    """Warns once per collapse of the mean accept length over the last 200 rounds."""

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
        is_collapsed = mean < COLLAPSED_ACCEPT_LENGTH
        if is_collapsed and not self.has_collapsed:
            logger.warning(
                "acceptance has collapsed: mean accept length %.2f over %d rounds. Answers stay "
                "right, but speculation only costs time. To find the cause, run `dspark doctor "
                "--diagnose-draft` with the settings of this server.",
                mean,
                rounds,
            )
        self.has_collapsed = is_collapsed
