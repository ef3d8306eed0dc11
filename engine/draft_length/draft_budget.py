"""Chooses how many draft tokens a step verifies: as many as pay at its load.

The choice is made when the step is planned, from costs measured at start, from lengths, and from
earlier rounds and their times. It does not depend on the drafts themselves, so the output keeps
the target's distribution. This module uses no tensors and no clock. See
docs/decisions/0017-drafts-follow-the-load.md.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from engine.draft_length.acceptance_rates import AcceptanceRates
from engine.draft_length.cost_model import StepCosts
from engine.draft_length.cost_tracking import StepTimes, TrackedCosts
from engine.scheduler.draft_allocation import StepLoad

logger = logging.getLogger(__name__)

_CONTEXT_GRAIN = 128  # tokens; contexts are rounded down to multiples of this
_MOST_COUNTS = 16  # numbers of drafting sequences that are tried
_MOST_CHOICES = 512  # cached choices
# Plain decoding must be faster by this fraction before drafts stop: a smaller gain does not make up
# for the acceptance rates that are no longer observed.
_PATIENCE = 0.03
_PROBING = 0.01  # the largest fraction of the time that probes take


class DraftBudgetByLoad:
    """Allots the draft tokens that are expected to commit the most tokens per second."""

    def __init__(self, *, costs: StepCosts, num_draft_tokens: int) -> None:
        """num_draft_tokens: of a full round; the largest cap."""
        self._tracked = TrackedCosts(costs)
        self._full = num_draft_tokens
        self._history = AcceptanceRates(num_positions=num_draft_tokens)
        self._choices: dict[tuple[StepLoad, tuple[float, ...], float], tuple[int, ...]] = {}
        self._saved = 0.0  # seconds saved up for the next probe
        self._num_probes = 0
        self._has_logged = False  # that costs were measured too high
        self.is_suspended = False

    @property
    def costs(self) -> StepCosts:
        return self._tracked.costs

    def most_sequences(self, chance: float, *, max_running: int) -> int:
        """Return the most sequences at which drafts pay, if each token is accepted by this chance.

        All of them are in rounds of short contexts, and none is near its end.
        """
        survival = [chance**position for position in range(1, self._full + 1)]
        counts = range(max_running, 0, -1)
        return next(
            (
                n
                for n in counts
                if any(best_allotment(StepLoad((self._full,) * n), survival, self.costs))
            ),
            0,
        )

    def allot(self, load: StepLoad) -> tuple[int, ...]:
        """See DraftBudget.allot."""
        self._history.pass_step()
        # Rounded, so that loads and chances recur and most choices are cached.
        load = replace(load, context=load.context // _CONTEXT_GRAIN * _CONTEXT_GRAIN)
        survival = tuple(round(chance, 2) for chance in self._history.survival())
        chosen = self._choose(load, survival)
        if any(load.caps):
            self.is_suspended = not any(chosen)
        return self._probed(load, survival, chosen)

    def record(self, num_drafts: int, num_accepted: int) -> None:
        """See DraftBudget.record."""
        self._history.record(num_drafts, num_accepted)

    def record_times(self, times: StepTimes) -> None:
        """Take a finished step's times into account."""
        if not self._tracked.record(times):
            return
        self._choices.clear()
        if not self._has_logged:
            self._has_logged = True
            logger.info(
                "draft budget: steps of %d rows take less time than measured at start (was the "
                "machine busy?); costs are lowered to the steps' times from now on",
                times.num_rows,
            )

    def _choose(self, load: StepLoad, survival: tuple[float, ...]) -> tuple[int, ...]:
        key = (load, survival, 0.0 if self.is_suspended else _PATIENCE)
        found = self._choices.get(key)
        if found is None:
            if len(self._choices) >= _MOST_CHOICES:
                self._choices.clear()
            found = best_allotment(load, survival, self.costs, patience=key[2])
            self._choices[key] = found
        return found

    def _probed(
        self, load: StepLoad, survival: tuple[float, ...], chosen: tuple[int, ...]
    ) -> tuple[int, ...]:
        """Give one sequence a full block now and then, while no sequence has one.

        Positions that are not verified yield no acceptance rates, so suspended drafts would never
        resume. A probe costs time, and waits until _PROBING of the time adds up to its cost.
        """
        if load.chunk_rows or self._full in chosen or self._full in load.fixed:
            return chosen
        candidates = [i for i, cap in enumerate(load.caps) if cap == self._full]
        if not candidates:
            return chosen
        at = candidates[self._num_probes % len(candidates)]
        probing = (*chosen[:at], self._full, *chosen[at + 1 :])
        tokens, seconds = worth(load, chosen, survival, self.costs)
        more_tokens, longer = worth(load, probing, survival, self.costs)
        self._saved += _PROBING * seconds
        if self._saved < longer - seconds * more_tokens / tokens:
            return chosen
        self._saved = 0.0
        self._num_probes += 1
        return probing


