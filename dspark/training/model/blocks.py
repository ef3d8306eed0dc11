"""Selects anchors and builds the blocks of draft tokens after them."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dspark.training.data.examples import Example


def draw_anchors(
    is_answer: Bool[Tensor, "T"], *, count: int, generator: torch.Generator
) -> Int[Tensor, "B"]:
    """Draw up to `count` positions of answer tokens that have a successor, in ascending order.

    Draws uniformly without replacement.
    """
    candidates = (is_answer[:-1] & is_answer[1:]).nonzero().squeeze(-1)
    drawn = torch.randperm(len(candidates), generator=generator)[:count]
    return candidates[drawn].sort().values


@dataclass(frozen=True, slots=True)
class Labels:
    """The K tokens after each of B anchors of one sequence, and which are valid."""

    ids: Int[Tensor, "B K"]  # 0 if invalid
    is_valid: Bool[Tensor, "B K"]  # a prefix of every row

    @classmethod
    def after(
        cls,
        token_ids: Int[Tensor, "T"],
        is_answer: Bool[Tensor, "T"],
        anchors: Int[Tensor, "B"],
        *,
        block_size: int,
    ) -> "Labels":
        """Return labels; a slot is valid while all slots up to it are in the answer."""
        positions = anchors[:, None] + torch.arange(1, block_size + 1)  # (B, K)
        inside = positions.clamp(max=len(token_ids) - 1)
        is_good = (positions < len(token_ids)) & is_answer[inside]
        is_valid = is_good.long().cumprod(dim=1).bool()
        return cls(torch.where(is_valid, token_ids[inside], 0), is_valid)

    def to(self, device: torch.device) -> "Labels":
        return Labels(self.ids.to(device), self.is_valid.to(device))


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Several packed sequences, and the blocks of all of them.

    context   t t t t t t | u u u u         T tokens of all sequences, owner 0 | owner 1
    blocks    [a m m] [a m m] | [a m m]     B blocks of K slots, each of one owner
    """

    taps: Float[Tensor, "T A"]
    context_positions: Int[Tensor, "T"]
    context_owners: Int[Tensor, "T"]
    anchor_ids: Int[Tensor, "B"]
    anchor_positions: Int[Tensor, "B"]
    block_owners: Int[Tensor, "B"]
    labels: Labels
    target_hidden: Float[Tensor, "B K E"]  # hidden state that predicts each label
    log_normaliser: Float[Tensor, "B K"]  # of the target's logits there

    @classmethod
    def of(
        cls, examples: Sequence[Example], anchors: Sequence[Tensor], *, block_size: int
    ) -> "MicroBatch":
        """Build the blocks after the given anchors of each sequence."""
        pairs = list(zip(examples, anchors, strict=True))
        labels = [
            Labels.after(e.token_ids, e.is_answer, a, block_size=block_size) for e, a in pairs
        ]
        sources = [
            (e.hidden, _source_positions(a, block_size=block_size, length=len(e.token_ids)))
            for e, a in pairs
        ]
        lengths = [len(e.token_ids) for e in examples]
        owners = torch.arange(len(examples))
        return cls(
            taps=torch.cat([e.hidden.taps for e in examples]),
            context_positions=torch.cat([torch.arange(n) for n in lengths]),
            context_owners=owners.repeat_interleave(torch.tensor(lengths)),
            anchor_ids=torch.cat([e.token_ids[a] for e, a in pairs]),
            anchor_positions=torch.cat(list(anchors)),
            block_owners=owners.repeat_interleave(torch.tensor([len(a) for a in anchors])),
            labels=Labels(
                torch.cat([x.ids for x in labels]), torch.cat([x.is_valid for x in labels])
            ),
            target_hidden=torch.cat([hidden.final[at] for hidden, at in sources]),
            log_normaliser=torch.cat([hidden.log_normaliser[at] for hidden, at in sources]),
        )

    def to(self, device: torch.device) -> "MicroBatch":
        moved = {field.name: getattr(self, field.name).to(device) for field in fields(self)}
        return MicroBatch(**moved)


def _source_positions(
    anchors: Int[Tensor, "B"], *, block_size: int, length: int
) -> Int[Tensor, "B K"]:
    """Return the position that predicts each label, one before it."""
    return (anchors[:, None] + torch.arange(block_size)).clamp(max=length - 1)
