"""Computes the target's hidden states over whole sequences with transformers."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from draft.network.network import cap_logits
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
        self,
        *,
        target: LoadedTarget,
        tap_layers: tuple[int, ...],
        device: torch.device,
        logit_cap: float | None = None,
    ) -> None:
        """logit_cap: of the draft's logits."""
        self._target = target
        self._tap_layers = tap_layers
        self._device = device
        self._logit_cap = logit_cap
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
            torch.logsumexp(self._logits(rows[at : at + _ROWS_AT_ONCE]), dim=-1)
            for at in range(0, len(rows), _ROWS_AT_ONCE)
        ]
        return torch.cat([rows.new_zeros(start), *parts])

    def _logits(self, final: Float[Tensor, "T E"]) -> Float[Tensor, "T V"]:
        return cap_logits(final @ self._head.T, self._logit_cap)

    def refuse_other_heads(self) -> None:
        """Raise LoadError if the target's logits are not head times final hidden state.

        A draft applies only the matrix of the head, and its cap if it has one.
        """
        probe = TokenSequence(tuple(i % self._target.vocab_size for i in range(_PROBE_TOKENS)), 0)
        final = self(probe).final
        with torch.no_grad():
            ours = self._logits(final.float())
            theirs = self._target.model(
                input_ids=probe.tensor().to(self._device)[None], use_cache=False
            )
        difference = (ours - theirs.logits[0].float()).abs().max()
        share = _TOLERANCE.get(self._target.dtype, _LOW_PRECISION_TOLERANCE)
        config: Any = self._target.model.config.get_text_config()  # type: ignore[union-attr,operator]
        cap = getattr(config, "final_logit_softcapping", None)
        if cap != self._logit_cap or difference > share * ours.abs().max():
            raise LoadError(
                f"model.path: found a {config.model_type} target that applies a scale, a cap or a "
                "bias to its logits; accepted: logits that are one matrix product, as a draft "
                "computes them, or capped ones of Gemma 4"
            )
