"""Runs a decoder pass in one kernel call, over the model's parameters and the pool."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engine.cpu_kernels.compiling import CpuKernelsUnavailable, KernelLibrary
from engine.cpu_kernels.int8_linear import Int8Linear
from engine.cpu_kernels.page_tables import PageTablePointers
from engine.cpu_kernels.structs import ROW_BLOCK, DecoderStruct, LayerStruct, PassStruct
from engine.cpu_kernels.weights import is_readable, matrices_of
from engine.runner.batch import ScheduleBatch
from kv_pool import KVPool

# Model classes whose decoder layers compute the same as decoder.h. They are listed by name, not
# inferred from their parts, and the self-check at load compares the numbers.
_SUPPORTED = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
_MAX_GROUP = 32
_FEW_ROWS = 8  # every thread norms up to so many rows itself
_KEY_BLOCK = 64  # keys of a block; long contexts are split into these
_SPLIT_ROWS = 16  # rows of the longest context for whose states there is room
_STATES_FLOATS = 4 << 20  # the most floats of all states


@dataclass(frozen=True, slots=True)
class _Sizes:
    hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    inner: int
    vocab: int


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
        backbone, config = require_supported(model, kernels)
        self.max_rows = max_rows
        self._pool = pool
        self._num_threads = num_threads
        self._sizes = sizes = _sizes_of(config)
        self._dtype = backbone.embed_tokens.weight.dtype
        self._matrices_dtype = backbone.layers[0].self_attn.q_proj.weight.dtype
        self._decode = kernels.decode.get((self._matrices_dtype, self._dtype))
        if self._decode is None:
            raise CpuKernelsUnavailable(
                f"there is no code for {self._matrices_dtype} in {self._dtype}"
            )
        self._embedding = self._readable(backbone.embed_tokens.weight, self._dtype)
        self._kept: list[Tensor] = []  # the structs point to them
        self._cosine, self._sine = _rotary_table(backbone, max_len)
        self._layers = (LayerStruct * len(backbone.layers))(
            *(self._layer(layer, index) for index, layer in enumerate(backbone.layers))
        )
        self._tap_layers = torch.tensor(list(tap_layers) or [-2], dtype=torch.int64)
        first = backbone.layers[0]
        self._decoder = DecoderStruct(
            num_layers=len(backbone.layers),
            hidden=sizes.hidden,
            num_heads=sizes.num_heads,
            num_kv_heads=sizes.num_kv_heads,
            head_dim=sizes.head_dim,
            inner=sizes.inner,
            vocab=sizes.vocab,
            num_taps=len(tap_layers),
            eps=first.input_layernorm.variance_epsilon,
            scale=first.self_attn.scaling,
            layers=ctypes.addressof(self._layers),
            final_norm=self._keep_vector(backbone.norm.weight),
            tap_layers=self._tap_layers.data_ptr(),
            **self._matrix("lm_head", model.get_output_embeddings()),  # type: ignore[operator]
        )
        self._tap_width = len(tap_layers) * sizes.hidden
        self._states = _states(sizes, max_len, kernels.state_size(sizes.head_dim))
        self._scratch: dict[str, Tensor] = {}
        self._room = 0  # rows that fit into the scratch
        self._logits = torch.empty(0, sizes.vocab)

    def run(self, batch: ScheduleBatch) -> tuple[Tensor, Tensor]:
        """Return logits [R, V] of batch.logit_rows and taps [T, A], valid until the next run.

        Logits are float32; taps have the model's dtype.
        """
        num_rows, num_logit_rows = len(batch.token_ids), len(batch.logit_rows)
        assert num_rows <= self.max_rows, (num_rows, self.max_rows)
        self._make_room(num_rows, num_logit_rows)
        x = F.embedding(batch.token_ids, self._embedding).float()
        cosine = self._cosine.index_select(0, batch.positions)
        sine = self._sine.index_select(0, batch.positions)
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
            self._scratch = _scratch(self._sizes, self._room, self._tap_width, self._num_threads)
        if num_logit_rows > len(self._logits):
            rows = min(max(num_logit_rows, 2 * len(self._logits)), self.max_rows)
            self._logits = torch.empty(rows, self._sizes.vocab)

    def _layer(self, layer: Any, index: int) -> LayerStruct:
        attention = layer.self_attn
        keys, values = self._pool.target_keys(index), self._pool.target_values(index)
        return LayerStruct(
            input_norm=self._keep_vector(layer.input_layernorm.weight),
            q_bias=self._keep_vector(attention.q_proj.bias),
            k_bias=self._keep_vector(attention.k_proj.bias),
            v_bias=self._keep_vector(attention.v_proj.bias),
            q_norm=self._keep_vector(getattr(getattr(attention, "q_norm", None), "weight", None)),
            k_norm=self._keep_vector(getattr(getattr(attention, "k_norm", None), "weight", None)),
            o_bias=self._keep_vector(attention.o_proj.bias),
            post_norm=self._keep_vector(layer.post_attention_layernorm.weight),
            keys=self._keep(keys, self._dtype),
            values=self._keep(values, self._dtype),
            window=_window(attention),
            **{
                field: address
                for name, module in matrices_of(layer).items()
                for field, address in self._matrix(name, module).items()
            },
        )

    def _matrix(self, name: str, module: Any) -> dict[str, int | None]:
        """Return the addresses of a product's matrix and of its scales, if it has any."""
        scale = module.scale if isinstance(module, Int8Linear) else None
        return {
            name: self._keep(module.weight, self._matrices_dtype),
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
        self._kept.append(self._readable(tensor, self._dtype).float())
        return self._kept[-1].data_ptr()

    def _readable(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """Detach a tensor. Raises CpuKernelsUnavailable unless kernels can read its memory."""
        if not is_readable(tensor, dtype):
            raise CpuKernelsUnavailable(f"weights are {type(tensor).__name__} of {tensor.dtype}")
        return tensor.detach()


def why_unsupported(model: nn.Module) -> str | None:
    """Return why decoder.h does not support the model's class; None if it does."""
    name = type(model).__name__
    if name in _SUPPORTED and type(model).__module__.startswith("transformers."):
        return None
    return f"{name} is not one of {', '.join(_SUPPORTED)}"


def require_supported(model: nn.Module, kernels: KernelLibrary) -> tuple[Any, Any]:
    """Return the model's decoder and config. Raises CpuKernelsUnavailable without code for them."""
    config: Any = model.config
    unknown = why_unsupported(model)
    if unknown is not None:
        raise CpuKernelsUnavailable(unknown)
    if config.hidden_act != "silu":
        raise CpuKernelsUnavailable(f"hidden_act is {config.hidden_act!r}, not 'silu'")
    sizes = _sizes_of(config)
    if not kernels.has_head_dim(sizes.head_dim):
        raise CpuKernelsUnavailable(f"there is no code for a head_dim of {sizes.head_dim}")
    if sizes.num_heads // sizes.num_kv_heads > _MAX_GROUP:
        raise CpuKernelsUnavailable(f"more than {_MAX_GROUP} query heads share a KV head")
    backbone: Any = model.model
    mlp = backbone.layers[0].mlp
    if any(p.bias is not None for p in (mlp.gate_proj, mlp.up_proj, mlp.down_proj)):
        raise CpuKernelsUnavailable("the feed-forward layers have biases")
    return backbone, config


def _sizes_of(config: Any) -> _Sizes:
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return _Sizes(
        hidden=config.hidden_size,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        inner=config.intermediate_size,
        vocab=config.vocab_size,
    )


def _scratch(sizes: _Sizes, rows: int, tap_width: int, num_threads: int) -> dict[str, Tensor]:
    kv = sizes.num_kv_heads * sizes.head_dim
    heads = sizes.num_heads * sizes.head_dim
    widths = {"q": heads, "k": kv, "v": kv, "attended": heads, "taps": tap_width}
    return {
        **{name: torch.empty(rows, width) for name, width in widths.items()},
        "h": torch.empty(max(rows, _FEW_ROWS * num_threads), sizes.hidden),
        "inner": torch.empty(2, rows, sizes.inner),
        "rounded": torch.empty(
            num_threads,
            min(rows, ROW_BLOCK) * max(sizes.hidden, heads, sizes.inner),
            dtype=torch.bfloat16,
        ),
        "turn": torch.empty(1, dtype=torch.int64),
    }


def _states(sizes: _Sizes, max_len: int, state_size: int) -> Tensor:
    """Allocate the states of queries whose context is split among threads."""
    blocks = -(-max_len // _KEY_BLOCK)
    count = min(_SPLIT_ROWS * sizes.num_heads * blocks, _STATES_FLOATS // state_size)
    return torch.empty(count, state_size)


def _rotary_table(backbone: Any, max_len: int) -> tuple[Tensor, Tensor]:
    """Compute cosines and sines [max_len, D] of every position by the model's module."""
    positions = torch.arange(max_len)[None]
    cosine, sine = backbone.rotary_emb(torch.empty(1, max_len, 1), positions)
    return cosine[0].contiguous(), sine[0].contiguous()


def _window(attention: Any) -> int:
    config = attention.config
    window = getattr(attention, "sliding_window", None)
    if window is None and type(attention).__name__.startswith("Mistral"):
        window = getattr(config, "sliding_window", None)
    return int(window or 0)
