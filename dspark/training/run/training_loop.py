"""Loops over training steps: log, validation, checkpoints, best parameters."""

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from draft import DSparkNetwork
from dspark.training.config import LearningConfig
from dspark.training.data.examples import Examples
from dspark.training.model.forward import ForwardBlocks, forward_blocks
from dspark.training.run.checkpoints import Checkpoints, save_atomically
from dspark.training.run.curves import draw_curves
from dspark.training.run.recipe import Recipe
from dspark.training.run.trainer import StepReport, Trainer, copy_parameters
from dspark.training.run.training_log import TrainingLog
from dspark.training.run.validation import Validation, validate

logger = logging.getLogger(__name__)

_PACE_STEPS = 20  # before the estimate of the remaining time


class _Pace:
    """Logs the estimated remaining time once, after _PACE_STEPS."""

    def __init__(self, first_step: int, num_steps: int) -> None:
        self._first = first_step
        self._num_steps = num_steps
        self._started = time.monotonic()

    def update(self, step: int) -> None:
        num_done, num_left = step - self._first, self._num_steps - step
        if num_done == _PACE_STEPS and num_left:
            seconds = (time.monotonic() - self._started) / num_done
            left = num_left * seconds / 60
            logger.info("seconds_per_step=%.2f estimated_minutes_left=%.0f", seconds, left)


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """The result of a training; the network has the parameters to export."""

    num_steps: int
    exported_step: int
    validation: Validation | None  # of the exported step; None without held-out prompts


class TrainingLoop:
    """Trains in a folder with training.jsonl, curves.png, checkpoints/ and best.pt."""

    def __init__(
        self,
        *,
        network: DSparkNetwork,
        examples: Examples,
        held_out: Examples,
        recipe: Recipe,
        config: LearningConfig,
        folder: Path,
        identity: Mapping[str, object],
        device: torch.device,
        forward: ForwardBlocks = forward_blocks,
    ) -> None:
        self._network = network
        self._held_out = held_out
        self._recipe = recipe
        self._config = config
        self._folder = folder
        self._device = device
        self._trainer = Trainer(
            network=network, examples=examples, recipe=recipe, device=device, forward=forward
        )
        self._checkpoints = Checkpoints(folder=folder / "checkpoints", identity=identity)
        self._log = TrainingLog(path=folder / "training.jsonl")
        self._best = -math.inf
        self._best_step = 0

    @property
    def num_steps(self) -> int:
        return self._trainer.num_steps

    def run(self, report: Callable[[int], None]) -> TrainingResult:
        """Run the remaining steps. Reports the number of steps done.

        Raises TrainingError if the folder has another training, and OSError if the disk is full;
        the last checkpoint stays.
        """
        self._resume()
        trainer, config = self._trainer, self._config
        report(trainer.step)
        pace = _Pace(trainer.step, trainer.num_steps)
        while trainer.step < trainer.num_steps:
            found = trainer.train_step()
            self._log.step(found)
            is_last = trainer.step == trainer.num_steps
            if is_last or trainer.step % config.validate_every == 0:
                self._validate(found)
            if is_last or trainer.step % config.checkpoint_every == 0:
                self._save()
            report(trainer.step)
            pace.update(trainer.step)
        return self._end()

    def _resume(self) -> None:
        state = self._checkpoints.load_newest()
        if state is not None:
            self._trainer.restore(state["trainer"])
            self._best, self._best_step = state["best"], state["best_step"]
            logger.info("training continues after step %d", self._trainer.step)
        self._log.rewind(self._trainer.step)

    def _save(self) -> None:
        state = {
            "trainer": self._trainer.state(),
            "best": self._best,
            "best_step": self._best_step,
        }
        self._checkpoints.save(state, step=self._trainer.step)

    def _validate(self, found: StepReport) -> None:
        if not len(self._held_out):
            logger.info(
                "step=%d of=%d loss=%.4f (no held-out prompts)",
                found.step,
                self.num_steps,
                found.loss,
            )
            return
        validation = validate(self._network, self._held_out, self._recipe, device=self._device)
        self._log.validation(found.step, validation)
        logger.info(
            "step=%d of=%d loss=%.4f held_out_accept_length=%.3f acceptance=%s",
            found.step,
            self.num_steps,
            found.loss,
            validation.accept_length,
            "/".join(f"{chance:.3f}" for chance in validation.acceptance),
        )
        if validation.accept_length > self._best:
            self._best, self._best_step = validation.accept_length, found.step
            save_atomically(self._trainer.state()["parameters"], self._best_file)
        self._draw()

    def _draw(self) -> None:
        try:
            draw_curves(self._log.entries(), self._folder / "curves.png")
        except ImportError:
            logger.warning("no curves.png without matplotlib: pip install -e '.[train]'")

    def _end(self) -> TrainingResult:
        step = self._trainer.step
        if self._config.export == "best" and self._best_step not in (0, step):
            parameters: Mapping[str, Any] = torch.load(
                self._best_file, map_location="cpu", weights_only=True
            )
            copy_parameters(parameters, self._network)
            step = self._best_step
        self._network.eval()
        validation = None
        if len(self._held_out):
            validation = validate(self._network, self._held_out, self._recipe, device=self._device)
        return TrainingResult(self.num_steps, step, validation)

    @property
    def _best_file(self) -> Path:
        return self._folder / "best.pt"
