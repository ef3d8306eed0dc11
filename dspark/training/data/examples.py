"""Defines training examples: sequences with the target's hidden states."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True, slots=True)
class HiddenStates:
    """Outputs of the target's layers over one sequence of T tokens.

    The last row is unused: no anchor and no label follows it.
    """

    taps: Float[Tensor, "T A"]  # the tapped layers, concatenated
    final: Float[Tensor, "T E"]  # after the final norm: the input of the target's head
    # float32: logsumexp of the target's logits, from states before rounding; 0 in the prompt,
    # where it is unused
    log_normaliser: Float[Tensor, "T"]


@dataclass(frozen=True, slots=True)
class Example:
    """One prompt with its answer."""

    token_ids: Int[Tensor, "T"]
    is_answer: Bool[Tensor, "T"]
    hidden: HiddenStates


@runtime_checkable
class Examples(Protocol):
    """Sequences by index; lengths and masks are cheap, hidden states are not."""

    def __len__(self) -> int: ...

    def token_ids(self, index: int) -> Int[Tensor, "T"]: ...

    def is_answer(self, index: int) -> Bool[Tensor, "T"]: ...

    def example(self, index: int) -> Example: ...


@dataclass(frozen=True)
class TokenSequence:
    """A prompt and its answer as token ids."""

    token_ids: tuple[int, ...]
    num_prompt_tokens: int

    @cached_property
    def name(self) -> str:
        """Hash of the content: the key of its hidden states on disk."""
        content = repr((self.token_ids, self.num_prompt_tokens))
        return hashlib.sha256(content.encode()).hexdigest()[:32]

    def tensor(self) -> Int[Tensor, "T"]:
        return torch.tensor(self.token_ids)

    def is_answer(self) -> Bool[Tensor, "T"]:
        return torch.arange(len(self.token_ids)) >= self.num_prompt_tokens


# One teacher-forced pass of the target over one sequence.
ComputeHidden = Callable[[TokenSequence], HiddenStates]


def rounded(hidden: HiddenStates) -> HiddenStates:
    """Round the states to bfloat16 on the CPU."""
    return HiddenStates(
        hidden.taps.to("cpu", torch.bfloat16),
        hidden.final.to("cpu", torch.bfloat16),
        hidden.log_normaliser.to("cpu", torch.float32),
    )
