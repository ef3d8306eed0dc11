"""The kernels run every family whose layers they can describe, and give a reason for the others."""

from typing import Any

import pytest
import torch
from torch import nn

from engine.config import EngineConfig
from engine.cpu_kernels.compiling import CpuKernelsUnavailable
from engine.cpu_kernels.decoder import CpuDecoder
from engine.cpu_kernels.target_layers import describe_layers, rotary_table, why_unsupported
from engine.loading.quantization import quantise
from engine.loading.target import LoadedTarget, dense_reference
from engine.runner.batch import batch_of_rows
from kv_pool import KVLayout, KVPool, KVShape
from tests.support.engine.cpu_kernels import kernels_or_skip
from tests.support.engine.described_families import (
    DESCRIBED,
    MAX_LEN,
    described_model,
    described_target,
)
from tests.support.engine.families import FAMILIES, VOCAB, WINDOW
from tests.support.engine.tiny_models import CPU, tiny_engine

LENGTH = WINDOW + 40
TAPS = (-1, 0, 2)


def _run(target: LoadedTarget, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Run two chunks of a text through the kernels, over pages."""
    described = describe_layers(target.model)
    shape = KVShape(described.num_kv_heads, described.head_dim, described.head_dim, target.dtype)
    layout = KVLayout(4, CPU, target=(shape,) * target.num_layers)
    decoder = CpuDecoder(
        kernels=kernels_or_skip(),
        model=target.model,
        pool=KVPool(layout, num_pages=32),
        tap_layers=TAPS,
        max_len=MAX_LEN,
        max_rows=LENGTH,
        num_threads=2,
    )
    logits, taps = [], []
    for start, stop in ((0, LENGTH - 5), (LENGTH - 5, LENGTH)):
        batch = batch_of_rows([(ids, list(range(31, -1, -1)), start, stop)], page_size=4)
        for found, kept in zip(decoder.run(batch), (logits, taps), strict=True):
            kept.append(found.clone())
    return torch.cat(logits), torch.cat(taps)


def _difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("name", DESCRIBED)
@torch.inference_mode()
def test_a_described_family_computes_what_transformers_computes(name: str) -> None:
    target = described_target(name)
    ids = torch.arange(LENGTH) * 7919 % VOCAB
    expected, expected_taps = dense_reference(target.model, TAPS, ids[None])
    logits, taps = _run(target, ids)
    assert _difference(logits, expected) < 1e-5
    assert _difference(taps, expected_taps) < 1e-5


@pytest.mark.parametrize("name", DESCRIBED)
@torch.inference_mode()
def test_int8_matrices_of_a_described_family_compute_what_pytorch_computes(name: str) -> None:
    config = EngineConfig(target="tiny", quantization="int8")
    target = quantise(config, described_target(name), CPU)
    ids = torch.arange(LENGTH) * 7919 % VOCAB
    expected, expected_taps = dense_reference(target.model, TAPS, ids[None])
    logits, taps = _run(target, ids)
    assert _difference(logits, expected) < 1e-5
    assert _difference(taps, expected_taps) < 1e-5


@pytest.mark.parametrize("name", DESCRIBED)
@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_an_engine_runs_a_described_family_by_kernels(name: str, quantization: str) -> None:
    kernels_or_skip()
    engine = tiny_engine(target=described_target(name), quantization=quantization).engine
    details: Any = engine.info.details["target"]
    assert details["small_steps"] == {"path": "native", "reason": None}


def test_the_described_families_are_these() -> None:
    served = [name for name, family in FAMILIES.items() if family.refusal is None]
    assert {name for name in served if why_unsupported(FAMILIES[name].model()) is None} == set(
        DESCRIBED
    )


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Helium", "it rotates heads in another way than by halves"),
        ("Gemma 4", "a projection is missing"),
        ("Gemma 2", "it caps its logits"),
        ("Arcee", "no attribute 'gate_proj'"),
        ("HunYuan dense", "the kernels do not read self_attn"),
        ("Mixtral", "no attribute 'gate_proj'"),
    ],
)
def test_a_family_with_other_layers_has_a_reason(name: str, reason: str) -> None:
    assert reason in str(why_unsupported(FAMILIES[name].model()))


def test_layers_without_rotation_and_with_another_base_are_told_apart() -> None:
    assert [layer.rotation for layer in describe_layers(described_model("SmolLM 3")).layers] == [
        0,
        -1,
        0,
    ]
    gemma = describe_layers(described_model("Gemma 3"))
    assert [layer.rotation for layer in gemma.layers] == [0, 1, 0]
    assert [layer.window for layer in gemma.layers] == [WINDOW, 0, WINDOW]


def test_a_rotation_that_depends_on_the_length_of_the_text_is_refused() -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    model = FAMILIES["Llama"].model(rope_parameters=rope)
    described = describe_layers(model)
    assert rotary_table(described, 100)[0].shape[:2] == (1, 100)
    with pytest.raises(CpuKernelsUnavailable, match="depends on the length of the text"):
        rotary_table(described, 1000)


def test_another_norm_activation_or_bias_is_refused() -> None:
    def reason(**changes: object) -> str:
        return str(why_unsupported(FAMILIES["Llama"].model(**changes)))

    assert reason(hidden_act="relu") == "its activation is ReLU"
    assert reason(mlp_bias=True) == "the feed-forward layers have biases"
    model = FAMILIES["Llama"].model()
    model.get_submodule("model.layers.1").input_layernorm = nn.LayerNorm(32, eps=1e-6)
    assert str(why_unsupported(model)) == "LayerNorm is no RMS norm"
