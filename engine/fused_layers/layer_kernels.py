"""Triton kernels of a decoder layer, except its matrix products and attention.

    add_and_norm        x += norm?(branch), then norm?(x)                     one program a row
    rotate_and_store    heads of one row of q, k and v: norm?, rotation?, and the store of keys
                        and values in the pool                                one program a head
    activate            activation(gate) * up                       one program a thousand numbers

Numbers are computed in float32 and rounded where transformers rounds a residual stream.
"""

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

_INNER = 1024  # numbers of a program of `activate`


def add_and_norm(
    x: Float[Tensor, "T E"],
    branch: Float[Tensor, "T E"] | None,
    *,
    branch_norm: Float[Tensor, " E"] | None,
    norm: Float[Tensor, " E"] | None,
    eps: float,
) -> Float[Tensor, "T E"]:
    """Add a branch to x in place, and return the normed x; x itself without a norm."""
    if branch is None and norm is None:
        return x
    rows, width = x.shape
    out = x if norm is None else torch.empty_like(x)
    _add_and_norm[(rows,)](
        x,
        x if branch is None else branch,
        x if branch_norm is None else branch_norm,
        x if norm is None else norm,
        out,
        width,
        eps,
        HAS_BRANCH=branch is not None,
        NORMS_BRANCH=branch_norm is not None,
        NORMS=norm is not None,
        BLOCK=triton.next_power_of_2(width),
        num_warps=8 if width > 2048 else 4,
    )
    return out


def rotate_and_store(
    product: Float[Tensor, "T N"],
    positions: Int[Tensor, " T"],
    slots: Int[Tensor, " T"],
    *,
    norms: Float[Tensor, "2 D"] | None,
    rotary: Float[Tensor, "2 P R"] | None,
    eps: float,
    keys: Float[Tensor, "S Hkv D"],
    values: Float[Tensor, "S Hkv D"],
    num_heads: int,
) -> Float[Tensor, "T H D"]:
    """Return the normed and rotated queries; write keys and values to `slots` of the pool.

    product   each row: all heads of queries, then keys, then values
    norms     factors of a head of queries, and of one of keys; None: no norm
    rotary    cosines and sines by position; a head's numbers from R on are not rotated
    """
    rows, (_, num_kv_heads, head_dim) = product.shape[0], keys.shape
    assert product.shape[1] == (num_heads + 2 * num_kv_heads) * head_dim, product.shape
    assert product.is_contiguous(), product.stride()
    assert keys.is_contiguous(), keys.stride()
    assert values.is_contiguous(), values.stride()
    out = product.new_empty(rows, num_heads, head_dim)
    _rotate_and_store[(rows, num_heads + num_kv_heads)](
        product,
        positions,
        slots,
        product if norms is None else norms,
        product if rotary is None else rotary,
        out,
        keys,
        values,
        0 if rotary is None else rotary.stride(0),
        eps,
        H=num_heads,
        HKV=num_kv_heads,
        D=head_dim,
        R=0 if rotary is None else rotary.shape[2],
        NORMS=norms is not None,
        BLOCK=triton.next_power_of_2(head_dim),
        num_warps=1 if head_dim <= 128 else 2,
    )
    return out


def activate(product: Float[Tensor, "T 2I"], *, is_gelu: bool) -> Float[Tensor, "T I"]:
    """Multiply the activated first half of each row by the second half.

    is_gelu: GELU approximated by tanh; else SiLU.
    """
    rows, width = product.shape[0], product.shape[1] // 2
    out = product.new_empty(rows, width)
    _activate[(rows, triton.cdiv(width, _INNER))](
        product, out, width, IS_GELU=is_gelu, BLOCK=_INNER, num_warps=4
    )
    return out


@triton.jit
def _norm(values, factors, at, inside, width, eps):  # type: ignore[no-untyped-def]
    scale = 1.0 / tl.sqrt(tl.sum(values * values, axis=0) / width + eps)
    return values * scale * tl.load(factors + at, mask=inside, other=0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _add_and_norm(  # type: ignore[no-untyped-def]
    x,
    branch,
    branch_norm,
    norm,
    out,
    width,
    eps,
    HAS_BRANCH: tl.constexpr,
    NORMS_BRANCH: tl.constexpr,
    NORMS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    rounded = tl.load(x + row * width + at, mask=inside, other=0.0)
    if HAS_BRANCH:
        added = tl.load(branch + row * width + at, mask=inside, other=0.0).to(tl.float32)
        if NORMS_BRANCH:
            added = _norm(added, branch_norm, at, inside, width, eps)
            added = added.to(x.dtype.element_ty).to(tl.float32)
        rounded = (rounded.to(tl.float32) + added).to(x.dtype.element_ty)
        tl.store(x + row * width + at, rounded, mask=inside)
    if NORMS:
        normed = _norm(rounded.to(tl.float32), norm, at, inside, width, eps)
        tl.store(out + row * width + at, normed.to(out.dtype.element_ty), mask=inside)


# The pools of the self-check and of the engine differ in size but use one compiled kernel.
@triton.jit(do_not_specialize=["table"])  # type: ignore[untyped-decorator]
def _rotate_and_store(  # type: ignore[no-untyped-def]
    product,
    positions,
    slots,
    norms,
    rotary,
    out,
    keys,
    values,
    table,
    eps,
    H: tl.constexpr,
    HKV: tl.constexpr,
    D: tl.constexpr,
    R: tl.constexpr,
    NORMS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    is_key = head >= H
    at = tl.arange(0, BLOCK)
    inside = at < D
    source = product + row * (H + 2 * HKV) * D + head * D
    head_values = tl.load(source + at, mask=inside, other=0.0).to(tl.float32)
    if NORMS:
        factors = norms + tl.where(is_key, D, 0)
        scale = 1.0 / tl.sqrt(tl.sum(head_values * head_values, axis=0) / D + eps)
        head_values = head_values * scale * tl.load(factors + at, mask=inside, other=0.0)
    if R > 0:
        # Each number meets the one half a rotation away: (x1, x2) -> (x1 c - x2 s, x2 c + x1 s).
        turned = at < R
        is_first = at < R // 2
        other = tl.where(is_first, at + R // 2, at - R // 2)
        others = tl.load(source + other, mask=turned, other=0.0).to(tl.float32)
        if NORMS:
            others = others * scale * tl.load(factors + other, mask=turned, other=0.0)
        place = tl.load(positions + row) * R + at
        cosine = tl.load(rotary + place, mask=turned, other=1.0)
        sine = tl.load(rotary + table + place, mask=turned, other=0.0)
        head_values = head_values * cosine + tl.where(is_first, -others, others) * sine
    results = head_values.to(out.dtype.element_ty)
    tl.store(out + (row * H + head) * D + at, results, mask=inside & (head < H))
    target = (tl.load(slots + row) * HKV + head - H) * D + at
    tl.store(keys + target, results, mask=inside & is_key)
    found = tl.load(source + HKV * D + at, mask=inside & is_key, other=0.0)
    tl.store(values + target, found, mask=inside & is_key)


@triton.jit  # type: ignore[untyped-decorator]
def _activate(product, out, width, IS_GELU: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    source = product + row * 2 * width + at
    gate = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(source + width, mask=inside, other=0.0).to(tl.float32)
    exponent = gate
    if IS_GELU:
        exponent = gate * (1.5957691216057308 + 0.07135481627159622 * gate * gate)
    exponent = tl.maximum(exponent, -80.0)  # below it exp(-exponent) is infinite
    activated = (gate / (1.0 + tl.exp(-exponent))).to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + row * width + at, (activated * up).to(out.dtype.element_ty), mask=inside)
