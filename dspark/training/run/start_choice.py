"""Chooses between a start from the target's layers and a random one by a few steps of each."""

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import torch

from draft import DSparkNetwork
from draft.atomic_write import whole_file
from dspark.training.data.examples import Examples
from dspark.training.model.start_network import Start
from dspark.training.run.recipe import Recipe
from dspark.training.run.trainer import Trainer

logger = logging.getLogger(__name__)

_STEPS = 24
_SEQUENCES = 4  # of a step, at most
_COMPARED = 8  # last steps, whose losses are averaged
_STARTS: tuple[Start, ...] = ("target", "scratch")

Build = Callable[[Start], DSparkNetwork]


def choose_start(
    build: Build,
    examples: Examples,
    recipe: Recipe,
    *,
    folder: Path,
    identity: Mapping[str, object],
    device: torch.device,
) -> Start:
    """Return the start with the smaller loss, and log both losses.

    The choice is kept in start.json, so that a resumed training has the same one. identity: values
    that the losses depend on; another identity compares anew.
    """
    file = folder / "start.json"
    key = hashlib.sha256(repr(sorted(identity.items())).encode()).hexdigest()[:16]
    kept = _read(file, key)
    if kept is not None:
        return kept
    short = replace(
        recipe,
        max_steps=min(_STEPS, recipe.num_steps(len(examples))),
        sequences_per_step=min(recipe.sequences_per_step, _SEQUENCES),
    )
    losses = {start: _last_loss(build(start), examples, short, device) for start in _STARTS}
    chosen = min(_STARTS, key=lambda start: losses[start])
    logger.info(
        "training.start: auto takes %s: after %d steps the loss from the target's layers is %.4f, "
        "from random ones %.4f",
        chosen,
        short.num_steps(len(examples)),
        losses["target"],
        losses["scratch"],
    )
    with whole_file(file) as partial:
        content = {"start": chosen, "losses": losses, "identity": key}
        partial.write_text(f"{json.dumps(content)}\n", encoding="utf-8")
    return chosen


def _last_loss(
    network: DSparkNetwork, examples: Examples, recipe: Recipe, device: torch.device
) -> float:
    trainer = Trainer(network=network, examples=examples, recipe=recipe, device=device)
    losses = [trainer.train_step().loss for _ in range(trainer.num_steps)]
    return fmean(losses[-_COMPARED:])


def _read(file: Path, key: str) -> Start | None:
    """Read an earlier choice; None without one of this identity."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(found, dict) or found.get("identity") != key:
        return None
    return next((start for start in _STARTS if start == found.get("start")), None)
