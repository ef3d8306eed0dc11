"""int8 matrices: kernels and PyTorch agree, and drafts change no token."""

import copy
import dataclasses
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from draft.network.int8_linear import Int8Linear, product_by_pytorch
from engine.config import EngineConfig
from engine.cpu_kernels.linear import cpu_int8_product
from engine.errors import LoadError
from engine.loading.fingerprint import FIELD, target_fingerprint
from engine.loading.quantization import quantise
from engine.loading.target import LoadedTarget, dense_reference, describe_target
from engine.model_setup.pool_sizing import parameter_bytes
from tests.support.engine.cpu_kernels import kernels_or_skip
from tests.support.engine.running import greedy_requests, oracle, prompts, run_all
from tests.support.engine.tiny_models import (
    CPU,
    HIDDEN,
    VOCAB,
    tiny_engine,
    tiny_model,
    tiny_target,
    write_tiny_draft,
)

NEW_TOKENS = 20
INT8 = EngineConfig(target="tiny", quantization="int8")


def target_of(name: str, dtype: torch.dtype = torch.float32) -> LoadedTarget:
    return describe_target(tiny_model(name).to(dtype), max_len=160, dtype=dtype)


def dequantised(layer: Int8Linear) -> torch.Tensor:
    return layer.weight.float() * layer.scale[:, None]


@settings(max_examples=100, deadline=None)
@given(
    rows=st.integers(1, 20),
    depth=st.integers(1, 90),
    columns=st.integers(1, 70),
    has_bias=st.booleans(),
    num_threads=st.integers(1, 3),
)
def test_any_shape_gives_pytorchs_product(
    rows: int, depth: int, columns: int, has_bias: bool, num_threads: int
) -> None:
    product = cpu_int8_product(kernels_or_skip(), num_threads=num_threads)
    weight = torch.randint(-127, 128, (columns, depth), dtype=torch.int8)
    x, scale = torch.randn(rows, depth), torch.rand(columns) / 100
    bias = torch.randn(columns) if has_bias else None
    torch.testing.assert_close(
        product(x, weight, scale, bias),
        product_by_pytorch(x, weight, scale, bias),
        atol=1e-4,
        rtol=1e-4,
    )


@pytest.mark.parametrize("rows", [2, 5, 7, 8, 17, 100])
def test_a_row_is_the_same_alone_and_in_any_batch(rows: int) -> None:
    kernels = kernels_or_skip()
    weight = torch.randint(-127, 128, (70, 91), dtype=torch.int8)
    x, scale, bias = torch.randn(rows, 91), torch.rand(70), torch.randn(70)
    together = cpu_int8_product(kernels, num_threads=2)(x, weight, scale, bias)
    alone = cpu_int8_product(kernels, num_threads=1)
    for i in range(rows):
        assert torch.equal(alone(x[i : i + 1], weight, scale, bias)[0], together[i])


