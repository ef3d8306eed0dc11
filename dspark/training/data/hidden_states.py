"""Computes the target's hidden states over whole sequences with transformers."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from dspark.training.data.examples import HiddenStates, TokenSequence
from engine.errors import LoadError
from engine.loading.target import LoadedTarget
from engine.runner.taps import Taps

_PROBE_TOKENS = 8
_ROWS_AT_ONCE = 256  # of logits in memory
# Relative to the largest logit: above rounding, below any scale, cap or bias.
_TOLERANCE = {torch.float32: 1e-3}
_LOW_PRECISION_TOLERANCE = 3e-2


class HiddenStateReader:
    """Runs the target over one sequence, without a pool and without its head.

    For use within `by_transformers_alone`: attention must not use a pool.
    """

    def __init__(
        self, *, target: LoadedTarget, tap_layers: tuple[int, ...], device: torch.device
    ) -> None:
        self._target = target
        self._tap_layers = tap_layers
        self._device = device
        self._head = target.parts.lm_head.get_parameter("weight").detach().float()

    def __call__(self, sequence: TokenSequence) -> HiddenStates:
        parts, model = self._target.parts, self._target.model
        taps = Taps(embedding=parts.embedding, layers=parts.layers, layer_ids=self._tap_layers)
        with torch.no_grad(), taps:
            ids = sequence.tensor().to(self._device)[None]
            backbone = model.get_decoder()  # type: ignore[operator]
            final = backbone(input_ids=ids, use_cache=False).last_hidden_state[0]
            log_normaliser = self.log_normaliser(final, start=sequence.num_prompt_tokens)
            return HiddenStates(taps.take(final.shape[0]), final, log_normaliser)

    def log_normaliser(self, final: Float[Tensor, "T E"], *, start: int) -> Float[Tensor, "T"]:
        """Return logsumexp of the target's logits in float32, for rows from `start`; else 0.

        Only rows of the answer are used, and a large head is half the work of a small target.
        """
        rows = final[start:].float()
        parts = [
            torch.logsumexp(rows[at : at + _ROWS_AT_ONCE] @ self._head.T, dim=-1)
            for at in range(0, len(rows), _ROWS_AT_ONCE)
        ]
        return torch.cat([rows.new_zeros(start), *parts])

    def refuse_other_heads(self) -> None:
        """Raise LoadError if the target's logits are not head times final hidden state.

        A draft applies only the matrix of the head.
        """
        probe = TokenSequence(tuple(i % self._target.vocab_size for i in range(_PROBE_TOKENS)), 0)
        final = self(probe).final
        head = self._target.parts.lm_head.get_parameter("weight")
        with torch.no_grad():
            ours = (final @ head.T).float()
            theirs = self._target.model(
                input_ids=probe.tensor().to(self._device)[None], use_cache=False
            )
        difference = (ours - theirs.logits[0].float()).abs().max()
        share = _TOLERANCE.get(self._target.dtype, _LOW_PRECISION_TOLERANCE)
        config: Any = self._target.model.config.get_text_config()  # type: ignore[union-attr,operator]
        is_capped = getattr(config, "final_logit_softcapping", None) is not None
        if is_capped or difference > share * ours.abs().max():
            raise LoadError(
                "model.path: found a target that applies a scale, a cap or a bias to its logits; "
                "accepted: logits that are one matrix product, as a draft computes them"
            )
