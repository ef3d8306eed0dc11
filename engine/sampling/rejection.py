"""Which draft tokens stand. Pure functions: no model, no clock, no state.

Source of both rules: the speculative sampling theorem (Leviathan et al. 2023, Chen et al. 2023)
in the form of the DSpark paper's verification.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draft.proposer.inverse_cdf import inverse_cdf


@dataclass(frozen=True, slots=True)
class Verdict:
    """What stood: accept length is num_accepted + 1, the bonus token included."""

    num_accepted: Int[Tensor, " B"]
    bonus_ids: Int[Tensor, " B"]


def most_likely(scores: Float[Tensor, "R V"]) -> Int[Tensor, " R"]:
    """The first of the greatest scores of each row, as argmax finds it.

    NumPy finds it in a tenth of PyTorch's time on a CPU, where it reads float32 in wide registers.
    """
    if scores.device.type != "cpu" or scores.dtype != torch.float32:
        return scores.argmax(dim=-1)
    return torch.from_numpy(scores.numpy().argmax(axis=-1))


def verify_greedy(
    draft_ids: Int[Tensor, "B K"],
    choices: Int[Tensor, "B K+1"],
    num_drafts: Int[Tensor, " B"],
) -> Verdict:
    """Keep the draft while it says what the target would have said.

    choices[b, i] is the target's argmax after draft token i - 1 (row 0: after the anchor);
    columns past num_drafts[b] are padding.
    """
    stands = (draft_ids == choices[:, :-1]) & _is_draft(draft_ids, num_drafts)
    num_accepted = _leading_true(stands)
    return Verdict(num_accepted, choices.gather(1, num_accepted[:, None])[:, 0])


def verify_sampled(
    draft_ids: Int[Tensor, "B K"],
    draft_probs: Float[Tensor, "B K V"],
    target_probs: Float[Tensor, "B K+1 V"],
    num_drafts: Int[Tensor, " B"],
    *,
    accept_uniforms: Float[Tensor, "B K"],
    bonus_uniforms: Float[Tensor, "B K+1"],
) -> Verdict:
    """Accept x with probability min(1, p(x) / q(x)); after a rejection draw from (p - q)+.

    q is the very tensor that the draft was drawn from. "All stood" is no special case: past its
    last draft the drafter is taken to have said nothing (q = 0), so the residual there is p.
    """
    p_draft = target_probs[:, :-1].gather(2, draft_ids[:, :, None])[:, :, 0]
    q_draft = draft_probs.gather(2, draft_ids[:, :, None])[:, :, 0]
    # A drafter that overflowed has said nothing: its softmax is NaN in every entry.
    is_draft = _is_draft(draft_ids, num_drafts) & q_draft.isfinite()
    q = torch.nn.functional.pad(draft_probs.masked_fill(~is_draft[:, :, None], 0.0), (0, 0, 0, 1))
    stands = (accept_uniforms * q_draft < p_draft) & is_draft
    num_accepted = _leading_true(stands)

    last = num_accepted[:, None, None].expand(-1, 1, target_probs.shape[-1])
    p_last = target_probs.gather(1, last)[:, 0]
    residual = (p_last - q.gather(1, last)[:, 0]).clamp_min(0)
    # A rejection leaves residual mass unless rounding ate it; then p itself is the fallback.
    is_empty = residual.sum(dim=-1, keepdim=True) <= 1e-8
    uniforms = bonus_uniforms.gather(1, num_accepted[:, None])[:, 0]
    return Verdict(num_accepted, inverse_cdf(torch.where(is_empty, p_last, residual), uniforms))


def _is_draft(draft_ids: Int[Tensor, "B K"], num_drafts: Int[Tensor, " B"]) -> Tensor:
    columns = torch.arange(draft_ids.shape[1], device=draft_ids.device)
    return columns[None, :] < num_drafts[:, None]


def _leading_true(stands: Tensor) -> Int[Tensor, " B"]:
    return stands.long().cumprod(dim=1).sum(dim=1)
