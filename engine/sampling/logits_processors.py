"""What a request's options do to its rows of logits, before a token is chosen from them.

A step's logits go through a fixed row of processors, in transformers' order. Each is built on the
host, from the shares alone, and works in place on exactly the rows that asked for it; a step in
which nobody asks has none. Row k of a verify window is processed as if the draft tokens before it
had been said. Nothing is remembered between steps, so a rejected draft leaves no trace.

    logits [R, V] -> LogitBias -> Penalties -> TokenMasks -> MinTokens -> scores [R, V]
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from engine.sampling.logit_bias import LogitBias
from engine.sampling.logit_rows import SamplingRows
from engine.sampling.min_tokens import MinTokens
from engine.sampling.penalties import Penalties
from engine.sampling.token_masks import TokenMasks
from engine.scheduler.plan import ScheduledSequence


class LogitsProcessor(Protocol):
    """One rule over a step's logits."""

    @property
    def num_rows(self) -> int:
        """Rows that it changes."""
        ...

    def apply(self, scores: Float[Tensor, "R V"], draft_ids: Int[Tensor, "Bs K"]) -> None:
        """Change its rows of float32 `scores` in place.

        draft_ids are those of the step's sampling shares, in their order.
        """
        ...


@dataclass(frozen=True, slots=True)
class LogitsProcessors:
    """The processors of one step, in the order in which they apply."""

    processors: tuple[LogitsProcessor, ...]

    @property
    def num_rows(self) -> int:
        """Rows changed, counted once for each processor that changes them."""
        return sum(processor.num_rows for processor in self.processors)

    @property
    def waits(self) -> bool:
        """Whether a processor reads the drafts on the host, and so waits for the device."""
        return any(isinstance(processor, TokenMasks) for processor in self.processors)

    def scores(
        self, logits: Float[Tensor, "R V"], draft_ids: Int[Tensor, "Bs K"]
    ) -> Float[Tensor, "R V"]:
        """The processed logits.

        Float32 logits are overwritten; without processors they come back as they are.
        """
        if not self.processors:
            return logits
        scores = logits.float()
        for processor in self.processors:
            processor.apply(scores, draft_ids)
        return scores


def plan_logits_processors(
    sampling: Sequence[ScheduledSequence], *, vocab_size: int, device: torch.device
) -> LogitsProcessors:
    """The processors that the sampling shares of a step ask for."""
    rows = SamplingRows.of(sampling)
    asked = (
        LogitBias.of(rows, device=device),
        Penalties.of(rows, device=device),
        TokenMasks.of(rows, vocab_size=vocab_size, device=device),
        MinTokens.of(rows, device=device),
    )
    return LogitsProcessors(tuple(processor for processor in asked if processor is not None))
