"""Runs a decoder pass in one kernel call, over the model's parameters and the pool."""

import ctypes
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engine.cpu_kernels.compiling import CpuKernelsUnavailable, KernelLibrary
from engine.cpu_kernels.page_tables import PageTablePointers
from engine.cpu_kernels.structs import ROW_BLOCK, DecoderStruct, LayerStruct, PassStruct
from engine.cpu_kernels.target_layers import (
    LayerDescription,
    Matrix,
    TargetDescription,
    describe_layers,
    rotary_table,
)
from engine.cpu_kernels.weights import is_readable
from engine.runner.batch import ScheduleBatch
from kv_pool import KVPool

_MAX_GROUP = 32
_FEW_ROWS = 8  # every thread norms up to so many rows itself
_KEY_BLOCK = 64  # keys of a block; long contexts are split into these
_SPLIT_ROWS = 16  # rows of the longest context for whose states there is room
_STATES_FLOATS = 4 << 20  # the most floats of all states


class CpuDecoder:
    """Runs passes of up to max_rows rows; results are in buffers that the next pass reuses.

    Matrices, keys and values are float32 or bfloat16, as in the model; matrices may be int8. All
    else is float32. Where the CPU multiplies pairs of bfloat16, rows are rounded to it before
    products with bfloat16 matrices. A row's result is the same to the last bit alone and in any
    batch.
    """

    def __init__(
        self,
        *,
        kernels: KernelLibrary,
        model: nn.Module,
        pool: KVPool,
        tap_layers: Sequence[int],
        max_len: int,
        max_rows: int,
        num_threads: int,
    ) -> None:
        """Bind the model's parameters and the pool.

        Raises CpuKernelsUnavailable with the reason when the kernels do not support the model.
        """
        target = require_supported(model, kernels)
        self.max_rows = max_rows
        self._pool = pool
        self._num_threads = num_threads
        self._target = target
        self._dtype = target.embedding.dtype
        self._matrices_dtype = target.layers[0].matrices["q"].weight.dtype
        self._decode = kernels.decode.get((self._matrices_dtype, self._dtype))
        if self._decode is None:
            raise CpuKernelsUnavailable(
                f"there is no code for {self._matrices_dtype} in {self._dtype}"
            )
        self._embedding = self._readable(target.embedding, self._dtype)
        self._kept: list[Tensor] = []  # the structs point to them
        self._cosines, self._sines = rotary_table(target, max_len)
        self._layers = (LayerStruct * len(target.layers))(
            *(self._layer(layer, index) for index, layer in enumerate(target.layers))
        )
        self._tap_layers = torch.tensor(list(tap_layers) or [-2], dtype=torch.int64)
        self._decoder = DecoderStruct(
            num_layers=len(target.layers),
            hidden=target.hidden,
            num_heads=target.num_heads,
            num_kv_heads=target.num_kv_heads,
            head_dim=target.head_dim,
            inner=target.inner,
            vocab=target.vocab,
            num_taps=len(tap_layers),
            rotary_dim=self._cosines.shape[-1],
            gate=target.activation,
            eps=target.eps,
            scale=target.scale,
            layers=ctypes.addressof(self._layers),
            final_norm=self._keep_vector(target.final_norm),
            tap_layers=self._tap_layers.data_ptr(),
            **self._matrix("lm_head", target.head),
        )
        self._tap_width = len(tap_layers) * target.hidden
        self._states = _states(target, max_len, kernels.state_size(target.head_dim))
        self._scratch: dict[str, Tensor] = {}
        self._room = 0  # rows that fit into the scratch
        self._logits = torch.empty(0, target.vocab)

    def run(self, batch: ScheduleBatch) -> tuple[Tensor, Tensor]:
        """Return logits [R, V] of batch.logit_rows and taps [T, A], valid until the next run.

        Logits are float32; taps have the model's dtype.
        """
        num_rows, num_logit_rows = len(batch.token_ids), len(batch.logit_rows)
        assert num_rows <= self.max_rows, (num_rows, self.max_rows)
        self._make_room(num_rows, num_logit_rows)
        x = F.embedding(batch.token_ids, self._embedding).float()
        if self._target.embedding_scale != 1.0:
            x *= self._target.embedding_scale
        cosine = self._cosines.index_select(1, batch.positions)
        sine = self._sines.index_select(1, batch.positions)
        row_starts = np.cumsum([0, *batch.query_lens], dtype=np.int64)
        kv_lens, page_size = np.array(batch.kv_lens, dtype=np.int64), self._pool.page_size
        tables = PageTablePointers(batch.page_tables, kv_lens, page_size=page_size)
        call = PassStruct(
            num_rows=num_rows,
            num_sequences=len(batch.query_lens),
            num_logit_rows=num_logit_rows,
            num_threads=self._num_threads,
            num_states=len(self._states),
            page_size=page_size,
            x=x.data_ptr(),
            cosine=cosine.data_ptr(),
            sine=sine.data_ptr(),
            slots=batch.slot_mapping.data_ptr(),
            row_starts=row_starts.ctypes.data,
            kv_lens=kv_lens.ctypes.data,
            page_tables=tables.address,
            logit_rows=batch.logit_rows.data_ptr(),
            rounded_stride=self._scratch["rounded"].stride(0),
            states=self._states.data_ptr(),
            logits=self._logits.data_ptr(),
            **{name: buffer.data_ptr() for name, buffer in self._scratch.items()},
        )
        assert self._decode is not None
        self._decode(ctypes.addressof(self._decoder), ctypes.addressof(call))
        taps = self._scratch["taps"][:num_rows].to(self._dtype)
        return self._logits[:num_logit_rows], taps

    def _make_room(self, num_rows: int, num_logit_rows: int) -> None:
        if num_rows > self._room:
            self._room = min(max(num_rows, 2 * self._room), self.max_rows)
            self._scratch = _scratch(self._target, self._room, self._tap_width, self._num_threads)
        if num_logit_rows > len(self._logits):
            rows = min(max(num_logit_rows, 2 * len(self._logits)), self.max_rows)
            self._logits = torch.empty(rows, self._target.vocab)

    def _layer(self, layer: LayerDescription, index: int) -> LayerStruct:
        keys, values = self._pool.target_keys(index), self._pool.target_values(index)
        matrices = layer.matrices
        return LayerStruct(
            **{name: self._keep_vector(norm) for name, norm in layer.norms.items()},
            **{f"{name}_bias": self._keep_vector(matrices[name].bias) for name in "qkvo"},
            keys=self._keep(keys, self._dtype),
            values=self._keep(values, self._dtype),
            window=layer.window,
            rotation=layer.rotation,
            norms_rows=layer.norms_rows,
            **{
                field: address
                for name, matrix in matrices.items()
                for field, address in self._matrix(name, matrix).items()
            },
        )

    def _matrix(self, name: str, matrix: Matrix) -> dict[str, int | None]:
        """Return the addresses of a product's matrix and of its scales, if it has any."""
        scale = matrix.scale
        return {
            name: self._keep(matrix.weight, self._matrices_dtype),
            f"{name}_scale": None if scale is None else self._keep(scale, torch.float32),
        }

    def _keep(self, tensor: Tensor, dtype: torch.dtype) -> int:
        """Keep a tensor alive as long as this object, and return its address."""
        self._kept.append(self._readable(tensor, dtype))
        return tensor.data_ptr()

    def _keep_vector(self, tensor: Tensor | None) -> int | None:
        """Keep a norm's weights or a bias in float32; return its address, None without one."""
        if tensor is None:
            return None
        self._kept.append(tensor.detach().float().contiguous())
        return self._kept[-1].data_ptr()

    def _readable(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """Detach a tensor. Raises CpuKernelsUnavailable unless kernels can read its memory."""
        if not is_readable(tensor, dtype):
            raise CpuKernelsUnavailable(f"weights are {type(tensor).__name__} of {tensor.dtype}")
        return tensor.detach()


def require_supported(model: nn.Module, kernels: KernelLibrary) -> TargetDescription:
    """Describe the model. Raises CpuKernelsUnavailable where there is no code for it."""
    target = describe_layers(model)
    if not kernels.has_head_dim(target.head_dim):
        raise CpuKernelsUnavailable(f"there is no code for a head_dim of {target.head_dim}")
    if target.num_heads // target.num_kv_heads > _MAX_GROUP:
        raise CpuKernelsUnavailable(f"more than {_MAX_GROUP} query heads share a KV head")
    return target


def _scratch(
    target: TargetDescription, rows: int, tap_width: int, num_threads: int
) -> dict[str, Tensor]:
    kv = target.num_kv_heads * target.head_dim
    heads = target.num_heads * target.head_dim
    has_branch_norms = any({"attended_norm", "fed_norm"} & set(x.norms) for x in target.layers)
    widths = {"q": heads, "k": kv, "v": kv, "attended": heads, "taps": tap_width}
    return {
        **{name: torch.empty(rows, width) for name, width in widths.items()},
        "h": torch.empty(max(rows, _FEW_ROWS * num_threads), target.hidden),
        "inner": torch.empty(2, rows, target.inner),
        "branch": torch.empty(rows, target.hidden if has_branch_norms else 0),
        "rounded": torch.empty(
            num_threads,
            min(rows, ROW_BLOCK) * max(target.hidden, heads, target.inner),
            dtype=torch.bfloat16,
        ),
        "turn": torch.empty(1, dtype=torch.int64),
    }


def _states(target: TargetDescription, max_len: int, state_size: int) -> Tensor:
    """Allocate the states of queries whose context is split among threads."""
    blocks = -(-max_len // _KEY_BLOCK)
    count = min(_SPLIT_ROWS * target.num_heads * blocks, _STATES_FLOATS // state_size)
    return torch.empty(count, state_size)
