"""Sequences whose hidden states are kept as far as they fit, and computed at each visit else."""

from collections.abc import Callable, Sequence

from jaxtyping import Bool, Int
from torch import Tensor

from dspark.training.data.examples import ComputeHidden, Example, TokenSequence, rounded
from dspark.training.data.feature_store import FeatureStore

_BYTES = 2  # of a bfloat16
_NORMALISER_BYTES = 4  # of a float32


class CachedExamples:
    """Sequences whose hidden states were computed once, as many as the store has room for.

    The others' are computed anew whenever they are asked for, and rounded in the same way.
    """

    def __init__(
        self, *, sequences: Sequence[TokenSequence], store: FeatureStore, compute: ComputeHidden
    ) -> None:
        self._sequences = sequences
        self._store = store
        self._compute = compute

    def fill(self, report: Callable[[int], None]) -> int:
        """Compute what is missing, while there is room; how many sequences that were.

        Reports sequences computed. Raises OSError when the disk is full; whole shards stay.
        """
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
        return sum(sequence not in self._store for sequence in self._sequences)

    def __len__(self) -> int:
        return len(self._sequences)

    def token_ids(self, index: int) -> Int[Tensor, "T"]:
        return self._sequences[index].tensor()

    def is_answer(self, index: int) -> Bool[Tensor, "T"]:
        return self._sequences[index].is_answer()

    def example(self, index: int) -> Example:
        sequence = self._sequences[index]
        hidden = self._store.find(sequence) or rounded(self._compute(sequence))
        return Example(self.token_ids(index), self.is_answer(index), hidden)


def cache_bytes(sequences: Sequence[TokenSequence], *, aux_size: int, hidden_size: int) -> int:
    """Disk that a cache of these sequences takes."""
    tokens = sum(len(sequence.token_ids) for sequence in sequences)
    return tokens * ((aux_size + hidden_size) * _BYTES + _NORMALISER_BYTES)
