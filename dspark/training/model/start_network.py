"""Builds the network of a training: new, or from an existing draft."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draft import DraftLoadError, DSparkConfig, DSparkNetwork, TargetFacts, load_network
from draft import read_config as read_draft_config
from dspark.training.config import TrainingConfig
from dspark.training.data.examples import TokenSequence
from dspark.training.model.design import (
    choose_taps,
    decoder_variant,
    design_draft,
    frequent_token_ids,
    unused_token_id,
)
from dspark.training.model.initialising import make_trainable, new_network, with_draft_vocabulary
from dspark.training.model.target_layers import last_layers
from engine.errors import LoadError
from engine.loading.target import LoadedTarget

logger = logging.getLogger(__name__)

Start = Literal["target", "scratch", "draft"]


def tap_layers_of(config: TrainingConfig, target: LoadedTarget) -> tuple[int, ...]:
    """Return the tap layers of the future draft. Raises LoadError."""
    if config.learning.start != "draft":
        return choose_taps(config.design, num_layers=target.num_layers)
    try:
        return _existing_design(config, target).tap_layers
    except DraftLoadError as error:
        raise LoadError(f"training.start_draft: {error}") from error


def logit_cap_of(config: TrainingConfig, target: LoadedTarget) -> float | None:
    """Return the cap of the future draft's logits. Raises LoadError."""
    if config.learning.start != "draft":
        return decoder_variant(target).logit_cap
    try:
        return _existing_design(config, target).variant.logit_cap
    except DraftLoadError as error:
        raise LoadError(f"training.start_draft: {error}") from error


def build_network(
    config: TrainingConfig,
    target: LoadedTarget,
    sequences: Sequence[TokenSequence],
    *,
    start: Start,
    seed: int,
    device: torch.device,
) -> DSparkNetwork:
    """Build a trainable network; `sequences` determine the reduced vocabulary and the mask.

    Raises LoadError for an invalid design, or a draft that cannot be trained further.
    """
    embedding = target.parts.embedding.get_parameter("weight").float()
    head = target.parts.lm_head.get_parameter("weight").float()
    size = config.design.draft_vocab_size
    kept_ids = None if size is None else _choose_kept_ids(target, sequences, size)
    if start == "draft":
        return _load_existing(config, target, embedding, head, kept_ids=kept_ids, device=device)
    mask = config.design.mask_token_id
    if mask is None:
        texts = (sequence.token_ids for sequence in sequences)
        mask = unused_token_id(texts, vocab_size=target.vocab_size)
    if mask >= target.vocab_size:
        raise LoadError(
            f"design.mask_token_id: found {mask}; accepted: 0 to {target.vocab_size - 1}"
        )
    design = design_draft(config.design, target, mask_token_id=mask)
    return new_network(
        design,
        embedding=embedding,
        lm_head=head,
        start=last_layers(target, design) if start == "target" else None,
        max_positions=config.max_tokens,
        seed=seed,
        device=device,
        kept_ids=kept_ids,
    )


def _choose_kept_ids(
    target: LoadedTarget, sequences: Sequence[TokenSequence], size: int
) -> Int[Tensor, "Vd"]:
    """Return the ids of a reduced vocabulary: frequent tokens and all end tokens."""
    answers = [sequence.token_ids[sequence.num_prompt_tokens :] for sequence in sequences]
    kept_ids = frequent_token_ids(
        answers, size=size, always=target.eos_ids, vocab_size=target.vocab_size
    )
    known, total = set(kept_ids.tolist()), sum(map(len, answers))
    covered = sum(token_id in known for answer in answers for token_id in answer)
    logger.info("draft vocabulary: %d tokens, %.2f %% of answers", size, 100 * covered / total)
    return kept_ids


def _load_existing(
    config: TrainingConfig,
    target: LoadedTarget,
    embedding: Float[Tensor, "V E"],
    head: Float[Tensor, "V E"],
    *,
    kept_ids: Int[Tensor, "Vd"] | None,
    device: torch.device,
) -> DSparkNetwork:
    """Load training.start_draft, with its vocabulary reduced to `kept_ids` if given."""
    assert config.learning.start_draft is not None
    try:
        design = _existing_design(config, target)
        network = load_network(
            Path(config.learning.start_draft),
            design,
            embedding=embedding,
            lm_head=head,
            dtype=torch.float32,
            device=device,
            max_positions=config.max_tokens,
        )
    except DraftLoadError as error:
        raise LoadError(f"training.start_draft: {error}") from error
    if kept_ids is None:
        return make_trainable(network)
    if design.draft_vocab_size is not None:
        raise LoadError(
            f"design.draft_vocab_size: found {len(kept_ids)}, but training.start_draft has a "
            f"reduced vocabulary of {design.draft_vocab_size}; accepted: null"
        )
    return make_trainable(with_draft_vocabulary(network, kept_ids, max_positions=config.max_tokens))


def _existing_design(config: TrainingConfig, target: LoadedTarget) -> DSparkConfig:
    """Read the config of training.start_draft. Raises DraftLoadError."""
    assert config.learning.start_draft is not None
    facts = TargetFacts(target.hidden_size, target.num_layers, target.vocab_size)
    design = read_draft_config(Path(config.learning.start_draft), target=facts)
    _refuse_untrainable(design)
    return design


def _refuse_untrainable(config: DSparkConfig) -> None:
    """Raise DraftLoadError for a draft of a kind that this command cannot export."""
    if not config.sample_from_anchor:
        wanted = "true, for a draft that samples from its anchor"
        raise DraftLoadError("sample_from_anchor", found=False, accepted=wanted)
    if len(set(config.layers)) > 1 or config.layers[0].sliding_window or config.layers[0].causal:
        accepted = "layers that all attend to the whole past"
        raise DraftLoadError("layer_types", found="several kinds", accepted=accepted)
