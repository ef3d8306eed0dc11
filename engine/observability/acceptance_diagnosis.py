"""Why acceptance collapsed: the same draft tried under other readings of its checkpoint.

Verification hides a draft that is read wrongly: the text stays right. What gives it away is that
the same weights, read otherwise, foretell the very text that was served.
"""

import copy
import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from draft import BlockRequest, DraftLoadError, DSparkConfig, DSparkProposer
from draft.config import check_taps
from engine.loading.draft import LoadedDraft
from engine.loading.target import LoadedTarget, dense_hidden_states
from engine.observability.step_observer import RecordedText
from kv_pool import KVLayout, KVPool, ReferenceAttention

_MAX_TOKENS = 160  # of one text, its end
_MAX_ANCHORS = 32  # in all texts
# An explanation must be worth half a token a round, and more than chance among few anchors.
_MIN_GAIN = 0.5
_MIN_RATIO = 2.0


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to read a checkpoint."""

    name: str  # what would be wrong with it as it is declared
    remedy: str
    config: DSparkConfig


@dataclass(frozen=True, slots=True)
class Trial:
    """What a reading is worth on recorded text."""

    reading: Reading
    num_anchors: int
    num_matches: int  # leading draft tokens that are the text's, over all anchors

    @property
    def accept_length(self) -> float:
        return 1 + self.num_matches / self.num_anchors


def explain_collapse(
    target: LoadedTarget,
    draft: LoadedDraft,
    texts: Sequence[RecordedText],
    *,
    device: torch.device,
) -> str | None:
    """A sentence on what is likely wrong; None when there is no text to try anything on.

    Costs one dense pass of the target over each text and one draft pass for each reading of it,
    once per collapse. Must run between steps.
    """
    trials = try_readings(target, draft, texts, device=device)
    if not trials:
        return None
    declared, *others = trials
    best = max(others, key=lambda trial: trial.num_matches, default=declared)
    said = ", ".join(f"{t.reading.remedy} {t.accept_length:.2f}" for t in others)
    found = f"As declared {declared.accept_length:.2f}, {said} (mean accept length over "
    found += f"{declared.num_anchors} places of text just served)."
    gain = best.accept_length - declared.accept_length
    if gain >= _MIN_GAIN and best.num_matches >= _MIN_RATIO * declared.num_matches:
        return f"Likely cause: {best.reading.name}. {found} Try {best.reading.remedy}."
    return (
        f"Neither the other slot convention nor taps one layer off explain it. {found} Likely "
        "causes: the draft was trained for another target or another version of it; the text is "
        "unlike its training data. Compare with speculative.algorithm: none."
    )


def try_readings(
    target: LoadedTarget,
    draft: LoadedDraft,
    texts: Sequence[RecordedText],
    *,
    device: torch.device,
) -> list[Trial]:
    """Every reading over the same places; the first is as declared. Empty without a place."""
    readings = list(_readings(draft.config, num_layers=target.num_layers))
    proposers = [_proposer(draft, reading.config, device) for reading in readings]
    matches = [0] * len(readings)
    num_anchors = 0
    for text in texts:
        ids, anchors = _places(
            text, count=_MAX_ANCHORS // len(texts), num_following=draft.config.block_size + 1
        )
        if not anchors:
            continue
        num_anchors += len(anchors)
        hidden = _hidden_states(target, readings, ids.to(device))
        for i, proposer in enumerate(proposers):
            taps = torch.cat([hidden[tap] for tap in proposer.tap_layers], dim=-1)
            matches[i] += _count_matches(proposer, ids, anchors, taps)
    if num_anchors == 0:
        return []
    return [Trial(r, num_anchors, m) for r, m in zip(readings, matches, strict=True)]


def _readings(config: DSparkConfig, *, num_layers: int) -> Iterator[Reading]:
    yield Reading("nothing", "as declared", config)
    other = not config.sample_from_anchor
    block_size = config.block_size + (1 if other else -1)
    if block_size >= 1:
        yield Reading(
            "its slots follow the other convention",
            f"sample_from_anchor: {str(other).lower()} in its config.json",
            dataclasses.replace(config, sample_from_anchor=other, block_size=block_size),
        )
    for shift, words in ((-1, "one layer too high"), (1, "one layer too low")):
        taps = tuple(tap + shift for tap in config.tap_layers)
        try:
            check_taps("taps", taps, num_layers=num_layers)
        except DraftLoadError:
            continue
        yield Reading(
            f"its taps are {words}",
            f"taps {list(taps)} instead of {list(config.tap_layers)} (layer 0 is the first)",
            dataclasses.replace(config, tap_layers=taps),
        )


def _places(text: RecordedText, *, count: int, num_following: int) -> tuple[Tensor, list[int]]:
    """The end of a text, and at most `count` anchors in its answer with enough tokens after."""
    cut = max(len(text.token_ids) - _MAX_TOKENS, 0)
    ids = torch.tensor(text.token_ids[cut:])
    first = max(text.num_prompt - cut - 1, 1)
    candidates = range(first, len(ids) - num_following)
    step = max(1, -(-len(candidates) // count))
    return ids, list(candidates[::step])


def _hidden_states(
    target: LoadedTarget, readings: Sequence[Reading], ids: Tensor
) -> dict[int, Tensor]:
    """[T, E] of every layer that some reading taps."""
    layers = tuple(sorted({tap for r in readings for tap in r.config.tap_layers}))
    hidden = dense_hidden_states(target.model, layers, ids[None])
    return dict(zip(layers, torch.split(hidden, target.hidden_size, dim=-1), strict=True))


def _proposer(draft: LoadedDraft, config: DSparkConfig, device: torch.device) -> DSparkProposer:
    """The same modules and weights, read otherwise, over a small pool of their own."""
    network = copy.copy(draft.network)
    network.config = config
    pool = KVPool(
        KVLayout(page_size=1, device=device, draft=network.kv_shapes),
        num_pages=_MAX_TOKENS + _MAX_ANCHORS * config.num_slots,
    )
    # Layer by layer: the stacked form would take the weights away from the engine's own writer.
    return DSparkProposer(
        network=network,
        pool=pool,
        attention=ReferenceAttention(page_size=1, device=device),
        context_kv="off",
    )


def _count_matches(
    proposer: DSparkProposer, ids: Tensor, anchors: Sequence[int], taps: Tensor
) -> int:
    """Leading draft tokens after each anchor that are the text's; all anchors in one pass.

    Pages hold one token each, so that the anchors share the context before them, while every
    block has scratch of its own behind the text.
    """
    device, width = taps.device, proposer.num_slots
    at = torch.arange(len(ids), device=device)
    proposer.write_context(taps, at, at)
    starts = [len(ids) + i * width for i in range(len(anchors))]
    positions = torch.tensor(anchors, device=device)
    request = BlockRequest(
        anchor_ids=ids.to(device)[positions],
        anchor_positions=positions,
        slots=torch.tensor(starts, device=device)[:, None] + torch.arange(width, device=device),
        page_tables=[
            [*range(anchor), *range(start, start + width)]
            for anchor, start in zip(anchors, starts, strict=True)
        ],
        context_lens=list(anchors),
    )
    guesses = proposer.propose(request).draft_ids.cpu()
    following = positions.cpu()[:, None] + torch.arange(1, guesses.shape[1] + 1)
    return int((guesses == ids[following]).long().cumprod(dim=1).sum())
