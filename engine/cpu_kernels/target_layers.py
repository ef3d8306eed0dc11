"""Describes a target by what its layers compute, and refuses what the kernels cannot compute.

Modules are found by the names that transformers' decoders share. Norms, activations and attention
are observed: each is called with random numbers, and its results show which variant it is.
"""

import copy
import inspect
import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from draft.network.int8_linear import Int8Linear
from engine.cpu_kernels.compiling import CpuKernelsUnavailable
from engine.runner.hf_attention import (
    IMPLEMENTATION,
    UnsupportedAttention,
    attending_with,
    register,
)
from kv_pool import AttentionOptions

_EPSILONS = ("variance_epsilon", "eps")  # the names of a norm's constant
_PLACES = ("input_norm", "attended_norm", "inner_norm", "fed_norm")
_NORMS = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)
T = TypeVar("T")
# The activations that math.h has, by their numbers in decoder_structs.h.
_ACTIVATIONS: tuple[Any, ...] = (F.silu, lambda x: F.gelu(x, approximate="tanh"))


@dataclass(frozen=True, slots=True)
class Matrix:
    """Rows of a linear layer: y = (x weight^T) * scale + bias."""

    weight: Tensor  # [N, K], float or int8
    scale: Tensor | None  # [N] float32; None: 1
    bias: Tensor | None  # [N]

    def times(self, factor: float) -> "Matrix":
        """Multiply the results of the product by a factor."""
        if factor == 1.0:
            return self
        scale = torch.ones(len(self.weight)) if self.scale is None else self.scale
        return Matrix(
            self.weight, scale * factor, None if self.bias is None else self.bias * factor
        )


@dataclass(frozen=True, slots=True)
class LayerDescription:
    """One decoder layer. Matrices and norms have the names of LayerStruct."""

    matrices: dict[str, Matrix]
    norms: dict[str, Tensor]  # factors in float32; the layer has no other norms
    norms_rows: bool  # q_norm and k_norm norm the heads of a row together
    rotation: int  # the index of its rotary table; -1: heads are not rotated
    window: int  # tokens; 0: none


@dataclass(frozen=True, slots=True)
class TargetDescription:
    """A decoder as a whole."""

    layers: tuple[LayerDescription, ...]
    num_heads: int
    num_kv_heads: int
    head_dim: int
    eps: float
    scale: float  # of attention scores
    activation: int
    embedding: Tensor
    embedding_scale: float
    final_norm: Tensor
    head: Matrix
    rotary: nn.Module
    rotary_kinds: tuple[str | None, ...]  # of the rotary tables: the layer types they are for

    @property
    def hidden(self) -> int:
        return self.embedding.shape[1]

    @property
    def inner(self) -> int:
        return len(self.layers[0].matrices["gate"].weight)

    @property
    def vocab(self) -> int:
        return len(self.head.weight)


def why_unsupported(model: nn.Module) -> str | None:
    """Return why decoder.h does not support the model; None if it does."""
    try:
        describe_layers(model)
    except CpuKernelsUnavailable as error:
        return str(error)
    return None


@torch.inference_mode()
def describe_layers(model: nn.Module) -> TargetDescription:
    """Describe a model, int8 or not. Raises CpuKernelsUnavailable for what decoder.h lacks."""
    try:
        return _describe(model)
    except CpuKernelsUnavailable:
        raise
    except Exception as error:  # modules of any kind are called here
        raise CpuKernelsUnavailable(f"it is built in another way: {error}") from error


def rotary_table(target: TargetDescription, max_len: int) -> tuple[Tensor, Tensor]:
    """Compute cosines and sines [kinds, max_len, R] of every position by the model's module.

    Raises CpuKernelsUnavailable where they depend on the length of the text.
    """
    device = target.embedding.device
    tables = [_rotary_rows(target.rotary, kind, max_len, device) for kind in target.rotary_kinds]
    for kind, table in zip(target.rotary_kinds, tables, strict=True):
        short = _rotary_rows(
            target.rotary, kind, 2, device
        )  # long first: a module may keep the factors
        if not all(torch.equal(a[:2], b) for a, b in zip(table, short, strict=True)):
            raise CpuKernelsUnavailable("its rotation depends on the length of the text")
    cosines, sines = zip(*tables, strict=True)
    return torch.stack(cosines), torch.stack(sines)


