"""Each kernel of a layer computes PyTorch's formula; Triton's interpreter runs it on a CPU."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from engine.fused_layers.layer_kernels import activate, add_and_norm, rotate_and_store

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
EPS = 1e-6
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2e-2}


def _random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, device=DEVICE).to(dtype)


def _assert_close(found: Tensor, expected: Tensor) -> None:
    tolerance = TOLERANCE[found.dtype]
    torch.testing.assert_close(found.float(), expected.float(), atol=tolerance, rtol=tolerance)


def _rms_norm(x: Tensor, factors: Tensor | None) -> Tensor:
    return x if factors is None else F.rms_norm(x.float(), factors.shape, factors, EPS).to(x.dtype)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("width", [48, 64, 1536])
@pytest.mark.parametrize("has_branch", [False, True])
@pytest.mark.parametrize("norms_branch", [False, True])
@pytest.mark.parametrize("has_norm", [False, True])
def test_a_branch_is_added_and_the_sum_normed(
    dtype: torch.dtype, width: int, has_branch: bool, norms_branch: bool, has_norm: bool
) -> None:
    x, branch = _random(3, width, dtype=dtype), _random(3, width, dtype=dtype)
    branch_norm = _random(width) if norms_branch else None
    norm = _random(width) if has_norm else None
    expected = x + _rms_norm(branch, branch_norm) if has_branch else x.clone()
    found = add_and_norm(
        x, branch if has_branch else None, branch_norm=branch_norm, norm=norm, eps=EPS
    )
    _assert_close(x, expected)
    _assert_close(found, _rms_norm(x, norm))
    assert (found is x) == (norm is None)


def _rotated(x: Tensor, rotary: Tensor, positions: Tensor) -> Tensor:
    cosine, sine = rotary[:, positions][:, :, None]
    turned, rest = x[..., : rotary.shape[2]], x[..., rotary.shape[2] :]
    first, second = turned.chunk(2, -1)
    return torch.cat([turned * cosine + torch.cat([-second, first], -1) * sine, rest], -1)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("rotary_dim", [0, 8, 16, 24])
@pytest.mark.parametrize("has_norms", [False, True])
def test_heads_are_normed_rotated_and_stored(
    dtype: torch.dtype, rotary_dim: int, has_norms: bool
) -> None:
    rows, heads, kv_heads, head_dim, num_slots = 5, 6, 2, 24, 11
    product = _random(rows, (heads + 2 * kv_heads) * head_dim, dtype=dtype)
    positions = torch.tensor([3, 0, 7, 4, 5], device=DEVICE)
    slots = torch.tensor([2, 9, 0, 10, 4], device=DEVICE)
    norms = _random(2, head_dim) if has_norms else None
    rotary = _random(2, 8, rotary_dim) if rotary_dim else None
    keys = torch.full((num_slots, kv_heads, head_dim), 7.0, dtype=dtype, device=DEVICE)
    values = keys.clone()
    queries = rotate_and_store(
        product,
        positions,
        slots,
        norms=norms,
        rotary=rotary,
        eps=EPS,
        keys=keys,
        values=values,
        num_heads=heads,
    )
    q, k, v = product.view(rows, -1, head_dim).split([heads, kv_heads, kv_heads], 1)
    for found, given, which in ((queries, q, 0), (keys[slots], k, 1)):
        expected = given.float()
        if norms is not None:
            expected = F.rms_norm(expected, (head_dim,), norms[which], EPS)
        if rotary is not None:
            expected = _rotated(expected, rotary, positions)
        _assert_close(found, expected)
    assert torch.equal(values[slots], v)
    rest = torch.ones(num_slots, dtype=torch.bool, device=DEVICE)
    rest[slots] = False
    assert bool((keys[rest] == 7).all())
    assert bool((values[rest] == 7).all())


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("is_gelu", [False, True])
@pytest.mark.parametrize("width", [48, 1500])
def test_the_gate_is_activated_and_multiplied(
    dtype: torch.dtype, is_gelu: bool, width: int
) -> None:
    product = 3 * _random(2, 2 * width, dtype=dtype)
    gate, up = product.float().chunk(2, -1)
    expected = (F.gelu(gate, approximate="tanh") if is_gelu else F.silu(gate)) * up
    found = activate(product, is_gelu=is_gelu)
    torch.testing.assert_close(
        found.float(), expected, atol=TOLERANCE[dtype] * 10, rtol=TOLERANCE[dtype]
    )
