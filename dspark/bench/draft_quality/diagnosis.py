"""Finds a misread draft: compares accept lengths under other readings of its checkpoint.

Verification hides a misread draft: the text stays right, and only acceptance falls. The same
weights, read as they were trained, predict the target's text.
"""

import copy
import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from draft import BlockRequest, DraftLoadError, DSparkConfig, DSparkProposer
from draft.config import check_taps
from dspark.bench.compare.identity import generate_reference
from dspark.bench.workloads.interleaving import Report
from engine.build import load_models
from engine.config import EngineConfig
from engine.errors import LoadError
from engine.loading.draft import LoadedDraft
from engine.loading.target import LoadedTarget, dense_hidden_states
from engine.observability.acceptance_monitor import COLLAPSED_ACCEPT_LENGTH
from engine.platform.auto_settings import configure_threads, resolve_device
from kv_pool import KVLayout, KVPool, ReferenceAttention

_MAX_TOKENS = 512  # of one text, its end
_MAX_ANCHORS = 64  # in all texts
# Another reading must gain half a token a round, and more than chance among few anchors.
_MIN_GAIN = 0.5
_MIN_RATIO = 2.0


@dataclass(frozen=True, slots=True)
class Text:
    """Holds a prompt and the target's own answer."""

    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reading:
    """Describes one way to read a checkpoint."""

    fault: str  # of the checkpoint's config.json, if this reading is right
    remedy: str
    config: DSparkConfig


