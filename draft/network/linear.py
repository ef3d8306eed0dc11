"""Replaces the network's linear layers: packed, quantised or other matrix products."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.nn import functional as F

if TYPE_CHECKING:
    from draft.network.network import DSparkNetwork

# (x [..., K], weight [N, K], bias [N] or None) -> [..., N], as F.linear computes it.
LinearFunction = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def widening_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute F.linear with the weight cast to the dtype of x."""
    return F.linear(x, weight.to(x.dtype), bias)


def replace_linears(
    network: "DSparkNetwork", replace: Callable[[str, nn.Linear], nn.Module]
) -> None:
    """Replace each linear layer by `replace(name, layer)`, except the confidence head's.

    The returned module maps [..., in] to [..., out] in the dtype of its input; `replace` may
    return its argument. A replaced k_proj or v_proj makes the context writer write per layer.
    """
    for parent_name, parent in list(network.named_modules()):
        if parent is network.confidence_head:
            continue
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear):
                full_name = f"{parent_name}.{name}" if parent_name else name
                setattr(parent, name, replace(full_name, child))
