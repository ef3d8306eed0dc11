"""Replacing the network's linear layers."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from draft import DSparkNetwork, replace_linears
from tests.support.draft.serving import Served, prompts_of
from tests.support.draft.tiny import random_network


class _Other(nn.Module):
    """Computes the same product from a transposed matrix."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.turned = linear.weight.t().contiguous()
        self.offset = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.turned.t(), self.offset)


@pytest.fixture
def network() -> DSparkNetwork:
    return random_network()


def test_every_linear_layer_except_the_confidence_head_can_be_replaced(
    network: DSparkNetwork,
) -> None:
    prompts = prompts_of(network, [9, 23])
    plain = Served(network, prompts)
    expected = plain.proposer.propose(plain.request())
    names: list[str] = []

    def other(name: str, linear: nn.Linear) -> nn.Module:
        names.append(name)
        return _Other(linear)

    replace_linears(network, other)
    served = Served(network, prompts)
    block = served.proposer.propose(served.request())
    assert torch.equal(block.draft_ids, expected.draft_ids)
    assert served.proposer.context_kv_reason is not None
    assert "k_proj is a _Other" in served.proposer.context_kv_reason
    products = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    assert len(names) == 3 * len(products) + len(["fc", "lm_head", "markov_head.markov_w2"])
    assert [m for m in network.modules() if type(m) is nn.Linear] == [
        network.confidence_head.proj  # type: ignore[union-attr]
    ]


def test_layers_can_be_left_alone_by_name(network: DSparkNetwork) -> None:
    def other(name: str, linear: nn.Linear) -> nn.Module:
        return linear if name.endswith(("k_proj", "v_proj")) else _Other(linear)

    replace_linears(network, other)
    assert Served(network, prompts_of(network, [9])).proposer.context_kv_path == "stacked"
    assert type(network.lm_head) is _Other
