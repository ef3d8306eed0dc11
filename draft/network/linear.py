"""The seam for faster linear layers."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.nn import functional as F

if TYPE_CHECKING:
    from draft.network.network import DSparkNetwork

# (x [..., K], weight [N, K], bias [N] or None) -> [..., N]: F.linear or what stands in for it.
LinearFunction = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def widening_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """F.linear for a weight that may be narrower than x: widened first, which loses nothing."""
    return F.linear(x, weight.to(x.dtype), bias)


def replace_linears(
    network: "DSparkNetwork", replace: Callable[[str, nn.Linear], nn.Module]
) -> None:
    """Put another module in the place of each matrix product, chosen by name and layer.

    `replace` may return its argument to leave a layer alone. What it returns maps
    [..., in] to [..., out] in the dtype of its input. The confidence head's single row is not
    offered. A replaced k_proj or v_proj makes the context writer go layer by layer.
    """
    for parent_name, parent in list(network.named_modules()):
        if parent is network.confidence_head:
            continue
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear):
                full_name = f"{parent_name}.{name}" if parent_name else name
                setattr(parent, name, replace(full_name, child))
