"""Engines that violate a guarantee, to show that the checks can fail."""

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

import engine.core.engine_core
from engine.scheduler.plan import RoundResult


@contextmanager
def wrong_verification(*, vocab: int) -> Iterator[None]:
    """Rounds with drafts commit a last token that the target did not choose."""
    original = engine.core.engine_core.verify_step

    def wrong(*args: object) -> Sequence[RoundResult]:
        results = original(*args)  # type: ignore[arg-type]
        return [
            dataclasses.replace(r, new_ids=(*r.new_ids[:-1], (r.new_ids[-1] + 1) % vocab))
            if r.scheduled.num_drafts
            else r
            for r in results
        ]

    with patch.object(engine.core.engine_core, "verify_step", wrong):
        yield
