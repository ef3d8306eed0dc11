"""Computes the context KV of all layers with one matrix product, one norm and one rotation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Float, Int, Num
from torch import Tensor, nn
from torch.nn import functional as F

from draft.network.attention import BlockAttention
from draft.network.int8_linear import Int8Linear, Int8Product, int8_linear, is_matrix
from draft.network.linear import LinearFunction
from draft.network.norm import RMSNorm, normed
from draft.network.rotary import RotaryTable, rotate

_PLAIN_TENSORS = (Tensor, nn.Parameter)  # exactly these: a quantised tensor is a subclass

# Identifies a parameter's memory: address, contiguity, type, dtype, device, shape.
_View = tuple[int, bool, type[Tensor], torch.dtype, torch.device, torch.Size]


def why_not_stacked(attentions: Sequence[BlockAttention]) -> str | None:
    """Return the first reason why these layers cannot be stacked; None if they can."""
    for attention in attentions:
        for name, module in zip(("k_proj", "v_proj"), attention.kv_projections, strict=False):
            obstacle = _linear_obstacle(module)
            if obstacle is not None:
                return f"layers.{attention.layer}.self_attn.{name} {obstacle}"
        if type(attention.k_norm) is not RMSNorm or _has_hooks(attention.k_norm):
            return f"layers.{attention.layer}.self_attn.k_norm is not a plain norm"
    return _difference(attentions)


def _linear_obstacle(module: nn.Module) -> str | None:
    if not is_matrix(module):
        return f"is a {type(module).__name__}, not a plain linear layer"
    for name, tensor in module.named_parameters(recurse=False):
        has_dtype = tensor.dtype.is_floating_point or type(module) is Int8Linear
        if type(tensor) not in _PLAIN_TENSORS or not has_dtype:
            kind = type(tensor).__name__ if type(tensor) not in _PLAIN_TENSORS else tensor.dtype
            return f"has a quantised {name} ({kind})"
    if _has_hooks(module):
        return "has hooks, which a stacked product would skip"
    return None


def _difference(attentions: Sequence[BlockAttention]) -> str | None:
    projections = _projections(attentions)
    if len({p.bias is None for p in projections}) > 1:
        return "only some of the projections have a bias"
    if len({a.k_norm.eps for a in attentions}) > 1:
        return "the epsilon of k_norm differs between layers"
    if len({(r.theta, r.fraction, r.num_positions) for r in (a.rotary for a in attentions)}) > 1:
        return "RoPE parameters differ between layers"
    tensors = [t for a in attentions for t in _parameters(a) if t is not None]
    kinds: Sequence[Sequence[Tensor]] = (
        [p.weight for p in projections],
        [p.bias for p in projections if p.bias is not None],
        [a.k_norm.weight for a in attentions],
    )
    if any(len({(t.dtype, t.device) for t in kind}) > 1 for kind in kinds):
        return "dtype or device differs between layers"
    if len({p.weight.shape for p in projections}) > 1:
        return "the shape of projections differs between layers"
    if len(set(map(id, tensors))) < len(tensors):
        return "two layers share a parameter"
    return None


def _has_hooks(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


@dataclass(frozen=True, slots=True)
class StackedKV:
    """Stores the K and V projections of L layers in one tensor.

        weight   [ K rows of layer 0 | V rows of layer 0 | K rows of layer 1 | ... ]   x E
                   ^ layers.0 k_proj.weight is this view   ^ layers.1 k_proj.weight
        norm     [ k_norm of layer 0 | k_norm of layer 1 | ... ]                       x D

    Where keys and values share a projection, there are K rows only. Rows of int8 have scales.

    The layers' parameters are views into these tensors. Nothing is stored twice, and an in-place
    change of a parameter (weight.data += d, copy_, load_state_dict) changes the stacked tensor
    too. `is_current` detects a replaced tensor or module.
    """

    weight: Num[Tensor, "L2HD E"]
    scale: Float[Tensor, "L2HD"] | None  # of int8 rows; None: the rows are floats
    bias: Float[Tensor, "L2HD"] | None
    norm: Float[Tensor, "L 1 D"]
    eps: float
    shares_kv: bool  # no V rows: the values are the keys before norm and rotation
    norms_values: bool  # per head, without a weight
    rotary: RotaryTable
    int8_product: Int8Product | None  # None where there is no scale
    views: tuple[tuple[_View | None, ...], ...]  # by layer

    @classmethod
    def build(cls, attentions: Sequence[BlockAttention]) -> "StackedKV":
        """Move the parameters of stackable layers (see why_not_stacked) into one tensor."""
        # Inference tensors could not be changed in place outside of inference mode.
        with torch.inference_mode(False), torch.no_grad():
            projections = _projections(attentions)
            weight = gather_rows(projections, "weight")
            int8 = projections[0] if isinstance(projections[0], Int8Linear) else None
            scale = gather_rows(projections, "scale") if int8 is not None else None
            bias = gather_rows(projections, "bias") if projections[0].bias is not None else None
            norm = gather_rows([a.k_norm for a in attentions], "weight")
        first = attentions[0]
        return cls(
            weight=weight,
            scale=scale,
            bias=bias,
            norm=norm.view(len(attentions), 1, -1),
            eps=first.k_norm.eps,
            shares_kv=first.v_proj is None,
            norms_values=first.norms_values,
            rotary=first.rotary,
            int8_product=int8.product if int8 is not None else None,
            views=tuple(_views(attention) for attention in attentions),
        )

    def is_current(self, attentions: Sequence[BlockAttention]) -> bool:
        """Check that every layer's parameters are still the views that `build` made.

        Runs at every write while a GPU waits. Reading `_modules` and `_parameters` directly
        takes a fraction of the time of attribute access.
        """
        return all(map(self._is_current, attentions, self.views))

    def _is_current(self, attention: BlockAttention, views: tuple[_View | None, ...]) -> bool:
        modules = _modules(attention)
        k_norm = modules["k_norm"]
        projections = [modules[name] for name in ("k_proj", "v_proj") if name in modules]
        return (
            all(map(is_matrix, projections))
            and type(k_norm) is RMSNorm
            and k_norm.eps == self.eps
            and modules["rotary"] is self.rotary
            and not any(map(_has_hooks, (*projections, k_norm)))
            and _views(attention) == views
        )

    def project(
        self,
        context: Float[Tensor, "N E"],
        positions: Int[Tensor, "N"],
        *,
        linear: LinearFunction = F.linear,
    ) -> tuple[Float[Tensor, "L N H D"], Float[Tensor, "L N H D"]]:
        """Compute every layer's keys (normed and rotated) and values.

        Norm and rotation run in float32.
        """
        num_layers, _, head_dim = self.norm.shape
        stacked = self.multiply(context, linear=linear)
        parts = 1 if self.shares_kv else 2
        stacked = stacked.view(context.shape[0], num_layers, parts, -1, head_dim)
        keys, values = stacked[:, :, 0], stacked[:, :, -1]  # (N, L, H, D)
        if self.norms_values:
            values = normed(values, self.eps)
        keys = F.rms_norm(keys.float(), (head_dim,), None, self.eps) * self.norm.float()
        keys = rotate(keys.flatten(1, 2), self.rotary.at(positions)).to(context.dtype)
        return keys.view(values.shape).transpose(0, 1), values.transpose(0, 1)

    def multiply(
        self, context: Float[Tensor, "N E"], *, linear: LinearFunction
    ) -> Float[Tensor, "N L2HD"]:
        """Compute all projections' rows before norm and rotation; linear: of float rows."""
        if self.scale is None or self.int8_product is None:
            return linear(context, self.weight, self.bias)
        return int8_linear(context, self.weight, self.scale, self.bias, self.int8_product)