@dataclass(frozen=True, slots=True)
class Trial:
    """Counts the tokens that a reading predicts right."""

    reading: Reading
    num_anchors: int
    num_matches: int  # leading draft tokens equal to the text's, summed over all anchors

    @property
    def accept_length(self) -> float:
        return 1 + self.num_matches / self.num_anchors


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Compares the declared reading with the others, over the same anchors."""

    declared: Trial
    others: tuple[Trial, ...]

    @property
    def right_reading(self) -> Reading | None:
        """The reading that explains a low acceptance; None when none does."""
        best = max(self.others, key=lambda trial: trial.num_matches, default=self.declared)
        gain = best.accept_length - self.declared.accept_length
        if gain < _MIN_GAIN or best.num_matches < _MIN_RATIO * self.declared.num_matches:
            return None
        return best.reading

    @property
    def holds(self) -> bool:
        """Whether the draft is read as it was trained and predicts the target."""
        is_useful = self.declared.accept_length >= COLLAPSED_ACCEPT_LENGTH
        return is_useful and self.right_reading is None

    def verdict(self) -> str:
        if self.right_reading is not None:
            return f"{self.right_reading.fault}; the right reading is {self.right_reading.remedy}"
        if self.holds:
            return "the draft is read as it was trained; no other reading is better"
        return (
            "no other reading helps. Likely causes: the draft was trained for another target or "
            "another version of it; the text is unlike its training data. Compare with "
            "speculative.algorithm: none"
        )


def diagnose_draft(
    config: EngineConfig,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    report: Report,
) -> Diagnosis:
    """Load both models, answer the prompts greedily, and try every reading on the answers.

    Reports once per prompt, and once more. Raises LoadError for models that cannot be loaded, and
    for answers too short to try a draft block on.
    """
    device = resolve_device(config)
    configure_threads(config, device)
    target, draft = load_models(config, device)
    assert draft is not None, "a config without a draft"
    texts = []
    for i, prompt in enumerate(prompts):
        report(f"answer {i + 1} of {len(prompts)}")
        output = generate_reference(target, prompt, max_new_tokens=max_new_tokens)
        texts.append(Text(tuple(prompt), output))
    report("readings of the draft")
    with torch.inference_mode():
        found = try_readings(target, draft, texts, device=device)
    if found is None:
        lengths = ", ".join(str(len(text.output_ids)) for text in texts)
        raise LoadError(
            f"--prompts: found answers of {lengths} tokens; "
            f"accepted: one of more than {draft.config.block_size + 1} tokens"
        )
    return found


def try_readings(
    target: LoadedTarget,
    draft: LoadedDraft,
    texts: Sequence[Text],
    *,
    device: torch.device,
) -> Diagnosis | None:
    """Run every reading over the same anchors; None when the texts are too short for one.

    Costs one dense pass of the target over each text, and one draft pass for each reading of it.
    """
    readings = list(_readings(draft.config, num_layers=target.num_layers))
    longest = max((len(t.prompt_ids) + len(t.output_ids) for t in texts), default=0)
    num_text_slots = min(longest, _MAX_TOKENS)
    proposers = [_proposer(draft, r.config, num_text_slots, device) for r in readings]
    matches = [0] * len(readings)
    num_anchors = 0
    for text in texts:
        ids, anchors = _anchors(
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
        return None
    declared, *others = (Trial(r, num_anchors, m) for r, m in zip(readings, matches, strict=True))
    return Diagnosis(declared, tuple(others))


def _readings(config: DSparkConfig, *, num_layers: int) -> Iterator[Reading]:
    yield Reading("nothing", "as declared", config)
    other = not config.sample_from_anchor
    block_size = config.block_size + (1 if other else -1)
    if block_size >= 1:
        yield Reading(
            "the draft's slots follow the other convention",
            f"sample_from_anchor: {str(other).lower()} in its config.json",
            dataclasses.replace(config, sample_from_anchor=other, block_size=block_size),
        )
    for shift, direction in ((-1, "high"), (1, "low")):
        taps = tuple(tap + shift for tap in config.tap_layers)
        try:
            check_taps("taps", taps, num_layers=num_layers)
        except DraftLoadError:
            continue
        yield Reading(
            f"the draft's taps are one layer too {direction}",
            f"taps {list(taps)} instead of {list(config.tap_layers)} (layer 0 is the first)",
            dataclasses.replace(config, tap_layers=taps),
        )


def _anchors(text: Text, *, count: int, num_following: int) -> tuple[Tensor, list[int]]:
    """Return the end of a text, and at most `count` anchors that enough tokens follow."""
    whole = (*text.prompt_ids, *text.output_ids)
    cut = max(len(whole) - _MAX_TOKENS, 0)
    ids = torch.tensor(whole[cut:])
    first = max(len(text.prompt_ids) - cut - 1, 1)
    candidates = range(first, len(ids) - num_following)
    step = max(1, -(-len(candidates) // max(count, 1)))
    return ids, list(candidates[::step])


def _hidden_states(
    target: LoadedTarget, readings: Sequence[Reading], ids: Tensor
) -> dict[int, Tensor]:
    """Compute the outputs [T, E] of every layer that some reading taps."""
    layers = tuple(sorted({tap for r in readings for tap in r.config.tap_layers}))
    hidden = dense_hidden_states(target.model, layers, ids[None])
    return dict(zip(layers, torch.split(hidden, target.hidden_size, dim=-1), strict=True))


def _proposer(
    draft: LoadedDraft, config: DSparkConfig, num_text_slots: int, device: torch.device
) -> DSparkProposer:
    """Run the draft's modules and weights under another config, over a small pool."""
    network = copy.copy(draft.network)
    network.config = config
    pool = KVPool(
        KVLayout(page_size=1, device=device, draft=network.kv_shapes),
        num_pages=num_text_slots + _MAX_ANCHORS * config.num_slots,
    )
    # Layer by layer: all readings share the weights, which the stacked form would move.
    return DSparkProposer(
        network=network,
        pool=pool,
        attention=ReferenceAttention(page_size=1, device=device),
        context_kv="off",
    )


def _count_matches(
    proposer: DSparkProposer, ids: Tensor, anchors: Sequence[int], taps: Tensor
) -> int:
    """Count leading draft tokens that equal the text's, over all anchors in one pass.

    Pages hold one token each: anchors share the context before them, and every block gets its
    scratch after the text.
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
