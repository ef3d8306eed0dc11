"""Engines that break a promise on purpose: a check that cannot fail proves nothing."""

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

import engine.core.engine_core
from engine.scheduler.plan import RoundResult


@contextmanager
def a_verifier_that_lies(*, vocab: int) -> Iterator[None]:
    """Rounds with drafts commit another last token than the target chose."""
    honest = engine.core.engine_core.verify_step

    def lie(*args: object) -> Sequence[RoundResult]:
        results = honest(*args)  # type: ignore[arg-type]
        return [
            dataclasses.replace(r, new_ids=(*r.new_ids[:-1], (r.new_ids[-1] + 1) % vocab))
            if r.scheduled.num_drafts
            else r
            for r in results
        ]

    with patch.object(engine.core.engine_core, "verify_step", lie):
        yield
