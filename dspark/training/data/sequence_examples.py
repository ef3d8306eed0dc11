"""Serves sequences with hidden states, from a store as far as it has room."""

from collections.abc import Callable, Sequence

from jaxtyping import Bool, Int
from torch import Tensor

from dspark.training.data.examples import ComputeHidden, Example, TokenSequence, rounded
from dspark.training.data.feature_store import FeatureStore

_BYTES = 2  # of a bfloat16
_NORMALISER_BYTES = 4  # of a float32


class SequenceExamples:
    """Examples whose hidden states come from a store, or are computed at each visit.

    Computed states are rounded like stored ones, so that either way trains the same network.
    """

    def __init__(
        self,
        *,
        sequences: Sequence[TokenSequence],
        compute: ComputeHidden,
        store: FeatureStore | None = None,
    ) -> None:
        self._sequences = sequences
        self._compute = compute
        self._store = store

    def fill(self, report: Callable[[int], None]) -> int:
        """Compute and store missing states while there is room; return their number.

        Reports the number of computed sequences. Raises OSError if the disk is full; complete
        shards stay.
        """
        assert self._store is not None, "fill without a store"
        num_computed = 0
        for sequence in self._sequences:
            if sequence not in self._store:
                if not self._store.add(sequence, self._compute(sequence)):
                    break
                num_computed += 1
                report(num_computed)
        self._store.flush()
        return num_computed

    @property
    def num_missing(self) -> int:
        return sum(self._store is None or s not in self._store for s in self._sequences)

    def __len__(self) -> int:
        return len(self._sequences)

    def token_ids(self, index: int) -> Int[Tensor, "T"]:
        return self._sequences[index].tensor()

    def is_answer(self, index: int) -> Bool[Tensor, "T"]:
        return self._sequences[index].is_answer()

    def example(self, index: int) -> Example:
        sequence = self._sequences[index]
        hidden = self._store.find(sequence) if self._store is not None else None
        hidden = hidden or rounded(self._compute(sequence))
        return Example(self.token_ids(index), self.is_answer(index), hidden)


def cache_bytes(sequences: Sequence[TokenSequence], *, aux_size: int, hidden_size: int) -> int:
    """Return the disk space of the hidden states of all sequences."""
    tokens = sum(len(sequence.token_ids) for sequence in sequences)
    return tokens * ((aux_size + hidden_size) * _BYTES + _NORMALISER_BYTES)
