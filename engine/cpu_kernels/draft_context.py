"""Writes the draft's context keys and values in one kernel call."""

import ctypes

import torch
from torch import Tensor

from draft import DSparkNetwork, LinearFunction
from draft.context.stacked_kv import StackedKV
from draft.network.int8_linear import Int8Linear, is_matrix
from draft.network.norm import RMSNorm
from engine.cpu_kernels.compiling import KernelLibrary
from engine.cpu_kernels.draft_structs import ContextWriteStruct
from engine.cpu_kernels.weights import has_bias, is_readable
from kv_pool import KVPool


class CpuContextWriter:
    """A ContextKernel for CPUs.

    Up to max_rows tokens are written in one call. With more, `linear` computes both products, and
    the kernel only the norm, the rotation and the store.
    """

    name = "native"

    def __init__(
        self, *, kernels: KernelLibrary, linear: LinearFunction, max_rows: int, num_threads: int
    ) -> None:
        self._kernels = kernels
        self._linear = linear
        self._max_rows = max_rows
        self._num_threads = num_threads

    def write_context_kv(
        self,
        network: DSparkNetwork,
        stacked: StackedKV,
        pool: KVPool,
        aux_hidden: Tensor,
        positions: Tensor,
        slots: Tensor,
    ) -> bool:
        """See draft.ContextKernel. Raises IndexError for a position or slot out of range."""
        if stacked.shares_kv or stacked.norms_values:
            return False
        fc, norm, table = network.fc, network.hidden_norm, stacked.rotary.factors
        if not is_matrix(fc) or has_bias(fc) or type(norm) is not RMSNorm:
            return False
        if any(map(len, (fc._forward_hooks, fc._forward_pre_hooks))):
            return False
        aux_hidden = aux_hidden.to(network.dtype)
        kernel = self._kernels.draft_context.get(fc.weight.dtype)
        fc_scale = fc.scale if isinstance(fc, Int8Linear) else None
        scales = [scale for scale in (fc_scale, stacked.scale) if scale is not None]
        floats = (aux_hidden, norm.weight, stacked.norm, table, pool.draft_keys, pool.draft_values)
        if kernel is None or not all(map(is_readable, (*floats, *scales))):
            return False
        if not all(is_readable(t, fc.weight.dtype) for t in (fc.weight, stacked.weight)):
            return False
        positions, slots = positions.long().contiguous(), slots.long().contiguous()
        num_rows, width = aux_hidden.shape[0], stacked.weight.shape[0]
        num_layers, num_kv_heads = pool.draft_keys.shape[0], pool.draft_keys.shape[2]
        is_small = num_rows <= self._max_rows
        if is_small:
            context, out = torch.empty(num_rows, norm.weight.shape[0]), torch.empty(num_rows, width)
        else:
            context = network.project_taps(aux_hidden)
            out = stacked.multiply(context, linear=self._linear)
        call = ContextWriteStruct(
            num_rows=num_rows,
            num_threads=self._num_threads,
            aux_size=aux_hidden.shape[1],
            hidden=context.shape[1],
            num_layers=num_layers,
            num_kv_heads=num_kv_heads,
            head_dim=pool.draft_keys.shape[3],
            num_slots=pool.draft_keys.shape[1],
            num_positions=table.shape[0],
            norm_eps=norm.eps,
            key_eps=stacked.eps,
            taps=aux_hidden.data_ptr() if is_small else None,
            fc=fc.weight.data_ptr(),
            fc_scale=None if fc_scale is None else fc_scale.data_ptr(),
            norm=norm.weight.data_ptr(),
            weight=stacked.weight.data_ptr(),
            weight_scale=None if stacked.scale is None else stacked.scale.data_ptr(),
            bias=None if stacked.bias is None else stacked.bias.data_ptr(),
            key_norm=stacked.norm.data_ptr(),
            rotary=table.data_ptr(),
            positions=positions.data_ptr(),
            slots=slots.data_ptr(),
            context=context.data_ptr(),
            stacked=out.data_ptr(),
            keys=pool.draft_keys.data_ptr(),
            values=pool.draft_values.data_ptr(),
        )
        if not kernel(ctypes.addressof(call)):
            raise IndexError(
                f"positions {positions} or slots {slots} are out of range; accepted: positions "
                f"below {table.shape[0]}, slots below {pool.draft_keys.shape[1]}"
            )
        return True
