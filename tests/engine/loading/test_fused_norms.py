"""Fused norms compute what the original modules compute, and other modules stay unfused."""

from collections import Counter
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from engine.loading.fused_norms import FusedNorm, fuse_norms, norms_as_loaded
from engine.loading.target import dense_reference
from engine.model_setup import prepared_models
from tests.support.engine.tiny_models import CONFIGS, LAYERS, VOCAB, tiny_engine, tiny_model

IDS = torch.arange(20)[None] * 7919 % VOCAB
# Two in each layer and one at the end; some architectures also normalise queries and keys.
NORMS = {
    "llama": 2 * LAYERS + 1,
    "mistral_window": 2 * LAYERS + 1,
    "qwen3": 4 * LAYERS + 1,
    "qwen3_moe": 4 * LAYERS + 1,
    "gemma3": 0,  # multiplies by 1 + weight
    "gemma4": 6 * LAYERS + 1,  # around both halves of a layer, and of queries and keys
}


def model_with_norm_weights(name: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Make a model whose norm weights are neither ones nor zeros, as after training."""
    model = tiny_model(name)
    generator = torch.Generator().manual_seed(0)
    for key, parameter in model.named_parameters():
        if "norm" in key:
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return model.to(dtype)


@torch.inference_mode()
def logits_of(model: nn.Module) -> Tensor:
    logits: Tensor = model(input_ids=IDS, use_cache=False).logits
    return logits.float()


def test_every_architecture_that_is_tested_is_counted() -> None:
    assert set(NORMS) == set(CONFIGS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", NORMS)
def test_fused_norms_give_the_same_logits(name: str, dtype: torch.dtype) -> None:
    model = model_with_norm_weights(name, dtype)
    before = logits_of(model)
    assert fuse_norms(model) == NORMS[name]
    allowed = 1e-4 if dtype == torch.float32 else 5e-2
    assert (logits_of(model) - before).abs().max() <= allowed * before.abs().max()
    assert fuse_norms(model) == 0, "they are fused already"


def test_each_fused_norm_is_one_operation() -> None:
    class Counted(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.calls: Counter[str] = Counter()

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            self.calls[str(func)] += 1
            return func(*args, **(kwargs or {}))

    def operations(model: nn.Module) -> Counter[str]:
        with torch.inference_mode(), Counted() as counted:
            logits_of(model)
        return counted.calls

    model = model_with_norm_weights("qwen3", torch.bfloat16)
    written_out = operations(model)
    fuse_norms(model)
    fused = operations(model)
    assert written_out["aten.rsqrt.default"] == NORMS["qwen3"]
    assert fused["aten.rms_norm.default"] == NORMS["qwen3"]
    saved = written_out.total() - fused.total()
    assert saved >= 7 * NORMS["qwen3"]


def test_the_dense_reference_uses_the_original_norms() -> None:
    model = model_with_norm_weights("qwen3", torch.bfloat16)
    logits, taps = dense_reference(model, (0, LAYERS - 1), IDS)
    fuse_norms(model)
    again, tapped = dense_reference(model, (0, LAYERS - 1), IDS)
    assert torch.equal(again, logits)
    assert torch.equal(tapped, taps)
    norm = next(m for m in model.modules() if isinstance(m.__dict__.get("forward"), FusedNorm))
    with norms_as_loaded(model):
        assert "forward" not in norm.__dict__
    assert isinstance(norm.__dict__["forward"], FusedNorm)


def test_a_changed_weight_takes_effect() -> None:
    model = model_with_norm_weights("llama")
    fuse_norms(model)
    before = logits_of(model)
    model.get_parameter("model.norm.weight").data *= 2
    torch.testing.assert_close(logits_of(model), 2 * before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_norms_with_large_weights_and_wide_rows_are_fused(dtype: torch.dtype) -> None:
    norm = tiny_model("qwen3").get_submodule("model.norm")
    wide = type(norm)(5120).to(dtype)
    wide.weight.data = 100 * torch.randn(5120, generator=torch.Generator().manual_seed(0)).to(dtype)
    assert fuse_norms(wide) == 1


def test_a_module_that_only_looks_like_a_norm_stays_unfused() -> None:
    class OddRMSNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(16), requires_grad=False)
            self.eps = 1e-6

        def forward(self, x: Tensor) -> Tensor:
            return self.weight * (x - x.mean(-1, keepdim=True))

    assert fuse_norms(nn.Sequential(OddRMSNorm(), nn.LayerNorm(16), nn.RMSNorm(16))) == 0


def test_on_a_cpu_no_norm_is_fused() -> None:
    with patch.object(prepared_models, "fuse_norms", side_effect=AssertionError):
        tiny_engine(draft_folder=None)