def _describe(model: nn.Module) -> TargetDescription:
    if not type(model).__module__.startswith("transformers."):
        raise CpuKernelsUnavailable(f"{type(model).__name__} is not a class of transformers")
    config: Any = model.config
    backbone: Any = model.get_decoder()  # type: ignore[operator]
    head: Any = model.get_output_embeddings()  # type: ignore[operator]
    layers = list(backbone.layers)
    for layer in layers:
        _require_parts(layer)
    _require_plain([head])
    if getattr(config, "final_logit_softcapping", None):
        raise CpuKernelsUnavailable("it caps its logits")
    embedding = backbone.embed_tokens
    _require_all_read(model, [embedding.weight, *_parameters(backbone.norm, head, *layers)])
    by_length = "layer_type" in inspect.signature(backbone.rotary_emb.forward).parameters
    kinds = tuple(config.layer_types) if by_length else (None,) * len(layers)
    rotary_kinds = tuple(dict.fromkeys(kinds))
    device = embedding.weight.device
    widths = [_rotary_rows(backbone.rotary_emb, kind, 1, device)[0].shape[-1] for kind in kinds]
    with _observable(model):
        observed = [
            _observe(layer.self_attn, embedding.weight, width)
            for layer, width in zip(layers, widths, strict=True)
        ]
    eps = _same("norms' eps", (_eps(norm) for norm in _norms_of(backbone, layers)))
    shape = _same("heads", (each.shape for each in observed))
    return TargetDescription(
        layers=tuple(
            _layer(layer, each, rotary_kinds.index(kind))
            for layer, each, kind in zip(layers, observed, kinds, strict=True)
        ),
        num_heads=shape[0],
        num_kv_heads=shape[1],
        head_dim=shape[2],
        eps=eps,
        scale=_same("scales of attention", (each.options.scale for each in observed)),
        activation=_same("activations", (_activation(layer.mlp) for layer in layers)),
        embedding=embedding.weight,
        embedding_scale=float(getattr(embedding, "embed_scale", 1.0))
        * getattr(backbone, "embedding_multiplier", 1.0),
        final_norm=_norm_factors(backbone.norm),
        head=_matrix(head).times(1 / getattr(config, "logits_scaling", 1.0)),
        rotary=backbone.rotary_emb,
        rotary_kinds=rotary_kinds,
    )


def _layer(layer: Any, observed: "_Observed", table: int) -> LayerDescription:
    attention = layer.self_attn
    heads, kv_heads, head_dim = observed.shape
    factor = getattr(layer, "residual_multiplier", 1.0)
    norms = {name: _norm_factors(module) for name, module in _norms_by_place(layer).items()}
    out = {"o": _matrix(attention.o_proj), "down": _matrix(layer.mlp.down_proj)}
    for name, norm in (("o", "attended_norm"), ("down", "fed_norm")):
        if norm in norms:
            norms[norm] = norms[norm] * factor
        else:
            out[name] = out[name].times(factor)
    widths = {head_dim, heads * head_dim, kv_heads * head_dim}
    sizes = {len(norms[name]) for name in ("q_norm", "k_norm") if name in norms}
    if not sizes <= widths:
        raise CpuKernelsUnavailable(f"its heads are normed over {sorted(sizes)} numbers")
    qkv = _parts(
        attention,
        ("q_proj", "k_proj", "v_proj"),
        "qkv_proj",
        (heads, kv_heads, kv_heads),
    )
    gate, up = _parts(layer.mlp, ("gate_proj", "up_proj"), "gate_up_proj", (1, 1))
    return LayerDescription(
        matrices={**dict(zip("qkv", qkv, strict=True)), "gate": gate, "up": up, **out},
        norms=norms,
        norms_rows=bool(sizes - {head_dim}),
        rotation=table if observed.rotates else -1,
        window=observed.options.window or 0,
    )


