"""Hidden states on disk: bfloat16, some sequences a file, each file whole or not there."""

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from jaxtyping import Bool, Int
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from draft.training.examples import ComputeHidden, Example, HiddenStates, TokenSequence, rounded
from draft.training.whole_file import whole_file

_BYTES = 2  # of a bfloat16
_NORMALISER_BYTES = 4  # of a float32
_PARTS = ("taps", "final", "log_normaliser")  # in the order of HiddenStates
_SHARD_TOKENS = 1 << 16


class CachedExamples:
    """Sequences whose hidden states were computed once.

        shard-00000.safetensors   0.taps [T0, A]  0.final [T0, E]  0.log_normaliser [T0]  1.taps ...

    A shard that another target, other taps or other sequences made is computed anew; so a
    killed run continues with the first shard that is missing.
    """

    def __init__(
        self,
        *,
        folder: Path,
        sequences: Sequence[TokenSequence],
        identity: str,
        compute: ComputeHidden,
        shard_tokens: int = _SHARD_TOKENS,
    ) -> None:
        """identity names the target and its taps."""
        self._folder = folder
        self._sequences = sequences
        self._identity = identity
        self._compute = compute
        self._shards = _split(sequences, shard_tokens)
        self._shard_of = {i: n for n, shard in enumerate(self._shards) for i in shard}

    def fill(self, report: Callable[[int], None]) -> int:
        """Compute what is missing; how many sequences that were. Reports sequences at hand.

        Raises OSError when the disk is full; whole shards stay.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        num_computed = 0
        for number, shard in enumerate(self._shards):
            if not self._is_there(number):
                self._write(number)
                num_computed += len(shard)
            report(shard[-1] + 1)
        return num_computed

    def __len__(self) -> int:
        return len(self._sequences)

    def token_ids(self, index: int) -> Int[Tensor, "T"]:
        return self._sequences[index].tensor()

    def is_answer(self, index: int) -> Bool[Tensor, "T"]:
        return self._sequences[index].is_answer()

    def example(self, index: int) -> Example:
        with safe_open(self._path(self._shard_of[index]), framework="pt") as file:
            hidden = HiddenStates(*(file.get_tensor(f"{index}.{name}") for name in _PARTS))
        return Example(self.token_ids(index), self.is_answer(index), hidden)

    def _write(self, number: int) -> None:
        tensors: dict[str, Tensor] = {}
        for index in self._shards[number]:
            hidden = rounded(self._compute(self._sequences[index]))
            for name in _PARTS:
                tensors[f"{index}.{name}"] = getattr(hidden, name).contiguous()
        try:
            with whole_file(self._path(number)) as partial:
                save_file(tensors, partial, metadata={"of": self._name(number)})
        except SafetensorError as error:
            raise OSError(f"{self._path(number)} cannot be written: {error}") from error

    def _is_there(self, number: int) -> bool:
        try:
            with safe_open(self._path(number), framework="pt") as file:
                return bool((file.metadata() or {}).get("of") == self._name(number))
        except (OSError, SafetensorError):
            return False

    def _name(self, number: int) -> str:
        ids = [self._sequences[index].token_ids for index in self._shards[number]]
        content = json.dumps([self._identity, self._shards[number], ids])
        return hashlib.sha256(content.encode()).hexdigest()

    def _path(self, number: int) -> Path:
        return self._folder / f"shard-{number:05d}.safetensors"


def cache_bytes(sequences: Sequence[TokenSequence], *, aux_size: int, hidden_size: int) -> int:
    """Disk that a cache of these sequences takes."""
    tokens = sum(len(sequence.token_ids) for sequence in sequences)
    return tokens * ((aux_size + hidden_size) * _BYTES + _NORMALISER_BYTES)


def _split(sequences: Sequence[TokenSequence], shard_tokens: int) -> list[list[int]]:
    """Sequence numbers, in order, in groups of about so many tokens."""
    shards: list[list[int]] = []
    room = 0
    for index, sequence in enumerate(sequences):
        if room <= 0:
            shards.append([])
            room = shard_tokens
        shards[-1].append(index)
        room -= len(sequence.token_ids)
    return shards
