"""Writes the stacked context KV in one Triton kernel: K norm, RoPE and the store of all layers.

    stacked row n   [ K of layer 0 | V of layer 0 | K of layer 1 | V of layer 1 | ... ]
                       H heads x D; without V where keys and values share a projection
    program (n, l)  reads its layer's two tiles [H, D], norms and rotates the first, and writes
                    both at slot[n] of layer l

Each element of the product is read once and written once; PyTorch needs several passes over
[L, N, H, D].
"""

import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from draft.context.stacked_kv import StackedKV
from draft.network.network import DSparkNetwork
from kv_pool import KVPool


class FusedContext:
    """Implements ContextKernel for CUDA: one matrix product, then one kernel launch.

    Tests run it anywhere through Triton's interpreter.
    """

    name = "triton"

    def write_context_kv(
        self,
        network: DSparkNetwork,
        stacked: StackedKV,
        pool: KVPool,
        aux_hidden: Float[Tensor, "N A"],
        positions: Int[Tensor, "N"],
        slots: Int[Tensor, "N"],
    ) -> bool:
        """See ContextKernel.write_context_kv. Norm and rotation run in float32."""
        product = F.linear(network.project_taps(aux_hidden), stacked.weight, stacked.bias)
        store_stacked(
            product,
            positions,
            slots,
            norm=stacked.norm,
            eps=stacked.eps,
            factors=stacked.rotary.factors,
            keys=pool.draft_keys,
            values=pool.draft_values,
            norms_values=stacked.norms_values,
        )
        return True


def store_stacked(
    product: Float[Tensor, "N L2HD"],
    positions: Int[Tensor, "N"],
    slots: Int[Tensor, "N"],
    *,
    norm: Float[Tensor, "L 1 D"],
    eps: float,
    factors: Float[Tensor, "P 2 D"],
    keys: Float[Tensor, "L S H D"],
    values: Float[Tensor, "L S H D"],
    norms_values: bool = False,
) -> None:
    """Norm and rotate every layer's keys; write keys and values to `slots` of the pool.

    product       one row per token: each layer's keys, then its values; without the values, they
                  are the keys before norm and rotation
    norms_values  values are normed per head, without a weight
    factors       RotaryTable.factors: cosines, and sines whose first half is negated
    keys, values  the pool's storage; only `slots` change
    """
    num_layers, num_slots, num_heads, head_dim = keys.shape
    parts, rest = divmod(product.shape[1], num_layers * num_heads * head_dim)
    assert parts in (1, 2), (product.shape, keys.shape)
    assert rest == 0, (product.shape, keys.shape)
    assert keys.is_contiguous(), keys.stride()
    assert values.is_contiguous(), values.stride()
    assert factors.is_contiguous(), factors.stride()
    assert head_dim % 2 == 0, head_dim
    _store_kernel[(product.shape[0], num_layers)](
        product.contiguous(),
        positions.contiguous(),
        slots.contiguous(),
        norm.contiguous(),
        factors,
        keys,
        values,
        num_slots,
        eps,
        L=num_layers,
        PARTS=parts,
        NORMS_VALUES=norms_values,
        H=num_heads,
        HALF=head_dim // 2,
        BLOCK_H=_power_of_two(num_heads),
        BLOCK_HALF=_power_of_two(head_dim // 2),
        num_warps=4,
    )


def _power_of_two(size: int) -> int:
    """Round up to a power of two."""
    return 1 << (size - 1).bit_length()


# The pools of the self-check and of the engine differ in num_slots but use one compiled kernel.
@triton.jit(do_not_specialize=["num_slots"])  # type: ignore[untyped-decorator]
def _store_kernel(  # type: ignore[no-untyped-def]
    product,
    positions,
    slots,
    norm,
    factors,
    keys,
    values,
    num_slots,
    eps,
    L: tl.constexpr,
    PARTS: tl.constexpr,
    NORMS_VALUES: tl.constexpr,
    H: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    layer = tl.program_id(1).to(tl.int64)
    position = tl.load(positions + row)
    slot = tl.load(slots + row)
    heads = tl.arange(0, BLOCK_H)[:, None]
    dims = tl.arange(0, BLOCK_HALF)[None, :]
    half = dims < HALF
    kept = (heads < H) & half

    D: tl.constexpr = 2 * HALF
    source = product + row * (PARTS * L * H * D) + layer * (PARTS * H * D)
    inside = heads * D + dims
    first = tl.load(source + inside, mask=kept, other=0.0).to(tl.float32)
    second = tl.load(source + inside + HALF, mask=kept, other=0.0).to(tl.float32)

    square = tl.sum(first * first, axis=1) + tl.sum(second * second, axis=1)
    scale = 1.0 / tl.sqrt(square / D + eps)
    weight = norm + layer * D + dims
    first = first * scale[:, None] * tl.load(weight, mask=half, other=0.0).to(tl.float32)
    second = second * scale[:, None] * tl.load(weight + HALF, mask=half, other=0.0).to(tl.float32)

    cosine = factors + position * (2 * D) + dims
    sine = cosine + D  # its first half is negated
    cosine_first = tl.load(cosine, mask=half, other=0.0)
    cosine_second = tl.load(cosine + HALF, mask=half, other=0.0)
    sine_first = tl.load(sine, mask=half, other=0.0)
    sine_second = tl.load(sine + HALF, mask=half, other=0.0)
    turned_first = first * cosine_first + second * sine_first
    turned_second = second * cosine_second + first * sine_second

    target = (layer * num_slots + slot) * (H * D) + inside
    tl.store(keys + target, turned_first.to(keys.dtype.element_ty), mask=kept)
    tl.store(keys + target + HALF, turned_second.to(keys.dtype.element_ty), mask=kept)
    value = source + (PARTS - 1) * H * D + inside
    first_value = tl.load(value, mask=kept, other=0.0)
    second_value = tl.load(value + HALF, mask=kept, other=0.0)
    if NORMS_VALUES:
        first_value = first_value.to(tl.float32)
        second_value = second_value.to(tl.float32)
        square = tl.sum(first_value * first_value, axis=1)
        square += tl.sum(second_value * second_value, axis=1)
        scale = 1.0 / tl.sqrt(square / D + eps)
        first_value = (first_value * scale[:, None]).to(values.dtype.element_ty)
        second_value = (second_value * scale[:, None]).to(values.dtype.element_ty)
    tl.store(values + target, first_value, mask=kept)
    tl.store(values + target + HALF, second_value, mask=kept)
