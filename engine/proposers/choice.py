"""Chooses what the rounds of a step verify, for the most expected tokens per second.

Pure functions of costs and of chances. A chance belongs to a draft token: that it and all drafts
before it in its round are accepted.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.arrays import IntArray
from engine.draft_length.cost_model import FloatArray

BoolArray = npt.NDArray[np.bool_]

_TINY = 1e-6  # chances below it are never worth a row


@dataclass(frozen=True, slots=True)
class CostTable:
    """Seconds of a step by what it adds to the rows and blocks that are not chosen here."""

    passes: FloatArray  # [M + 1]: with 0 .. M more rows
    drafts: FloatArray  # [N + 1]: with 0 .. N more sequences in the draft pass


@dataclass(frozen=True, slots=True)
class Choice:
    """Which of N sequences the draft model proposes for, and how many rows are verified."""

    is_drafting: BoolArray
    num_rows: int  # in total, the anchors not counted
    tokens: float  # expected, anchors' included
    seconds: float
    score: float  # what was maximised

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


def choose(
    draft: FloatArray,
    lookup: FloatArray,
    table: CostTable,
    *,
    base_tokens: float,
    patience: float = 0.0,
    earned: float | None = None,
) -> Choice:
    """Choose proposers and rows. draft, lookup: chances [N, W], 0 where there is no token.

    Given who drafts, the best rows are the likeliest ones, so all numbers of rows are compared.
    A sequence drafts when its block gains more than the lookup, at the price of a row, than its
    place in the draft pass costs.

    base_tokens: of the anchors and of other rounds. patience: the rate of a step without any draft
    is divided by 1 + patience. earned: tokens per second that the same time earns elsewhere; then
    the tokens beyond those are maximised instead of the rate.
    """
    no_drafts = np.zeros(len(draft), dtype=np.bool_)
    objective = _Objective(base_tokens, patience, earned)
    best = _best_rows(no_drafts, lookup, table.passes, float(table.drafts[0]), objective)
    if not draft.any():
        return best
    sets = [~no_drafts] if len(draft) == 1 else _drafting_sets(draft, lookup, table, best, earned)
    for is_drafting in sets:
        chances = np.where(is_drafting[:, None], draft, lookup)
        seconds = float(table.drafts[np.count_nonzero(is_drafting)])
        found = _best_rows(is_drafting, chances, table.passes, seconds, objective)
        if found.score > best.score:
            best = found
    return best


@dataclass(frozen=True, slots=True)
class _Objective:
    base_tokens: float
    patience: float
    earned: float | None


def _best_rows(
    is_drafting: BoolArray,
    chances: FloatArray,
    passes: FloatArray,
    draft_seconds: float,
    objective: _Objective,
) -> Choice:
    """Compare all numbers of the likeliest rows."""
    likeliest = np.sort(chances, axis=None)[::-1]
    count = int(np.count_nonzero(likeliest > _TINY))
    tokens = np.empty(count + 1)
    tokens[0] = objective.base_tokens
    np.cumsum(likeliest[:count], out=tokens[1:])
    tokens[1:] += objective.base_tokens
    seconds = passes[: count + 1] + draft_seconds
    if objective.earned is not None:
        scores = tokens - objective.earned * seconds
    else:
        scores = tokens / seconds
        scores[0] /= 1 + objective.patience
    at = int(scores.argmax())
    return Choice(is_drafting, at, float(tokens[at]), float(seconds[at]), float(scores[at]))


def _drafting_sets(
    draft: FloatArray, lookup: FloatArray, table: CostTable, now: Choice, earned: float | None
) -> list[BoolArray]:
    """Return the sets of sequences to try as drafting, for two prices of a row.

    One price is the slope of the costs at the rows that lookups take, the other their mean slope.
    """
    count, last = len(draft), len(table.passes) - 1
    ahead = min(now.num_rows + count, last)
    rate = now.rate if earned is None else earned
    near = (table.passes[ahead] - table.passes[now.num_rows]) / max(1, ahead - now.num_rows)
    mean = (table.passes[last] - table.passes[0]) / last
    sets: list[BoolArray] = []
    for price in (rate * near, rate * mean):
        gain = np.cumsum(draft - price, axis=1).max(axis=1)
        gain -= np.maximum(np.cumsum(lookup - price, axis=1).max(axis=1), 0.0)
        order = np.argsort(-gain)
        total = np.cumsum(gain[order]) - rate * (table.drafts[1:] - table.drafts[0])
        is_drafting = np.zeros(count, dtype=np.bool_)
        is_drafting[order[: int(total.argmax()) + 1]] = True
        if not sets or (is_drafting != sets[0]).any():
            sets.append(is_drafting)
    return sets


def allocate(chances: FloatArray, num_rows: int) -> IntArray:
    """Give out rows to the likeliest drafts: return their numbers by sequence, [N].

    chances: [N, W], never rising along a sequence. Of equal chances the smaller position comes
    first, then the smaller sequence. So whether a token gets a row never depends on later ones.
    """
    flat = chances.T.ravel()  # by position, then by sequence
    num_rows = min(num_rows, int(np.count_nonzero(flat > _TINY)))
    if num_rows == 0:
        return np.zeros(len(chances), dtype=np.int64)
    least = np.partition(flat, len(flat) - num_rows)[len(flat) - num_rows]
    is_taken = flat > least
    ties = np.flatnonzero(flat == least)
    is_taken[ties[: num_rows - np.count_nonzero(is_taken)]] = True
    numbers: IntArray = is_taken.reshape(chances.T.shape).sum(axis=0)
    return numbers
