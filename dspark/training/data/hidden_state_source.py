"""Provides hidden states: recorded while answering, by a second pass, or at each visit."""

import logging
import math
from collections.abc import Sequence
from pathlib import Path

import torch

from dspark.gguf.progress import Progress
from dspark.training.config import FeaturesConfig
from dspark.training.data.examples import Examples, TokenSequence
from dspark.training.data.feature_store import FeatureStore
from dspark.training.data.hidden_states import HiddenStateReader
from dspark.training.data.sequence_examples import SequenceExamples, cache_bytes
from dspark.training.data.state_recorder import HiddenStateRecorder, Normalise, final_norm_of
from engine.errors import LoadError
from engine.loading.target import LoadedTarget, by_transformers_alone, fastest_attention
from engine.model_setup.memory_plan import GIB, size_text

logger = logging.getLogger(__name__)


class HiddenStateSource:
    """Hidden states of the sequences of one training, stored as far as the budget allows."""

    def __init__(
        self,
        *,
        target: LoadedTarget,
        fingerprint: str,
        tap_layers: tuple[int, ...],
        config: FeaturesConfig,
        folder: Path,
        device: torch.device,
        logit_cap: float | None = None,
    ) -> None:
        """Raises LoadError for a target whose logits are not head times final state."""
        self._target = target
        self._tap_layers = tap_layers
        self._config = config
        self._device = device
        self._reader = HiddenStateReader(
            target=target, tap_layers=tap_layers, device=device, logit_cap=logit_cap
        )
        with by_transformers_alone(target.model, fastest_attention(target.model)):
            self._reader.refuse_other_heads()
        self._store: FeatureStore | None = None
        if config.mode != "online":
            self._store = FeatureStore(
                folder=folder,
                identity=f"{fingerprint} {tap_layers}",
                budget_bytes=int(config.disk_budget_gib * GIB),
            )

    @property
    def engine_taps(self) -> tuple[int, ...]:
        """Layers that an engine with the recorder must tap."""
        return (*self._tap_layers, self._target.num_layers - 1)

    def recorder(self, *, min_answer_tokens: int) -> HiddenStateRecorder | None:
        """Return a recorder for an engine without a draft; None if states cannot be recorded."""
        if self._store is None:
            return None
        norm = final_norm_of(self._target, device=self._device)
        if norm is None:
            return None
        return HiddenStateRecorder(
            store=self._store,
            final_norm=norm,
            hidden_size=self._target.hidden_size,
            normalise=None if self._target.dtype == torch.float32 else self._normalise(),
            min_answer_tokens=min_answer_tokens,
        )

    def flush(self) -> None:
        """Write pending states to the disk. Raises OSError if it is full."""
        if self._store is not None:
            self._store.flush()

    def examples(
        self, train: Sequence[TokenSequence], held_out: Sequence[TokenSequence], progress: Progress
    ) -> tuple[Examples, Examples]:
        """Return the examples of both splits; computes missing states within the disk budget.

        For use within `by_transformers_alone`. Raises LoadError in mode `cached` if the states
        exceed the budget.
        """
        if self._store is None:
            return self._with_states(train), self._with_states(held_out)
        everything = [*train, *held_out]
        size = cache_bytes(
            everything,
            aux_size=len(self._tap_layers) * self._target.hidden_size,
            hidden_size=self._target.hidden_size,
        )
        budget = self._config.disk_budget_gib
        if self._config.mode == "cached" and size > budget * GIB:
            enough = math.ceil(1000 * size / GIB) / 1000
            raise LoadError(
                f"features.disk_budget_gib: found {budget:g}; accepted: at least {enough:g} for "
                "these sequences, or features.mode auto or online"
            )
        self._store.keep_only(everything)
        whole = self._with_states(everything)
        num_missing = whole.num_missing
        if num_missing:
            label = f"hidden states, {num_missing} missing, {size_text(size)} in all"
            progress.start(label, total=num_missing)
            num_missing -= whole.fill(progress.update)
        if num_missing:
            logger.info(
                "hidden states of %d sequences exceed %g GiB and are computed at each visit",
                num_missing,
                budget,
            )
        return self._with_states(train), self._with_states(held_out)

    def _with_states(self, sequences: Sequence[TokenSequence]) -> SequenceExamples:
        return SequenceExamples(sequences=sequences, compute=self._reader, store=self._store)

    def _normalise(self) -> Normalise:
        return lambda final, start: self._reader.log_normaliser(final.to(self._device), start=start)
