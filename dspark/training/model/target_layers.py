"""Maps the last layers of a target to the names and forms of a draft's weights."""

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from draft import DSparkConfig
from dspark.training.model.initialising import TargetWeights
from engine.loading.target import LoadedTarget

# Names of modules of decoder layers, by the draft's name; the first that a layer has is taken.
_BEFORE_ATTENTION = (
    "input_layernorm",
    "attention_layernorm",
    "self_attn_layer_norm",
    "attention_norm",
    "ln_1",
    "ln1",
)
_BEFORE_FEED_FORWARD = (
    "pre_feedforward_layernorm",
    "post_attention_layernorm",
    "feedforward_layernorm",
    "final_layer_norm",
    "ffn_norm",
    "ln_2",
    "ln2",
)
_OUTPUT_NORMS = ("post_attention_layernorm", "post_feedforward_layernorm")
_FINAL_NORMS = ("norm", "ln_f", "final_layernorm", "final_layer_norm", "layer_norm")
_ATTENTIONS = ("self_attn", "attention", "attn", "self_attention")
_FEED_FORWARDS = ("mlp", "feed_forward")
_OUTPUTS = ("o_proj", "out_proj", "c_proj", "dense")
_HEAD_NORMS = {"q_norm": ("q_norm", "query_layernorm"), "k_norm": ("k_norm", "key_layernorm")}


def full_layers(config: Any) -> list[int]:
    """Return the layers with full attention; every layer if there are none."""
    kinds = getattr(config, "layer_types", None) or []
    full = [index for index, kind in enumerate(kinds) if kind == "full_attention"]
    return full or list(range(config.num_hidden_layers))


def last_layers(target: LoadedTarget, draft: DSparkConfig) -> TargetWeights:
    """Return weights of the target's last layers, one for each draft layer.

    If kinds of layers differ, only those with full attention have the draft's shapes. What has no
    counterpart in a draft is left out, as a feed-forward network without a gate.
    """
    config: Any = target.model.config.get_text_config()  # type: ignore[union-attr,operator]
    full, count = full_layers(config), draft.num_layers
    chosen = full if len(full) >= count else range(target.num_layers)
    layers = [target.parts.layers[index] for index in list(chosen)[-count:]]
    final = _first(target.model.get_decoder(), _FINAL_NORMS)  # type: ignore[operator]
    return TargetWeights(
        layers=[dict(_weights(layer, config, draft)) for layer in layers],
        final_norm=_factors(final),
    )


def _weights(
    layer: nn.Module, config: Any, draft: DSparkConfig
) -> Iterator[tuple[str, Float[Tensor, "..."]]]:
    yield from _norms(layer, norms_outputs=draft.variant.norms_outputs)
    attention = _first(layer, _ATTENTIONS)
    if attention is not None:
        for name, tensor in _attention(attention, config, draft):
            yield f"self_attn.{name}.weight", tensor
    network = _first(layer, _FEED_FORWARDS)
    if network is not None:
        for name, tensor in _feed_forward(network):
            yield f"mlp.{name}.weight", tensor
    scalar = getattr(layer, "layer_scalar", None)
    if isinstance(scalar, Tensor):
        yield "layer_scalar", scalar.detach()


def _norms(layer: nn.Module, *, norms_outputs: bool) -> Iterator[tuple[str, Tensor]]:
    """Yield the norms before attention and feed-forward network; also after, if the draft has them.

    A target that norms only outputs has none before; one with a single norm before both uses it
    twice.
    """
    before = _first(layer, _BEFORE_ATTENTION)
    if before is None:
        return
    later = _first(layer, _BEFORE_FEED_FORWARD)
    found: dict[str, nn.Module | Tensor] = {
        "input_layernorm": before,
        "post_attention_layernorm": before if later is None else later,
    }
    if norms_outputs and hasattr(layer, "pre_feedforward_layernorm"):
        found["pre_feedforward_layernorm"] = layer.pre_feedforward_layernorm
        found |= {name: getattr(layer, name) for name in _OUTPUT_NORMS}
    for name, module in found.items():
        factors = _factors(module)
        if factors is not None:
            yield f"{name}.weight", factors


