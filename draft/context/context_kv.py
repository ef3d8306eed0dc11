"""The target's hidden states become the draft's context: keys and values in the pool."""

import logging
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from draft.context.stacked_kv import StackedKV, why_not_stacked
from draft.kernels import ContextKernel
from draft.network.linear import LinearFunction
from draft.network.network import DSparkNetwork
from kv_pool import KVPool

ContextKVMode = Literal["auto", "on", "off"]
ContextKVPath = Literal["stacked", "per_layer", "none"]

logger = logging.getLogger(__name__)


class ContextKVWriter:
    """Writes context keys and values, all layers at once where that can hold.

    stacked    one product, one norm, one rotation and one store for all layers
    per_layer  the same numbers, layer by layer: when the mode is off, or a layer is not plain

    Which of the two is decided anew at every write, from the layers as they are then.
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
        """`kernel` writes in the stacked form what it can; of the rest `linear` is the product.

        Raises ValueError with the reason when mode is `on` and the stacked form cannot hold.
        """
        self._linear = linear
        self._kernel = kernel
        self._network = network
        self._pool = pool
        self._stacked: StackedKV | None = None
        self._reason: str | None = None
        self.set_mode(mode)

    def set_mode(self, mode: ContextKVMode) -> None:
        """Switch between writes.

        Raises ValueError with the reason, changing nothing, when mode is `on` and the stacked
        form cannot hold.
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
        """As of the last write or switch."""
        return "stacked" if self._reason is None else "per_layer"

    @property
    def reason(self) -> str | None:
        """Why the path is per_layer; None when it is stacked."""
        return self._reason

    def write_context_kv(
        self,
        aux_hidden: Float[Tensor, "N A"],
        positions: Int[Tensor, "N"],
        slots: Int[Tensor, "N"],
    ) -> None:
        """Write N committed tokens: their taps, their positions, their slots in the pool.

        Raises ValueError when the mode is `on` and the stacked form no longer holds.
        """
        if slots.shape[0] > 0:
            self._write(aux_hidden, positions, slots, None)

    def write_committed(
        self,
        aux_hidden: Float[Tensor, "B W A"],
        positions: Int[Tensor, "B W"],
        slots: Int[Tensor, "B W"],
        commit_lens: Int[Tensor, "B"],
    ) -> None:
        """Write the first commit_lens[b] rows of each request; shapes never depend on values.

        Every row is projected, and each row past a request's commit_lens is then replaced,
        slot and all, by a copy of the batch's first committed row. So one slot is written
        several times with the same bits, and no other slot is touched: no mask, no dump slot,
        no host sync. commit_lens may be 0 for some requests (a padded batch), not for all. The
        positions of rows past commit_lens must lie in the rotary table; their slots may be
        anything.
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
        """source: which projected row goes to each slot; None when row i goes to slots[i]."""
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
        """Make path and reason true of the layers as they are now."""
        attentions = self._network.attentions
        if self._mode == "off":
            self._reason = "switched off"  # whoever did it knows
        elif self._stacked is not None and self._stacked.holds(attentions):
            self._note(None)
        else:
            reason = why_not_stacked(attentions)
            if self._mode == "on":
                _refuse(reason)
            self._stacked = StackedKV.build(attentions) if reason is None else None
            self._note(reason)

    def _note(self, reason: str | None) -> None:
        if reason is not None and reason != self._reason:
            logger.info("context keys and values go layer by layer: %s", reason)
        self._reason = reason


def _refuse(reason: str | None) -> None:
    if reason is not None:
        raise ValueError(f"the stacked context writer cannot be on: {reason}")