def _norms_by_place(layer: Any) -> dict[str, nn.Module]:
    """Find the norms of a layer by their names in LayerStruct."""
    before, after, inner, fed = _NORMS
    if hasattr(layer, inner):
        names = _NORMS
    elif hasattr(layer, before):
        names = (before, "", after, "")  # `after` attention is before the MLP here
    else:
        names = ("", after, "", fed)
    norms = {
        place: getattr(layer, name) for place, name in zip(_PLACES, names, strict=True) if name
    }
    for name in ("q_norm", "k_norm"):
        norm = getattr(layer.self_attn, name, None)
        if norm is not None:
            norms[name] = norm
    return norms


def _linear_layers(layer: Any) -> list[nn.Module]:
    attention, mlp = layer.self_attn, layer.mlp
    merged = [getattr(attention, "qkv_proj", None), getattr(mlp, "gate_up_proj", None)]
    qkv = [merged[0]] if merged[0] else [attention.q_proj, attention.k_proj, attention.v_proj]
    inner = [merged[1]] if merged[1] else [mlp.gate_proj, mlp.up_proj]
    return [*qkv, attention.o_proj, *inner, mlp.down_proj]


def _require_parts(layer: Any) -> None:
    """Refuse a layer that has other parts than those that the kernels read."""
    linear = _linear_layers(layer)
    _require_plain(linear)
    _require_all_read(layer, _parameters(*linear, *_norms_by_place(layer).values()))
    if any("bias" in name for name, _ in layer.mlp.named_parameters()):
        raise CpuKernelsUnavailable("the feed-forward layers have biases")


def _require_plain(linear: Sequence[nn.Module | None]) -> None:
    if None in linear:
        raise CpuKernelsUnavailable("a projection is missing in its layers")
    others = {type(module) for module in linear} - {nn.Linear, Int8Linear}
    if others:
        names = ", ".join(sorted(kind.__name__ for kind in others))
        raise CpuKernelsUnavailable(f"its layers are {names}, not plain ones")


def _require_all_read(module: nn.Module, read: Iterable[Tensor]) -> None:
    known = {id(parameter) for parameter in read}
    other = [name for name, p in module.named_parameters() if id(p) not in known]
    if other:
        raise CpuKernelsUnavailable(
            f"the kernels do not read {other[0]} of {type(module).__name__}"
        )


def _parameters(*modules: nn.Module) -> Iterable[Tensor]:
    return (parameter for module in modules for parameter in module.parameters())


def _norms_of(backbone: Any, layers: list[Any]) -> list[nn.Module]:
    return [backbone.norm, *(norm for each in layers for norm in _norms_by_place(each).values())]


def _matrix(module: Any, rows: slice = slice(None)) -> Matrix:
    scale = module.scale[rows] if isinstance(module, Int8Linear) else None
    return Matrix(module.weight[rows], scale, None if module.bias is None else module.bias[rows])


def _parts(
    owner: Any, names: tuple[str, ...], merged_name: str, proportions: tuple[int, ...]
) -> list[Matrix]:
    """Return separate matrices, or the rows of a merged one."""
    merged = getattr(owner, merged_name, None)
    if merged is None:
        return [_matrix(getattr(owner, name)) for name in names]
    unit = len(merged.weight) // sum(proportions)
    stops = [unit * sum(proportions[:i]) for i in range(len(proportions) + 1)]
    return [_matrix(merged, slice(*pair)) for pair in itertools.pairwise(stops)]


def _eps(norm: nn.Module) -> float:
    found = next((getattr(norm, name) for name in _EPSILONS if hasattr(norm, name)), None)
    if not isinstance(found, float):
        raise CpuKernelsUnavailable(f"{type(norm).__name__} has no eps")
    return found


def _norm_factors(norm: nn.Module) -> Tensor:
    """Return what an RMS norm multiplies by: its weight, or 1 + its weight."""
    plain = copy.deepcopy(norm).float()
    weight = plain.get_parameter("weight").detach()
    rows = torch.randn(4, len(weight), generator=torch.Generator().manual_seed(0)).to(weight.device)
    found = plain(rows)
    for factors in (weight, 1 + weight):
        expected = F.rms_norm(rows, factors.shape, factors, _eps(norm))
        if torch.allclose(found, expected, rtol=1e-4, atol=1e-4):
            return factors
    raise CpuKernelsUnavailable(f"{type(norm).__name__} is no RMS norm")


