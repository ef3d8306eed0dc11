"""Groups the sequences that draw at random, so that each group is verified by one set of tensors.

A group has one kind of proposal and one kind of filter, and few enough sequences that their
distributions fit into memory together.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from engine.api import EngineSamplingParams
from engine.runner.transfer import upload
from engine.sampling.target_distribution import SamplingBatch, top_k_of
from engine.sampling.uniforms import UniformPlan
from engine.scheduler.plan import StepPlan

_PIECE = 16  # sequences whose distributions exist at the same time
# Entries of a filtered distribution, from the first that may suffice. A vocabulary that is not much
# larger is sorted at once.
_SIZES = (128, 2048)
_MUCH_LARGER = 4
_TIES = 2  # so many times as many entries as top_k, for ties with its last token


@dataclass(frozen=True, slots=True)
class _Member:
    """One sequence that draws."""

    drawing: int  # its index among the R that draw
    row: int  # its index among the sampling sequences
    block_row: int  # of its draft distributions; 0 without any
    params: EngineSamplingParams


@dataclass(frozen=True, slots=True)
class DrawGroup:
    """N of the sequences that draw, on the host and on the device."""

    members: tuple[_Member, ...]
    width: int  # the most draft tokens of any
    has_draft: bool  # of the draft model, with distributions
    size: int | None  # entries of their distributions; None without a filter
    drawing: Int[Tensor, " N"]
    rows: Int[Tensor, " N"]
    block_rows: Int[Tensor, " N"]
    params: SamplingBatch

    def may_be_inexact(self, vocab_size: int) -> bool:
        """Return whether the verdict may have to be repeated, with the draft's distributions."""
        return self.has_draft and self.size is not None and self.size < vocab_size

    def again(self, rows: Sequence[int], *, vocab_size: int) -> "list[DrawGroup]":
        """Return a group of some of the sequences with more entries; none if all were exact."""
        kept = [member for member in self.members if member.row in rows]
        if not kept:
            return []
        assert self.size is not None, "a distribution without a filter is exact"
        size = _size_from(self.size + 1, vocab_size)
        device = self.rows.device
        (group,) = _on_device([_Form(kept, self.width, self.has_draft, size)], vocab_size, device)
        return [group]


@dataclass(frozen=True, slots=True)
class _Form:
    """A group before it is on the device."""

    members: Sequence[_Member]
    width: int
    has_draft: bool
    size: int | None


def draw_groups(
    plan: StepPlan, draws: UniformPlan, *, block_width: int, vocab_size: int, device: torch.device
) -> list[DrawGroup]:
    """Group a step's sequences that draw. block_width: the most tokens of a draft to verify."""
    sampling = plan.sampling
    kinds = (
        (draws.plain, 0, False),
        (draws.lookup, draws.lookup_width, False),
        (draws.drafting, block_width, True),
    )
    forms: list[_Form] = []
    for indices, width, has_draft in kinds:
        members = [
            _Member(
                drawing=r,
                row=draws.rows[r],
                block_row=at,
                params=sampling[draws.rows[r]].seq.request.params,
            )
            for at, r in enumerate(indices)
        ]
        for size, alike in _by_size(members, vocab_size, device):
            pieces = [alike[at : at + _PIECE] for at in range(0, len(alike), _PIECE)]
            forms += [_Form(piece, width, has_draft, size) for piece in pieces]
    return _on_device(forms, vocab_size, device)


def _by_size(
    members: Iterable[_Member], vocab_size: int, device: torch.device
) -> list[tuple[int | None, list[_Member]]]:
    found: dict[int | None, list[_Member]] = {}
    for member in members:
        found.setdefault(_first_size(member.params, vocab_size, device), []).append(member)
    return list(found.items())


def _first_size(params: EngineSamplingParams, vocab_size: int, device: torch.device) -> int | None:
    """Choose how many of the likeliest tokens to begin with; None without a filter.

    A second attempt costs a GPU one more wait, and more entries cost it little: without a top_k it
    begins with many.
    """
    top_k = top_k_of(params, vocab_size)
    if top_k < vocab_size:
        return _size_from(_TIES * top_k, vocab_size)
    if params.top_p >= 1 and params.min_p <= 0:
        return None
    return _size_from(_SIZES[0] if device.type == "cpu" else _SIZES[-1], vocab_size)


def _size_from(least: int, vocab_size: int) -> int:
    """Return the next size of at least so many entries; the vocabulary's after the last."""
    sizes = (size for size in _SIZES if _MUCH_LARGER * size <= vocab_size)
    return next((size for size in sizes if size >= least), vocab_size)


def _on_device(forms: Sequence[_Form], vocab_size: int, device: torch.device) -> list[DrawGroup]:
    columns = [
        np.array([getattr(member, name) for member in form.members], dtype=np.int64)
        for form in forms
        for name in ("drawing", "row", "block_row")
    ]
    if not forms:
        return []
    placed = iter(upload(columns, device))
    return [
        DrawGroup(
            members=tuple(form.members),
            width=form.width,
            has_draft=form.has_draft,
            size=form.size,
            drawing=next(placed),
            rows=next(placed),
            block_rows=next(placed),
            params=SamplingBatch.of(
                [member.params for member in form.members], vocab_size=vocab_size, device=device
            ),
        )
        for form in forms
    ]
