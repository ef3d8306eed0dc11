"""What a draft learns from: sequences, and the target's hidden states over them."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True, slots=True)
class HiddenStates:
    """What the target's layers put out over one sequence of T tokens.

    The last row means nothing: no anchor stands behind it, and no token that it would say.
    """

    taps: Float[Tensor, "T A"]  # the tapped layers side by side
    final: Float[Tensor, "T E"]  # after the final norm: what the target's head reads
    # float32: log of the sum of exp of the target's logits, from states that were not rounded
    # yet; 0 in a prompt, where nobody asks for it
    log_normaliser: Float[Tensor, "T"]


@dataclass(frozen=True, slots=True)
class Example:
    """One prompt with its answer."""

    token_ids: Int[Tensor, "T"]
    is_answer: Bool[Tensor, "T"]
    hidden: HiddenStates


@runtime_checkable
class Examples(Protocol):
    """Sequences by number. Lengths and masks are cheap, hidden states are not."""

    def __len__(self) -> int: ...

    def token_ids(self, index: int) -> Int[Tensor, "T"]: ...

    def is_answer(self, index: int) -> Bool[Tensor, "T"]: ...

    def example(self, index: int) -> Example: ...


@dataclass(frozen=True)
class TokenSequence:
    """A prompt and its answer, in tokens."""

    token_ids: tuple[int, ...]
    num_prompt_tokens: int

    @cached_property
    def name(self) -> str:
        """Follows from what it is; hidden states on disk are found by it."""
        content = repr((self.token_ids, self.num_prompt_tokens))
        return hashlib.sha256(content.encode()).hexdigest()[:32]

    def tensor(self) -> Int[Tensor, "T"]:
        return torch.tensor(self.token_ids)

    def is_answer(self) -> Bool[Tensor, "T"]:
        return torch.arange(len(self.token_ids)) >= self.num_prompt_tokens


# One teacher-forced pass of the target over one sequence.
ComputeHidden = Callable[[TokenSequence], HiddenStates]


class OnlineExamples:
    """Hidden states are computed anew whenever they are asked for.

    They are rounded to bfloat16 as a cache would store them, so that either way of keeping them
    trains the same network.
    """

    def __init__(self, *, sequences: Sequence[TokenSequence], compute: ComputeHidden) -> None:
        self._sequences = sequences
        self._compute = compute

    def __len__(self) -> int:
        return len(self._sequences)

    def token_ids(self, index: int) -> Int[Tensor, "T"]:
        return self._sequences[index].tensor()

    def is_answer(self, index: int) -> Bool[Tensor, "T"]:
        return self._sequences[index].is_answer()

    def example(self, index: int) -> Example:
        hidden = rounded(self._compute(self._sequences[index]))
        return Example(self.token_ids(index), self.is_answer(index), hidden)


def rounded(hidden: HiddenStates) -> HiddenStates:
    """Vectors in bfloat16, on the processor."""
    return HiddenStates(
        hidden.taps.to("cpu", torch.bfloat16),
        hidden.final.to("cpu", torch.bfloat16),
        hidden.log_normaliser.to("cpu", torch.float32),
    )
