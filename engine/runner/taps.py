"""Captures the outputs of some target layers (taps) during one forward pass."""

from collections.abc import Sequence
from typing import Any, Self

import torch
from jaxtyping import Float
from torch import Tensor, nn


class Taps:
    """Forward hooks on the decoder layers whose outputs the draft model reads.

    Layer ids are 0-based and name layer *outputs* (the residual stream, before any final
    norm); -1 is the embedding output. In transformers' terms id i is hidden_states[i + 1].
    """

    def __init__(
        self, *, embedding: nn.Module, layers: nn.ModuleList, layer_ids: Sequence[int]
    ) -> None:
        self._layer_ids = tuple(layer_ids)
        self._outputs: dict[int, Tensor] = {}
        self._hooks = [
            (embedding if layer_id == -1 else layers[layer_id]).register_forward_hook(
                self._keep(layer_id)
            )
            for layer_id in self._layer_ids
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Remove the hooks from the model."""
        for hook in self._hooks:
            hook.remove()

    def take(self, num_rows: int) -> Float[Tensor, "T A"]:
        """Return the tapped outputs of the last pass, of num_rows rows, concatenated in list order.

        Without taps the result has width 0.
        """
        if not self._layer_ids:
            return torch.empty(num_rows, 0)
        taken = [self._outputs.pop(layer_id) for layer_id in self._layer_ids]
        return torch.cat(taken, dim=-1)[0]

    def _keep(self, layer_id: int) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            self._outputs[layer_id] = output[0] if isinstance(output, tuple) else output

        return hook