def worth(
    load: StepLoad, numbers: Sequence[int], survival: Sequence[float], costs: StepCosts
) -> tuple[float, float]:
    """Predict the tokens that a step with these drafts commits, and its seconds.

    survival: see AcceptanceRates. The chunk counts in neither.
    """
    drafting = [n for n in (*numbers, *load.fixed) if n > 0]
    tokens = load.num_sequences + sum(sum(survival[:n]) for n in drafting)
    rows, sequences = load.num_rows + sum(numbers), load.num_sequences
    return tokens, costs.pass_seconds(
        num_sequences=sequences, num_rows=rows, context=load.context
    ) + costs.draft_seconds(num_sequences=len(drafting), context=load.context)


def best_allotment(
    load: StepLoad, survival: Sequence[float], costs: StepCosts, *, patience: float = 0.0
) -> tuple[int, ...]:
    """Choose draft tokens for each of load.caps that maximise expected tokens per second.

    Theta = tokens / seconds, over all numbers of drafting sequences and of draft tokens. The
    likeliest tokens come first, so all sequences get a position before any gets the next one.
    The search does not stop at the first loss, so a jump in the costs is no obstacle. Theta
    without drafts is divided by 1 + patience.

    A chunk is computed with or without drafts. In a step with a chunk, the time that drafts add
    must earn as many tokens as the same time in steps without a chunk.
    """
    caps = sorted(load.caps, reverse=True)
    best = max(
        _options(load, caps, survival, costs, chunk_rows=0),
        key=lambda o: o.rate / (1 + patience if o.num_drafts == 0 else 1),
    )
    if load.chunk_rows:
        earned = best.rate
        best = max(
            _options(load, caps, survival, costs, chunk_rows=load.chunk_rows),
            key=lambda o: o.tokens - earned * o.seconds,
        )
    return _allotment(load.caps, best)


@dataclass(frozen=True, slots=True)
class _Option:
    """Drafts for the sequences with the largest caps, and the step's tokens and seconds."""

    num_drafting: int
    num_drafts: int  # in total
    tokens: float
    seconds: float

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


def _options(
    load: StepLoad,
    caps: Sequence[int],
    survival: Sequence[float],
    costs: StepCosts,
    *,
    chunk_rows: int,
) -> Iterator[_Option]:
    """Yield every option that can be the best; caps in descending order, fewest drafts first.

    Between two measured sizes, and within one position of the block, tokens and seconds are both
    linear, so neither their ratio nor their difference has a peak there.
    """
    rows = load.num_rows + chunk_rows
    knots = [size - rows for size in costs.passes.sizes]

    @cache
    def pass_seconds(num_drafts: int) -> float:
        return costs.pass_seconds(
            num_sequences=load.num_sequences, num_rows=rows + num_drafts, context=load.context
        )

    def option(num_drafting: int, num_drafts: int, tokens: float) -> _Option:
        seconds = pass_seconds(num_drafts) + costs.draft_seconds(
            num_sequences=load.num_drafting + num_drafting, context=load.context
        )
        return _Option(num_drafting, num_drafts, tokens, seconds)

    tokens = load.num_sequences + sum(sum(survival[:number]) for number in load.fixed)
    yield option(0, 0, tokens)
    reaching = [sum(cap > position for cap in caps) for position in range(len(survival))]
    for num_drafting in _counts(reaching[0]):
        done, expected = 0, tokens
        for position, chance in enumerate(survival):
            count = min(num_drafting, reaching[position])
            if position > 0:  # a drafting sequence has at least one token
                for knot in knots:
                    if done < knot < done + count:
                        yield option(num_drafting, knot, expected + (knot - done) * chance)
            done, expected = done + count, expected + count * chance
            yield option(num_drafting, done, expected)


def _counts(most: int) -> list[int]:
    """Return the numbers of drafting sequences to try: at most _MOST_COUNTS, evenly spaced."""
    return sorted(range(most, 0, -max(1, -(-most // _MOST_COUNTS))))


def _allotment(caps: Sequence[int], chosen: _Option) -> tuple[int, ...]:
    """Distribute an option's drafts: position by position, larger caps and older first."""
    drafting = sorted(range(len(caps)), key=lambda i: (-caps[i], i))[: chosen.num_drafting]
    numbers, left = [0] * len(caps), chosen.num_drafts
    while left > 0:
        takers = [i for i in drafting if caps[i] > numbers[i]][:left]
        for i in takers:
            numbers[i] += 1
        left -= len(takers)
    return tuple(numbers)