def test_a_weight_is_off_by_half_a_step_of_its_own_row_at_most() -> None:
    layer = nn.Linear(50, 9).requires_grad_(False)
    layer.weight[3] *= 1000
    layer.weight[5] = 0
    quantised = Int8Linear.of(layer)
    step = layer.weight.abs().amax(dim=1) / 127
    off = (dequantised(quantised) - layer.weight).abs().amax(dim=1)
    assert bool((off <= step / 2 * 1.001).all())
    assert quantised.weight.abs().amax(dim=1).tolist() == [127] * 5 + [0] + [127] * 3
    x = torch.randn(4, 50)
    expected = F.linear(x, dequantised(quantised), layer.bias)
    torch.testing.assert_close(quantised(x), expected, atol=1e-4, rtol=1e-4)
    assert quantised(x.bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize("name", ["llama", "mistral_window", "qwen3", "gemma3"])
@torch.inference_mode()
def test_a_quantised_model_computes_what_its_dequantised_weights_compute(name: str) -> None:
    plain = target_of(name)
    quantised = quantise(INT8, target_of(name), CPU)
    found = dict(quantised.model.named_modules())
    for path, module in plain.model.named_modules():
        layer = found[path]
        if isinstance(layer, Int8Linear):
            assert isinstance(module, nn.Linear)
            module.weight = nn.Parameter(dequantised(layer), requires_grad=False)
    ids = torch.arange(30)[None] * 17 % VOCAB
    expected, taps = dense_reference(plain.model, (0, 3), ids)
    logits, own_taps = dense_reference(quantised.model, (0, 3), ids)
    torch.testing.assert_close(logits, expected, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(own_taps, taps, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("name", ["llama", "mistral_window", "qwen3", "gemma3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_drafts_change_no_token(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    kernels_or_skip()
    prompt_ids = prompts(4, vocab=VOCAB)
    alone = tiny_engine(target=target_of(name, dtype), quantization="int8")
    details = alone.engine.info.details["target"]
    assert isinstance(details, dict)
    assert details["small_steps"] == {"path": "native", "reason": None}
    assert details["quantization"] == "int8"
    found = run_all(alone, greedy_requests(prompt_ids, NEW_TOKENS))
    expected = [found[str(i)][0] for i in range(len(prompt_ids))]
    draft = write_tiny_draft(tmp_path)
    drafted = tiny_engine(target=target_of(name, dtype), draft_folder=draft, quantization="int8")
    with oracle([p + e for p, e in zip(prompt_ids, expected, strict=True)], good=3, vocab=VOCAB):
        found = run_all(drafted, greedy_requests(prompt_ids, NEW_TOKENS))
    assert [found[str(i)][0] for i in range(len(prompt_ids))] == expected
    assert max(found[str(i)][1].speculation.mean_accept_length for i in range(4)) > 2


def test_pytorch_generates_the_same_without_kernels() -> None:
    kernels_or_skip()
    prompt_ids = prompts(3, vocab=VOCAB)
    texts = []
    for native_kernels in ("auto", "off"):
        built = tiny_engine(quantization="int8", native_kernels=native_kernels)
        found = run_all(built, greedy_requests(prompt_ids, NEW_TOKENS))
        texts.append([found[str(i)][0] for i in range(len(prompt_ids))])
    assert texts[0] == texts[1]


def test_kernels_that_compute_something_else_are_refused_at_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The check at load compares the kernels with PyTorch over the same int8 matrices."""
    kernels_or_skip()

    def doubled(layer: nn.Linear) -> Int8Linear:
        made = of(layer)
        made.product = lambda x, w, s, b: product_by_pytorch(x, w, 2 * s, b)
        return made

    of = Int8Linear.of
    good = tiny_engine(quantization="int8").engine.info.details["target"]
    assert isinstance(good, dict)
    assert good["self_check"]["logits_difference"] < 1e-4
    monkeypatch.setattr(Int8Linear, "of", doubled)
    monkeypatch.setattr("engine.model_setup.prepared_models.use_linear_kernels", lambda *_: 0)
    with pytest.raises(LoadError, match="through the paged pool differ"):
        tiny_engine(quantization="int8")


def test_only_linear_layers_become_int8_and_the_memory_counts_them_so() -> None:
    before = target_of("llama")
    embedding = before.parts.embedding.get_parameter("weight")
    quantised = quantise(INT8, before, CPU)
    assert quantised.parts.embedding.get_parameter("weight") is embedding
    assert isinstance(quantised.parts.lm_head, Int8Linear)
    narrow = [m for m in quantised.model.modules() if isinstance(m, Int8Linear)]
    assert len(narrow) == 7 * quantised.num_layers + 1
    products = sum(m.in_features * m.out_features + 4 * m.out_features for m in narrow)
    norms = (2 * quantised.num_layers + 1) * HIDDEN * 4
    rest = norms + embedding.nbytes + sum(b.nbytes for b in quantised.model.buffers())
    assert parameter_bytes(quantised.model) == products + rest
    assert quantise(INT8, quantised, CPU) is quantised


def test_a_tied_head_is_quantised_apart_from_its_embedding() -> None:
    model = tiny_model("llama")
    model.config.tie_word_embeddings = True  # type: ignore[union-attr]
    model.tie_weights()  # type: ignore[operator]
    quantised = quantise(INT8, describe_target(model, max_len=160, dtype=torch.float32), CPU)
    assert isinstance(quantised.parts.lm_head, Int8Linear)
    assert quantised.parts.embedding.get_parameter("weight").dtype == torch.float32


def test_a_draft_trained_for_the_unquantised_target_is_accepted(tmp_path: Path) -> None:
    name = target_fingerprint(tiny_target())
    folder = write_tiny_draft(tmp_path, **{FIELD: name})
    assert tiny_engine(draft_folder=folder, quantization="int8").draft is not None
    with pytest.raises(LoadError, match="trained for other weights"):
        tiny_engine(target=tiny_target(seed=3), draft_folder=folder, quantization="int8")


@pytest.mark.parametrize(
    ("change", "device", "reason"),
    [
        ({}, "cuda", "the device is cuda, and int8 is for the CPU"),
        ({"dtype": torch.float16}, "cpu", "model.dtype is float16, not float32 or bfloat16"),
        ({"model": tiny_model("qwen3_moe")}, "cpu", "it is built in another way"),
    ],
)
def test_int8_on_an_unsupported_device_dtype_or_model_is_refused(
    change: dict[str, object], device: str, reason: str
) -> None:
    target = dataclasses.replace(tiny_target(), **change)  # type: ignore[arg-type]
    with pytest.raises(LoadError, match=r"model.quantization: found int8, but " + reason):
        quantise(INT8, target, torch.device(device))


def test_a_target_with_other_quantised_layers_is_refused() -> None:
    class Foreign(nn.Linear):
        pass

    target = tiny_target()
    attention = target.parts.layers[0].self_attn
    attention.q_proj = Foreign(HIDDEN, HIDDEN)  # type: ignore[union-attr]
    before = copy.copy(dict(target.model.named_modules()))
    with pytest.raises(LoadError, match="its layers are Foreign, not plain ones"):
        quantise(INT8, target, CPU)
    assert dict(target.model.named_modules()) == before
