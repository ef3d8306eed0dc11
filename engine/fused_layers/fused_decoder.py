"""Runs a target's pass in eight kernels a layer, besides attention's own.

    add_and_norm, QKV product, rotate_and_store, attention, O product,
    add_and_norm, gate and up product, activate, down product

transformers' layers launch 27 and attention. The layers' own parameters are read; those that are
multiplied together become views of one storage.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from draft.context.stacked_kv import gather_rows
from engine.cpu_kernels.compiling import CpuKernelsUnavailable
from engine.cpu_kernels.target_layers import (
    LayerDescription,
    Matrix,
    TargetDescription,
    describe_layers,
    rotary_table,
)
from engine.fused_layers.layer_kernels import activate, add_and_norm, rotate_and_store
from engine.runner.batch import ScheduleBatch
from kv_pool import AttentionBackend, AttentionOptions, KVPool

_MERGED = {
    "self_attn": ("q_proj", "k_proj", "v_proj"),
    "mlp": ("gate_proj", "up_proj"),
}


class FusedLayersUnavailable(Exception):
    """The kernels cannot run this target; the message is the reason."""


@dataclass(frozen=True, slots=True)
class _Layer:
    qkv: Matrix
    o: Matrix
    gate_up: Matrix
    down: Matrix
    norms: dict[str, Tensor]
    head_norms: Tensor | None  # [2, D]
    rotary: Tensor | None  # [2, P, R]
    options: AttentionOptions


class FusedLayers:
    """A target's layers, prepared once for any number of decoders."""

    def __init__(self, model: nn.Module, *, max_len: int) -> None:
        """Describe the model, and merge its projections in memory.

        Raises FusedLayersUnavailable, before any change, for a model without kernels.
        """
        try:
            described = describe_layers(model)
            cosines, sines = rotary_table(described, max_len)
        except CpuKernelsUnavailable as error:
            raise FusedLayersUnavailable(str(error)) from error
        if any(layer.norms_rows for layer in described.layers):
            raise FusedLayersUnavailable("it norms all heads of a row together")
        if _is_int8(described):
            raise FusedLayersUnavailable("its matrices are int8")
        merge_projections(model)
        self.described = describe_layers(model)
        rotary = torch.stack([cosines, sines], dim=1)  # [kinds, 2, P, R]
        self.head = _on_device(self.described.head)
        self.layers = [self._layer(layer, rotary) for layer in self.described.layers]

    def _layer(self, layer: LayerDescription, rotary: Tensor) -> _Layer:
        matrices, norms = layer.matrices, layer.norms
        heads = [norms[name] for name in ("q_norm", "k_norm") if name in norms]
        return _Layer(
            qkv=_joined([matrices[name] for name in "qkv"]),
            o=_on_device(matrices["o"]),
            gate_up=_joined([matrices["gate"], matrices["up"]]),
            down=_on_device(matrices["down"]),
            norms=norms,
            head_norms=torch.stack(heads) if heads else None,
            rotary=rotary[layer.rotation] if layer.rotation >= 0 else None,
            options=AttentionOptions(
                scale=self.described.scale, window=layer.window if layer.window else None
            ),
        )