def _attention(
    attention: nn.Module, config: Any, draft: DSparkConfig
) -> Iterator[tuple[str, Tensor]]:
    heads, kv_heads, dim = draft.num_heads, draft.num_kv_heads, draft.head_dim
    for name, tensor in _query_key_value(attention, config, (heads, kv_heads, dim)).items():
        is_rotated = name in ("q_proj", "k_proj") and len(tensor) % dim == 0
        is_reordered = is_rotated and _rotates_neighbours(attention)
        yield name, _halves_first(tensor, dim) if is_reordered else tensor
    output = _matrix(_first(attention, _OUTPUTS))
    if output is not None:
        yield "o_proj", output
    scale = draft.variant.attention_scale or dim**-0.5
    for name, names in _HEAD_NORMS.items():
        factors = _factors(_first(attention, names))
        if factors is not None:
            scaling = getattr(attention, "scaling", None) or scale
            yield name, factors * (scaling / scale) if name == "q_norm" else factors


def _query_key_value(
    attention: nn.Module, config: Any, sizes: tuple[int, int, int]
) -> dict[str, Tensor]:
    """Return the projections, apart; none for a layout that is not known."""
    names = ("q_proj", "k_proj", "v_proj")
    apart = {name: _matrix(getattr(attention, name, None)) for name in names}
    if any(tensor is not None for tensor in apart.values()):
        return {name: tensor for name, tensor in apart.items() if tensor is not None}
    heads, kv_heads, dim = sizes
    joined = _matrix(_first(attention, ("qkv_proj", "c_attn", "query_key_value")))
    if joined is None or len(joined) != (heads + 2 * kv_heads) * dim:
        return {}
    if config.model_type == "codegen" or getattr(config, "multi_query", True) is False:
        return {}  # interleaved in other ways
    if hasattr(attention, "query_key_value"):
        by_head = joined.view(heads, 3, dim, -1)
        parts: Sequence[Tensor] = [part.reshape(heads * dim, -1) for part in by_head.unbind(1)]
    else:
        parts = torch.split(joined, [heads * dim, kv_heads * dim, kv_heads * dim])
    return dict(zip(names, parts, strict=True))


def _feed_forward(network: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the matrices of a gated network; of one without a gate none has a counterpart."""
    gate = _matrix(getattr(network, "gate_proj", None))
    up = _matrix(getattr(network, "up_proj", None))
    joined = _matrix(getattr(network, "gate_up_proj", None))
    if joined is not None:
        gate, up = joined.chunk(2)
    down = _matrix(getattr(network, "down_proj", None))
    if gate is not None and up is not None and down is not None:
        yield from (("gate_proj", gate), ("up_proj", up), ("down_proj", down))


def _rotates_neighbours(attention: nn.Module) -> bool:
    """Return whether RoPE pairs neighbouring components; a draft pairs the halves of a head."""
    module = sys.modules[type(attention).__module__]
    rotate = getattr(module, "rotate_half", None) or getattr(module, "rotate_every_two", None)
    if rotate is None:
        return False
    rotated: Tensor = rotate(torch.arange(4.0).view(1, 1, 1, 4))
    return bool(rotated.flatten()[1] == 0)  # (-1, 0, -3, 2), against (-2, -3, 0, 1)


def _halves_first(rows: Float[Tensor, "R E"], dim: int) -> Float[Tensor, "R E"]:
    """Reorder the rows of each head: even components, then odd ones."""
    by_head = rows.view(-1, dim, rows.shape[1])
    return torch.cat([by_head[:, 0::2], by_head[:, 1::2]], dim=1).reshape(rows.shape)


def _first(parent: nn.Module, names: Sequence[str]) -> nn.Module | None:
    found = (getattr(parent, name, None) for name in names)
    return next((module for module in found if isinstance(module, nn.Module)), None)


def _matrix(module: nn.Module | None) -> Float[Tensor, "O I"] | None:
    """Return the matrix of a linear module; GPT-2's Conv1D has it transposed."""
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.dim() != 2:
        return None
    return weight.detach().T if type(module).__name__ == "Conv1D" else weight.detach()


@torch.no_grad()
def _factors(norm: object) -> Float[Tensor, "E"] | None:
    """Return the factors of a norm, as it applies them: some classes multiply by 1 + weight.

    Alternating signs have mean 0 and root mean square 1, so that LayerNorm and RMSNorm alike
    multiply them by the factors; the difference of two signs leaves a bias out.
    """
    weight = getattr(norm, "weight", None)
    if not isinstance(norm, nn.Module) or not isinstance(weight, Tensor) or weight.dim() != 1:
        return None
    signs = torch.ones_like(weight)
    signs[1::2] = -1
    factors: Tensor = signs * (norm(signs) - norm(-signs)) / 2
    return factors.detach()
