"""Writes context KV: tapped hidden states of committed tokens to draft keys and values.

The stacked path writes all layers at once (draft/context/stacked_kv.py); this file selects the
path, falls back to writing per layer, and reports why.
"""

import logging
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from draft.context.context_kernel import ContextKernel
from draft.context.stacked_kv import StackedKV, why_not_stacked
from draft.network.linear import LinearFunction
from draft.network.network import DSparkNetwork
from kv_pool import KVPool

ContextKVMode = Literal["auto", "on", "off"]
ContextKVPath = Literal["stacked", "per_layer", "none"]

logger = logging.getLogger(__name__)


class ContextKVWriter:
    """Writes context keys and values of all draft layers.

    stacked    one matrix product, one norm, one rotation and one store for all layers
    per_layer  the same numbers layer by layer: if the mode is off, or a layer cannot be stacked

    Each write selects its path from the current state of the layers.
    """

    def __init__(
        self,
        *,
        network: DSparkNetwork,
        pool: KVPool,
        mode: ContextKVMode,
        linear: LinearFunction = F.linear,
        kernel: ContextKernel | None = None,
    ) -> None:
        """kernel: writes the stacked path, unless it declines; then `linear` is its product.

        Raises ValueError with the reason if mode is `on` and the layers cannot be stacked.
        """
        self._linear = linear
        self._kernel = kernel
        self._network = network
        self._pool = pool
        self._stacked: StackedKV | None = None
        self._reason: str | None = None
        self.set_mode(mode)

    def set_mode(self, mode: ContextKVMode) -> None:
        """Set the mode; call it between writes.

        Raises ValueError with the reason, and changes nothing, if mode is `on` and the layers
        cannot be stacked.
        """
        if mode == "on":
            _refuse(why_not_stacked(self._network.attentions))
        self._mode = mode
        self._refresh()

    @property
    def mode(self) -> ContextKVMode:
        return self._mode

    @property
    def path(self) -> ContextKVPath:
        """Return the path of the last write or mode change."""
        return "stacked" if self._reason is None else "per_layer"

    @property
    def reason(self) -> str | None:
        """Return why the path is per_layer; None if it is stacked."""
        return self._reason

    def write_context_kv(
        self,
        aux_hidden: Float[Tensor, "N A"],
        positions: Int[Tensor, "N"],
        slots: Int[Tensor, "N"],
    ) -> None:
        """Write the context KV of N committed tokens to their slots.

        Raises ValueError if the mode is `on` and the layers can no longer be stacked.
        """
        if slots.shape[0] > 0:
            self._write(aux_hidden, positions, slots, None)

    def write_committed_kv(
        self,
        aux_hidden: Float[Tensor, "B W A"],
        positions: Int[Tensor, "B W"],
        slots: Int[Tensor, "B W"],
        commit_lens: Int[Tensor, "B"],
    ) -> None:
        """Write the first commit_lens[b] rows of each request in static shapes, for CUDA graphs.

        All rows are projected. Each row past commit_lens, with its slot, is then replaced by a
        copy of the batch's first committed row. That slot is written several times with the same
        bits; no other slot changes, and no mask, dump slot or host sync is needed.

        commit_lens may be 0 for some requests (a padded batch), not for all. Rows past
        commit_lens need a position within the rotary table; their slots are not read.
        """
        width = slots.shape[1]
        committed = torch.arange(width, device=slots.device) < commit_lens[:, None]  # (B, W)
        rows = torch.arange(committed.numel(), device=slots.device)
        first = committed.flatten().to(torch.uint8).argmax()
        source = torch.where(committed.flatten(), rows, first)
        self._write(aux_hidden.flatten(0, 1), positions.flatten(), slots.flatten()[source], source)

    def _write(
        self, aux_hidden: Tensor, positions: Tensor, slots: Tensor, source: Tensor | None
    ) -> None:
        """source: the projected row of each slot; None: row i goes to slots[i]."""
        self._refresh()
        network, stacked = self._network, self._stacked if self._reason is None else None
        if (
            stacked is not None
            and source is None
            and self._kernel is not None
            and self._kernel.write_context_kv(
                network, stacked, self._pool, aux_hidden, positions, slots
            )
        ):
            return
        context = network.project_taps(aux_hidden)
        if stacked is None:
            self._write_layers(context, positions, slots, source)
            return
        keys, values = stacked.project(context, positions, linear=self._linear)
        if source is not None:
            keys, values = keys.index_select(1, source), values.index_select(1, source)
        self._pool.write_draft(slots, keys, values)

    def _write_layers(
        self, context: Tensor, positions: Tensor, slots: Tensor, source: Tensor | None
    ) -> None:
        rotations = self._network.rotations(positions)
        for attention in self._network.attentions:
            keys, values = attention.keys_values(context, rotations[attention.rotary])
            if source is not None:
                keys, values = keys.index_select(0, source), values.index_select(0, source)
            self._pool.write_draft_layer(attention.layer, slots, keys, values)

    def _refresh(self) -> None:
        """Update path, reason and stacked weights from the current state of the layers."""
        attentions = self._network.attentions
        if self._mode == "off":
            self._reason = "switched off"  # by a setting or a request: nothing to log
        elif self._stacked is not None and self._stacked.is_current(attentions):
            self._note(None)
        else:
            reason = why_not_stacked(attentions)
            if self._mode == "on":
                _refuse(reason)
            self._stacked = StackedKV.build(attentions) if reason is None else None
            self._note(reason)

    def _note(self, reason: str | None) -> None:
        if reason is not None and reason != self._reason:
            logger.info("context KV is written per layer: %s", reason)
        self._reason = reason


def _refuse(reason: str | None) -> None:
    if reason is not None:
        raise ValueError(f"the stacked context writer cannot be on: {reason}")
