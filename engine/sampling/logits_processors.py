"""Applies requests' options to their rows of logits, before tokens are chosen from them.

A step's logits go through a fixed sequence of processors, in transformers' order. Each is built on
the host, from the scheduled sequences alone, and changes in place exactly the rows whose requests
have its option; a step without options has no processors. Row k of a verify window is processed as
if the draft tokens before it were committed. No state is kept between steps, so a rejected draft
leaves no trace.

    logits [R, V] -> LogitBias -> Penalties -> TokenMasks -> MinTokens -> scores [R, V]
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from engine.sampling.logit_bias import LogitBias
from engine.sampling.logit_rows import LogitRows
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

        draft_ids are those of the step's sampling sequences, in their order.
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
        """Process the logits.

        Float32 logits are overwritten; without processors they are returned unchanged.
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
    """Build the processors that the sampling sequences of a step need."""
    rows = LogitRows.of(sampling)
    processors = (
        LogitBias.of(rows, device=device),
        Penalties.of(rows, device=device),
        TokenMasks.of(rows, vocab_size=vocab_size, device=device),
        MinTokens.of(rows, device=device),
    )
    return LogitsProcessors(tuple(processor for processor in processors if processor is not None))
