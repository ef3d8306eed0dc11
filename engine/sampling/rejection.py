"""Accepts or rejects draft tokens. Pure functions: no model, no clock, no state.

Source of both rules: the speculative sampling theorem (Leviathan et al. 2023, Chen et al. 2023)
in the form of the DSpark paper's verification.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draft.proposer.inverse_cdf import inverse_cdf
from engine.sampling.target_distribution import TokenProbs


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a round: accept length is num_accepted + 1, the bonus token included."""

    num_accepted: Int[Tensor, " B"]
    bonus_ids: Int[Tensor, " B"]


def most_likely(scores: Float[Tensor, "R V"]) -> Int[Tensor, " R"]:
    """Return each row's argmax; of equal scores the first.

    On a CPU NumPy takes a tenth of PyTorch's time, for it reads float32 in wide registers.
    """
    if scores.device.type != "cpu" or scores.dtype != torch.float32:
        return scores.argmax(dim=-1)
    return torch.from_numpy(scores.numpy().argmax(axis=-1))


def verify_greedy(
    draft_ids: Int[Tensor, "B K"],
    choices: Int[Tensor, "B K+1"],
    num_drafts: Int[Tensor, " B"],
) -> Verdict:
    """Accept the draft while each token is the target's argmax.

    choices[b, i] is the target's argmax after draft token i - 1 (row 0: after the anchor);
    columns past num_drafts[b] are padding.
    """
    is_accepted = (draft_ids == choices[:, :-1]) & _is_draft(draft_ids, num_drafts)
    num_accepted = _leading_true(is_accepted)
    return Verdict(num_accepted, choices.gather(1, num_accepted[:, None])[:, 0])


def verify_sampled(
    draft_ids: Int[Tensor, "B K"],
    draft_probs: Float[Tensor, "R Kb V"],
    target_probs: TokenProbs,
    num_drafts: Int[Tensor, " B"],
    *,
    accept_uniforms: Float[Tensor, "B K"],
    bonus_uniforms: Float[Tensor, "B K+1"],
    draft_rows: Int[Tensor, " B"] | None = None,
) -> Verdict:
    """Accept x with probability min(1, p(x) / q(x)); after a rejection draw from (p - q)+.

    target_probs are p of K + 1 rows for each of B sequences, draft_rows their places in
    draft_probs, whose first K tokens count; None: in their order.
    q is the tensor that the draft was sampled from. "All accepted" is no special case: past the
    last draft token q = 0, so the residual there is p.
    """
    p_draft = _probs_of(draft_ids, target_probs)
    batch = torch.arange(len(draft_ids), device=draft_ids.device)
    rows = batch if draft_rows is None else draft_rows
    columns = torch.arange(draft_ids.shape[1], device=draft_ids.device)
    q_draft = draft_probs[rows[:, None], columns, draft_ids]
    # A draft whose logits overflowed counts as no draft: its softmax is NaN in every entry.
    is_draft = _is_draft(draft_ids, num_drafts) & q_draft.isfinite()
    is_accepted = (accept_uniforms * q_draft < p_draft) & is_draft
    num_accepted = _leading_true(is_accepted)

    p_last = target_probs.at(batch, num_accepted)
    residual = p_last.probs
    if draft_ids.shape[1] > 0:
        at = num_accepted.clamp(max=draft_ids.shape[1] - 1)
        is_rejected = (num_accepted == at) & is_draft[batch, at]
        q_last = (
            draft_probs[rows, at]
            if p_last.ids is None
            else draft_probs[rows[:, None], at[:, None], p_last.ids]
        )
        q_last.masked_fill_(~is_rejected[:, None], 0.0)
        residual = (p_last.probs - q_last).clamp_min_(0)
    return Verdict(num_accepted, _bonus(residual, p_last, bonus_uniforms, num_accepted))


def verify_point_mass(
    draft_ids: Int[Tensor, "B K"],
    target_probs: TokenProbs,
    num_drafts: Int[Tensor, " B"],
    *,
    accept_uniforms: Float[Tensor, "B K"],
    bonus_uniforms: Float[Tensor, "B K+1"],
) -> Verdict:
    """Accept x with probability p(x); after a rejection draw from p without x.

    This is `verify_sampled` for a draft that is certain of its token: q is 1 at x. So no q is
    needed, and (p - q)+ is p with a zero at x.
    """
    is_draft = _is_draft(draft_ids, num_drafts)
    is_accepted = (accept_uniforms < _probs_of(draft_ids, target_probs)) & is_draft
    num_accepted = _leading_true(is_accepted)
    batch = torch.arange(len(draft_ids), device=draft_ids.device)
    p_last = target_probs.at(batch, num_accepted)
    residual = p_last.probs
    if draft_ids.shape[1] > 0:
        at = num_accepted.clamp(max=draft_ids.shape[1] - 1)
        is_rejected = (num_accepted == at) & is_draft[batch, at]
        residual = p_last.without(draft_ids[batch, at].masked_fill(~is_rejected, -1))
    return Verdict(num_accepted, _bonus(residual, p_last, bonus_uniforms, num_accepted))


def _probs_of(draft_ids: Int[Tensor, "B K"], target_probs: TokenProbs) -> Float[Tensor, "B K"]:
    return target_probs.at(slice(None), slice(draft_ids.shape[1])).of(draft_ids)


def _bonus(
    residual: Float[Tensor, "B C"],
    p_last: TokenProbs,
    bonus_uniforms: Float[Tensor, "B W"],
    num_accepted: Int[Tensor, " B"],
) -> Int[Tensor, " B"]:
    """Draw from the residual. If rounding left no mass after a rejection, draw from p itself."""
    is_empty = residual.sum(dim=-1, keepdim=True) <= 1e-8
    uniforms = bonus_uniforms.gather(1, num_accepted[:, None])[:, 0]
    return p_last.tokens(inverse_cdf(torch.where(is_empty, p_last.probs, residual), uniforms))


def _is_draft(draft_ids: Int[Tensor, "B K"], num_drafts: Int[Tensor, " B"]) -> Tensor:
    columns = torch.arange(draft_ids.shape[1], device=draft_ids.device)
    return columns[None, :] < num_drafts[:, None]


def _leading_true(is_accepted: Tensor) -> Int[Tensor, " B"]:
    return is_accepted.long().cumprod(dim=1).sum(dim=1)
