"""The kernels' product equals F.linear for any shape, and keeps the layers' parameters."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from engine.cpu_kernels.linear import cpu_linear, use_linear_kernels
from engine.loading.as_loaded import as_loaded
from tests.support.engine.cpu_kernels import kernels_or_skip


@settings(max_examples=200, deadline=None)
@given(
    rows=st.integers(1, 70),
    depth=st.integers(1, 90),
    columns=st.integers(1, 70),
    has_bias=st.booleans(),
    num_threads=st.integers(1, 3),
    offset=st.integers(0, 3),
)
def test_any_shape_and_alignment_gives_the_same_product(
    rows: int, depth: int, columns: int, has_bias: bool, num_threads: int, offset: int
) -> None:
    linear = cpu_linear(kernels_or_skip(), max_rows=64, num_threads=num_threads)
    x, weight = _at(offset, rows, depth), _at(offset, columns, depth)
    bias = torch.randn(columns) if has_bias else None
    torch.testing.assert_close(
        linear(x, weight, bias), F.linear(x, weight, bias), atol=1e-4, rtol=1e-4
    )


def _at(offset: int, *shape: int) -> torch.Tensor:
    """Random numbers that begin `offset` numbers after a cache line."""
    return torch.randn(offset + math.prod(shape))[offset:].view(shape)


@pytest.mark.parametrize("num_threads", [1, 2])
def test_every_number_of_rows_gives_the_same_product(num_threads: int) -> None:
    """From one tile to several, and from one block of columns and of rows to two or three."""
    linear = cpu_linear(kernels_or_skip(), max_rows=99, num_threads=num_threads)
    x, weight, bias = torch.randn(99, 1537), torch.randn(51, 1537) / 40, torch.randn(51)
    expected = F.linear(x, weight, bias)
    for rows in (*range(1, 71), 95, 96, 97, 99):
        torch.testing.assert_close(
            linear(x[:rows], weight, bias), expected[:rows], atol=1e-4, rtol=1e-4
        )


@pytest.mark.parametrize("shape", [(5,), (2, 3, 5), (0, 5), (1, 1, 5)])
def test_leading_dimensions_are_kept(shape: tuple[int, ...]) -> None:
    linear = cpu_linear(kernels_or_skip(), max_rows=16, num_threads=1)
    x, weight = torch.randn(shape), torch.randn(7, 5)
    found = linear(x, weight, None)
    assert found.shape == (*shape[:-1], 7)
    torch.testing.assert_close(found, F.linear(x, weight))


def test_pytorch_computes_what_the_kernel_cannot_read() -> None:
    linear = cpu_linear(kernels_or_skip(), max_rows=16, num_threads=1)
    weight = torch.randn(8, 6)
    transposed = torch.randn(6, 3).t()
    torch.testing.assert_close(linear(transposed, weight, None), F.linear(transposed, weight))
    half = torch.randn(3, 6, dtype=torch.bfloat16)
    found = linear(half, weight.bfloat16(), None)
    assert found.dtype == torch.bfloat16
    trained = nn.Parameter(weight)
    linear(torch.randn(3, 6), trained, None).sum().backward()
    assert trained.grad is not None


def test_layers_keep_their_parameters_and_use_changed_ones() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4)).requires_grad_(False)
    x = torch.randn(3, 6)
    expected = model(x)
    names = list(model.state_dict())
    assert use_linear_kernels(model, cpu_linear(kernels_or_skip(), max_rows=4, num_threads=1)) == 2
    torch.testing.assert_close(model(x), expected)
    assert list(model.state_dict()) == names
    model[0].weight.data += 1
    with as_loaded(model):
        changed = model(x)
    torch.testing.assert_close(model(x), changed)
    assert (changed - expected).abs().max() > 0.01


def test_as_loaded_restores_pytorchs_forward_within_the_block() -> None:
    calls = []

    def counting(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        calls.append(len(x))
        return F.linear(x, weight, bias)

    model = nn.Sequential(nn.Linear(6, 8)).requires_grad_(False)
    use_linear_kernels(model, counting)
    with as_loaded(model):
        model(torch.randn(3, 6))
    assert calls == []
    model(torch.randn(3, 6))
    assert calls == [3]
