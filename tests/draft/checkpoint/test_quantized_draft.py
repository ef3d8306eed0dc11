"""A draft with weights quantised by torchao."""

import pytest
import torch
from torch import nn

from draft import ContextKVWriter, DSparkNetwork
from tests.support.draft.golden import load_golden
from tests.support.draft.serving import Served, prompts_of
from tests.support.draft.tiny import new_pool

quantization = pytest.importorskip("torchao.quantization")


@pytest.fixture
def networks() -> tuple[DSparkNetwork, DSparkNetwork]:
    """Load the same draft twice: plain, and with int8 weights."""
    _, plain = load_golden("vanilla")
    _, quantised = load_golden("vanilla")
    quantization.quantize_(quantised, quantization.Int8WeightOnlyConfig())
    return plain, quantised


def test_it_proposes_and_reports_why_it_writes_per_layer(
    networks: tuple[DSparkNetwork, DSparkNetwork],
) -> None:
    plain, quantised = networks
    prompts = prompts_of(plain, [9, 23])
    with torch.inference_mode():
        served = Served(quantised, prompts)
        block = served.proposer.propose(served.request())
        expected = Served(plain, prompts)
        wanted = expected.proposer.propose(expected.request())
    assert block.draft_ids.shape == wanted.draft_ids.shape
    assert served.proposer.context_kv_path == "per_layer"
    reason = served.proposer.context_kv_reason
    assert reason is not None
    assert reason.startswith("layers.0.self_attn.k_proj has a quantised weight (")
    keys, wanted_keys = served.pool.draft_keys, expected.pool.draft_keys
    assert 0 < (keys - wanted_keys).abs().max() < 0.1 * wanted_keys.abs().max()


def test_it_refuses_mode_on(networks: tuple[DSparkNetwork, DSparkNetwork]) -> None:
    _, quantised = networks
    with pytest.raises(ValueError, match="quantised weight"):
        ContextKVWriter(network=quantised, pool=new_pool(quantised.config), mode="on")


def test_one_layer_quantised_at_run_time_makes_writes_per_layer() -> None:
    _, network = load_golden("vanilla")
    writer = ContextKVWriter(network=network, pool=new_pool(network.config), mode="auto")
    assert writer.path == "stacked"
    projection = network.attentions[2].v_proj
    assert isinstance(projection, nn.Linear)
    quantization.quantize_(projection, quantization.Int8WeightOnlyConfig())
    with torch.inference_mode():
        writer.write_context_kv(torch.randn(3, 192), torch.arange(3), torch.arange(3))
    assert writer.path == "per_layer"
    assert str(writer.reason).startswith("layers.2.self_attn.v_proj has a quantised weight (")
