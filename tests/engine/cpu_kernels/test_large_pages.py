"""Weights move into large pages and remain PyTorch's parameters."""

import copy

import torch
from torch import nn

from engine.cpu_kernels.large_pages import LARGE_PAGE, move_to_large_pages


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(30, 12)
        self.middle = nn.Linear(12, 12)
        self.head = nn.Linear(12, 30, bias=False)
        self.head.weight = self.embedding.weight
        self.requires_grad_(False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.middle(self.embedding(ids)))
        return result


def test_values_names_and_ties_are_kept() -> None:
    model, ids = _Tied(), torch.arange(9)
    expected, before = model(ids), copy.deepcopy(model.state_dict())
    assert move_to_large_pages(model) >= sum(p.nbytes for p in model.parameters())
    assert torch.equal(model(ids), expected)
    assert model.head.weight is model.embedding.weight
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_excluded_parameters_are_not_moved() -> None:
    model = _Tied()
    place = model.middle.weight.data_ptr()
    move_to_large_pages(model, excluded=[model.middle.weight])
    assert model.middle.weight.data_ptr() == place
    assert model.embedding.weight.data_ptr() % LARGE_PAGE == 0


def test_each_tensor_is_aligned_to_a_cache_line_and_the_first_to_a_large_page() -> None:
    model = _Tied()
    move_to_large_pages(model)
    places = [p.data_ptr() for p in model.parameters()]
    assert places[0] % LARGE_PAGE == 0
    assert all(place % 64 == 0 for place in places)
    assert places == sorted(places)
    assert max(places) - min(places) < LARGE_PAGE


def test_a_module_that_shares_a_weight_follows_it() -> None:
    """A draft has a parameter over the storage of its target's head."""
    lender, borrower = _Tied(), nn.Linear(12, 30).requires_grad_(False)
    borrower.weight = nn.Parameter(lender.head.weight.detach(), requires_grad=False)
    bias = borrower.bias.data_ptr()
    move_to_large_pages(lender, sharing=[borrower])
    assert borrower.weight.data_ptr() == lender.head.weight.data_ptr()
    assert borrower.bias.data_ptr() == bias
    lender.head.weight.data += 1
    assert torch.equal(borrower.weight, lender.head.weight)


def test_views_of_one_storage_stay_views_of_one_storage() -> None:
    both = torch.randn(8, 6)
    model = nn.ModuleList([nn.Linear(6, 4, bias=False), nn.Linear(6, 4, bias=False)])
    for layer, part in zip(model, both.split(4), strict=True):
        layer.weight = nn.Parameter(part, requires_grad=False)  # type: ignore[assignment]
    move_to_large_pages(model)
    first, second = (layer.weight for layer in model)
    assert torch.equal(torch.cat([first, second]), both)  # type: ignore[arg-type]
    assert second.data_ptr() - first.data_ptr() == 4 * 6 * 4  # type: ignore[operator]


def test_moving_twice_moves_nothing() -> None:
    model = _Tied()
    move_to_large_pages(model)
    places = [p.data_ptr() for p in model.parameters()]
    assert move_to_large_pages(model) == 0
    assert [p.data_ptr() for p in model.parameters()] == places


def test_subclasses_of_parameter_are_not_moved() -> None:
    class Special(nn.Parameter):
        pass

    model = nn.Linear(6, 4, bias=False)
    model.weight = Special(torch.randn(4, 6), requires_grad=False)
    place = model.weight.data_ptr()
    assert move_to_large_pages(model) == 0
    assert model.weight.data_ptr() == place
    assert move_to_large_pages(nn.ReLU()) == 0


def test_a_model_may_be_bfloat16() -> None:
    model = _Tied().bfloat16()
    expected = model(torch.arange(5))
    move_to_large_pages(model)
    assert model.middle.weight.dtype == torch.bfloat16
    assert torch.equal(model(torch.arange(5)), expected)