def _activation(mlp: Any) -> int:
    function: Any = mlp.act_fn if hasattr(mlp, "act_fn") else mlp.activation_fn
    x = torch.linspace(-8, 8, 129)
    for number, ours in enumerate(_ACTIVATIONS):
        if torch.allclose(function(x), ours(x), atol=1e-6):
            return number
    raise CpuKernelsUnavailable(f"its activation is {type(function).__name__}")


def _rotary_rows(
    rotary: Any, kind: str | None, count: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    options = {} if kind is None else {"layer_type": kind}
    positions = torch.arange(count, device=device)[None]
    cosine, sine = rotary(torch.empty(1, count, 1, device=device), positions, **options)
    return cosine[0].contiguous(), sine[0].contiguous()


@dataclass(frozen=True, slots=True)
class _Call:
    """What a layer passes to attention."""

    query: Tensor  # [T, H, D]
    keys: Tensor  # [T, Hkv, D]
    values: Tensor
    options: AttentionOptions


class _Recorder:
    """A LayerAttention that keeps the calls and returns zeros."""

    def __init__(self) -> None:
        self.calls: list[_Call] = []

    def attend(
        self, layer: int, query: Tensor, keys: Tensor, values: Tensor, options: AttentionOptions
    ) -> Tensor:
        self.calls.append(_Call(query, keys, values, options))
        return query.new_zeros(*query.shape[:2], values.shape[2])


@dataclass(frozen=True, slots=True)
class _Observed:
    num_heads: int
    num_kv_heads: int
    head_dim: int
    options: AttentionOptions
    rotates: bool

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.num_heads, self.num_kv_heads, self.head_dim


@contextmanager
def _observable(model: nn.Module) -> Iterator[None]:
    """Let the model's layers call the running LayerAttention within the block."""
    before = model.config._attn_implementation  # type: ignore[union-attr]
    register()
    model.set_attn_implementation(IMPLEMENTATION)  # type: ignore[operator]
    try:
        yield
    finally:
        model.set_attn_implementation(before)  # type: ignore[operator]


def _observe(attention: nn.Module, embedding: Tensor, rotary_dim: int) -> _Observed:
    """Call a layer's attention without and with a rotation, and see what it passes on."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 2, embedding.shape[1], generator=generator).to(embedding)
    cosine, sine = torch.randn(2, 1, 2, rotary_dim, generator=generator).to(embedding)
    recorder = _Recorder()
    try:
        with attending_with(recorder):
            for angles in ((torch.ones_like(cosine), torch.zeros_like(sine)), (cosine, sine)):
                attention(hidden_states=x, position_embeddings=angles, attention_mask=None)
    except (UnsupportedAttention, TypeError) as error:
        raise CpuKernelsUnavailable(f"its attention differs: {error}") from error
    plain, turned = recorder.calls
    if plain.options.softcap is not None or plain.options.sinks is not None:
        raise CpuKernelsUnavailable("its attention has a soft cap or sinks")
    if plain.values.shape != plain.keys.shape:
        raise CpuKernelsUnavailable("keys and values have different widths")
    rotates = not torch.equal(plain.query, turned.query)
    if rotates:
        cosine, sine = cosine[0, :, None].float(), sine[0, :, None].float()
        for before, after in ((plain.query, turned.query), (plain.keys, turned.keys)):
            expected = _rotate(before.float(), cosine, sine)
            tolerance = 8 * torch.finfo(embedding.dtype).eps * float(expected.abs().max())
            if not torch.allclose(after.float(), expected, atol=tolerance):
                raise CpuKernelsUnavailable("it rotates heads in another way than by halves")
    return _Observed(
        num_heads=plain.query.shape[1],
        num_kv_heads=plain.keys.shape[1],
        head_dim=plain.query.shape[2],
        options=plain.options,
        rotates=rotates,
    )


def _rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate the first numbers of each head, as decoder.h does."""
    turned, rest = x[..., : cosine.shape[-1]], x[..., cosine.shape[-1] :]
    first, second = turned.chunk(2, -1)
    return torch.cat([turned * cosine + torch.cat([-second, first], -1) * sine, rest], -1)


def _same(name: str, values: Iterable[T]) -> T:
    found = set(values)
    if len(found) != 1:
        raise CpuKernelsUnavailable(f"its layers have different {name}")
    return found.pop()