class FusedDecoder:
    """A PackedDecoder over one pool and attention; a captured pass has fixed shapes."""

    max_rows = sys.maxsize

    def __init__(
        self,
        layers: FusedLayers,
        *,
        pool: KVPool,
        attention: AttentionBackend,
        tap_layers: Sequence[int],
    ) -> None:
        self._layers = layers.layers
        self._target = layers.described
        self._head = layers.head
        self._pool = pool
        self._attention = attention
        self._tap_layers = tuple(tap_layers)

    def run(self, batch: ScheduleBatch) -> tuple[Tensor, Tensor]:
        """See PackedDecoder.run. Logits and taps have the model's dtype."""
        target = self._target
        plan = self._attention.plan(
            query_lens=batch.query_lens,
            kv_lens=batch.kv_lens,
            page_tables=batch.page_tables,
            causal=True,
        )
        x = F.embedding(batch.token_ids, target.embedding)
        if target.embedding_scale != 1.0:
            x = x * target.embedding_scale
        taps = x.new_empty(len(x), len(self._tap_layers) * target.hidden)
        branch: Tensor | None = None
        norm_of_branch: Tensor | None = None
        for index, layer in enumerate(self._layers):
            norms = layer.norms
            h = self._add(x, branch, norm_of_branch, norms.get("input_norm"))
            self._tap(x, taps, index - 1)
            queries = rotate_and_store(
                _product(h, layer.qkv),
                batch.positions,
                batch.slot_mapping,
                norms=layer.head_norms,
                rotary=layer.rotary,
                eps=target.eps,
                keys=self._pool.target_keys(index),
                values=self._pool.target_values(index),
                num_heads=target.num_heads,
            )
            attended = plan.attend(
                queries,
                self._pool.target_keys(index),
                self._pool.target_values(index),
                layer.options,
            )
            branch = _product(attended.flatten(1), layer.o)
            h = self._add(x, branch, norms.get("attended_norm"), norms.get("inner_norm"))
            inner = activate(_product(h, layer.gate_up), is_gelu=target.activation == 1)
            branch, norm_of_branch = _product(inner, layer.down), norms.get("fed_norm")
        h = self._add(x, branch, norm_of_branch, target.final_norm)
        self._tap(x, taps, len(self._layers) - 1)
        return _product(h[batch.logit_rows], self._head), taps

    def _add(
        self, x: Tensor, branch: Tensor | None, branch_norm: Tensor | None, norm: Tensor | None
    ) -> Tensor:
        return add_and_norm(x, branch, branch_norm=branch_norm, norm=norm, eps=self._target.eps)

    def _tap(self, x: Tensor, taps: Tensor, index: int) -> None:
        """Keep x as the output of layer `index`; -1: of the embedding."""
        width = self._target.hidden
        for i, layer in enumerate(self._tap_layers):
            if layer == index:
                taps[:, i * width : (i + 1) * width] = x


def merge_projections(model: nn.Module) -> None:
    """Make weights that are multiplied by the same rows views of one storage, layer by layer.

    Modules and parameters stay the model's own, so nothing is stored twice.
    """
    with torch.inference_mode(False), torch.no_grad():
        for layer in model.get_decoder().layers:  # type: ignore[operator]
            for owner_name, names in _MERGED.items():
                owner = getattr(layer, owner_name)
                owners = [getattr(owner, name) for name in names if hasattr(owner, name)]
                if owners and not _are_adjacent([each.weight for each in owners]):
                    gather_rows(owners, "weight")


def _on_device(matrix: Matrix) -> Matrix:
    """Store a matrix's scale where its weight is, in its dtype."""
    return matrix if matrix.scale is None else replace(matrix, scale=matrix.scale.to(matrix.weight))


def _product(x: Tensor, matrix: Matrix) -> Tensor:
    y = F.linear(x, matrix.weight, None if matrix.scale is not None else matrix.bias)
    if matrix.scale is None:
        return y
    y = y * matrix.scale
    return y if matrix.bias is None else y + matrix.bias


def _joined(parts: Sequence[Matrix]) -> Matrix:
    """Join rows that are adjacent in memory, without a copy of the weights."""
    weights = [part.weight for part in parts]
    assert _are_adjacent(weights), "merge_projections has not run"
    rows = sum(map(len, weights))
    weight = weights[0].as_strided((rows, weights[0].shape[1]), weights[0].stride())
    biases = [part.bias for part in parts if part.bias is not None]
    if biases and len(biases) < len(parts):
        raise FusedLayersUnavailable("only some of its projections have a bias")
    return Matrix(weight, None, torch.cat(biases) if biases else None)


def _are_adjacent(weights: Sequence[Tensor]) -> bool:
    """Whether each weight's rows follow those of the weight before it in one storage."""
    first = weights[0]
    place = first.data_ptr()
    for weight in weights:
        same = weight.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        if not same or not weight.is_contiguous() or weight.data_ptr() != place:
            return False
        place += weight.nbytes
    return True


def _is_int8(described: TargetDescription) -> bool:
    return described.layers[0].matrices["q"].weight.dtype == torch.int8
