"""Rotary position embedding."""

import pytest
import torch

from draft.network.rotary import RotaryTable, rotate
from tests.support.draft.tiny import CPU

TABLE = {"head_dim": 8, "theta": 10_000.0, "num_positions": 100, "device": CPU}


def test_a_product_of_rotated_vectors_depends_on_their_distance_alone() -> None:
    table, query, key = RotaryTable(**TABLE), torch.randn(1, 1, 8), torch.randn(1, 1, 8)

    def product(at: int, other: int) -> float:
        a, b = (table.at(torch.tensor([position])) for position in (at, other))
        return float((rotate(query, a) * rotate(key, b)).sum())

    assert product(17, 12) == pytest.approx(product(90, 85), abs=1e-4)
    assert product(17, 12) != pytest.approx(product(17, 13), abs=1e-2)


def test_position_zero_changes_nothing() -> None:
    x = torch.randn(1, 3, 8)
    assert torch.equal(rotate(x, RotaryTable(**TABLE).at(torch.tensor([0]))), x)


def test_the_first_half_is_paired_with_the_second() -> None:
    x = torch.tensor([[[1.0, 0, 0, 0, 0, 0, 0, 0]]])
    turned = rotate(x, RotaryTable(**TABLE).at(torch.tensor([1])))[0, 0]
    expected = torch.zeros(8)
    expected[0], expected[4] = torch.tensor(1.0).cos(), torch.tensor(1.0).sin()
    torch.testing.assert_close(turned, expected)


@pytest.mark.parametrize("position", [-1, 100])
def test_a_position_outside_the_table_is_an_error(position: int) -> None:
    with pytest.raises(IndexError):
        RotaryTable(**TABLE).at(torch.tensor([position]))


def test_a_cast_of_the_network_leaves_the_table_in_float32() -> None:
    table = RotaryTable(**TABLE)
    before = table.at(torch.tensor([99])).cos
    after = table.to(torch.bfloat16).at(torch.tensor([99])).cos
    assert torch.equal(before, after)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_result_has_the_dtype_of_what_is_rotated(dtype: torch.dtype) -> None:
    rotation = RotaryTable(**TABLE).at(torch.tensor([5]))
    assert rotate(torch.randn(1, 2, 8, dtype=dtype), rotation).dtype == dtype