def gather_rows(owners: Sequence[nn.Module], name: str) -> Tensor:
    """Concatenate the owners' parameters; each parameter becomes a view of its rows."""
    parameters = [cast(nn.Parameter, getattr(owner, name)) for owner in owners]
    storage = torch.cat([p.detach() for p in parameters])
    rows = torch.split(storage, [p.shape[0] for p in parameters])
    for owner, parameter, row in zip(owners, parameters, rows, strict=True):
        if parameter.is_inference():  # its data cannot be replaced by a normal tensor
            setattr(owner, name, nn.Parameter(row, requires_grad=False))
        else:
            parameter.data = row
    return storage


def _projections(attentions: Sequence[BlockAttention]) -> list[nn.Linear | Int8Linear]:
    """List K and V projections of every layer, in the order of the stacked rows."""
    return [cast(nn.Linear | Int8Linear, p) for a in attentions for p in a.kv_projections]


def _modules(attention: BlockAttention) -> dict[str, nn.Module]:
    return cast(dict[str, nn.Module], attention._modules)


def _parameters(attention: BlockAttention) -> tuple[Tensor | None, ...]:
    modules = _modules(attention)
    found = [
        modules[name]._parameters for name in ("k_proj", "v_proj", "k_norm") if name in modules
    ]
    others = [p.get(name) for p in found[:-1] for name in ("scale", "bias")]
    return *(p.get("weight") for p in found), *others


def _views(attention: BlockAttention) -> tuple[_View | None, ...]:
    return tuple(map(_view, _parameters(attention)))


def _view(tensor: Tensor | None) -> _View | None:
    if tensor is None:
        return None
    place = tensor.data_ptr(), tensor.is_contiguous()
    return (*place, type(tensor), tensor.dtype, tensor.device, tensor.shape)
