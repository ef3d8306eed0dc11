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
class Objective:
    """What a step maximises: expected tokens per second.

    base_tokens: of the anchors and of other rounds. patience: the rate of a step without any draft
    is divided by 1 + patience. earned: tokens per second that the same time earns elsewhere; then
    the tokens beyond those are maximised instead of the rate.
    """

    base_tokens: float
    patience: float = 0.0
    earned: float | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """Which of N sequences the draft model proposes for, and how many rows are verified."""

    is_drafting: BoolArray
    chances: FloatArray  # [N, W], of the chosen proposers
    num_rows: int  # in total, the anchors not counted
    least: float  # chance of the least likely row
    tokens: float  # expected, anchors' included
    seconds: float
    score: float  # what was maximised
    price: float | None = None  # of a row, by which the drafting sequences were found

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


def choose(draft: FloatArray, lookup: FloatArray, table: CostTable, objective: Objective) -> Choice:
    """Choose proposers and rows. draft, lookup: chances [N, W], 0 where there is no token.

    Given who drafts, the best rows are the likeliest ones, so all numbers of rows are compared.
    Who drafts is compared for two prices of a row: the slope of the costs at the rows that lookups
    take, and their mean slope.
    """
    best = _best_rows(np.zeros(len(draft), dtype=np.bool_), lookup, table, 0, objective)
    if not draft[:, 0].any():
        return best
    if len(draft) == 1:
        found = _best_rows(np.ones(1, dtype=np.bool_), draft, table, 1, objective)
        return found if found.score > best.score else best
    count, last = len(draft), len(table.passes) - 1
    ahead = min(best.num_rows + count, last)
    near = (table.passes[ahead] - table.passes[best.num_rows]) / max(1, ahead - best.num_rows)
    mean = (table.passes[last] - table.passes[0]) / last
    rate = best.rate if objective.earned is None else objective.earned
    for seconds in (near, mean):
        found = choose_at(rate * seconds, rate, draft, lookup, table, objective)
        if found.score > best.score:
            best = found
    return best


def choose_at(
    price: float,
    rate: float,
    draft: FloatArray,
    lookup: FloatArray,
    table: CostTable,
    objective: Objective,
) -> Choice:
    """Choose as `choose` does, for one price of a row and one rate, both in tokens.

    A sequence drafts when its block gains more than its lookup, at that price, than its place in
    the draft pass costs at that rate.
    """
    gain = np.maximum(draft - price, 0.0).sum(axis=1)
    gain -= np.maximum(lookup - price, 0.0).sum(axis=1)
    order = gain.argsort()[::-1]
    total = gain[order].cumsum()
    total -= rate * (table.drafts[1:] - table.drafts[0])
    count = int(total.argmax()) + 1
    is_drafting = np.zeros(len(draft), dtype=np.bool_)
    if total[count - 1] <= 0:
        count = 0
    is_drafting[order[:count]] = True
    chances = np.where(is_drafting[:, None], draft, lookup)
    return _best_rows(is_drafting, chances, table, count, objective, price)


def _best_rows(
    is_drafting: BoolArray,
    chances: FloatArray,
    table: CostTable,
    num_drafting: int,
    objective: Objective,
    price: float | None = None,
) -> Choice:
    """Compare all numbers of the likeliest rows."""
    likeliest = np.sort(chances, axis=None)[::-1]
    tokens = np.empty(len(likeliest) + 1)
    tokens[0], tokens[1:] = objective.base_tokens, likeliest
    tokens = tokens.cumsum()
    seconds = table.passes[: len(tokens)] + table.drafts[num_drafting]
    if objective.earned is not None:
        scores = tokens - objective.earned * seconds
    else:
        scores = tokens / seconds
        scores[0] /= 1 + objective.patience
    at = int(scores.argmax())
    if at and likeliest[at - 1] <= _TINY:
        at = 0  # only patience favours rows without a draft
    return Choice(
        is_drafting=is_drafting,
        chances=chances,
        num_rows=at,
        least=float(likeliest[at - 1]) if at else 1.0,
        tokens=float(tokens[at]),
        seconds=float(seconds[at]),
        score=float(scores[at]),
        price=price,
    )


def allocate(chances: FloatArray, num_rows: int, least: float | None = None) -> IntArray:
    """Give out rows to the likeliest drafts: return their numbers by sequence, [N].

    chances: [N, W], never rising along a sequence. Of equal chances the smaller position comes
    first, then the smaller sequence. So whether a token gets a row never depends on later ones.
    least: the chance of the last row, if it is known.
    """
    if num_rows <= 0:
        return np.zeros(len(chances), dtype=np.int64)
    if least is None:
        last = max(0, chances.size - num_rows)
        least = max(_TINY, float(np.partition(chances, last, axis=None)[last]))
    is_taken = chances >= least
    if np.count_nonzero(is_taken) > num_rows:
        is_taken = chances > least
        ties = np.flatnonzero((chances == least).T)  # by position, then by sequence
        missing = num_rows - np.count_nonzero(is_taken)
        is_taken.T.flat[ties[:missing]] = True
    numbers: IntArray = is_taken.sum(axis=1)
    return numbers
