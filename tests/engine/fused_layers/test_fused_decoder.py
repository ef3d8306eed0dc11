"""Fused layers compute what transformers computes, in a counted number of kernels."""

import copy
import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from engine.config import EngineConfig
from engine.fused_layers import layer_kernels
from engine.fused_layers.fused_decoder import FusedDecoder, FusedLayers, FusedLayersUnavailable
from engine.loading.quantization import quantise
from engine.loading.target import LoadedTarget, dense_reference
from engine.model_setup.device_backend import choose_device_backend
from engine.runner.batch import batch_of_rows
from kv_pool import (
    AttentionBackend,
    AttentionOptions,
    KVLayout,
    KVPool,
    KVShape,
    ReferenceAttention,
)
from tests.support.engine.described_families import DESCRIBED, MAX_LEN, described_target
from tests.support.engine.families import VOCAB, WINDOW
from tests.support.engine.running import greedy_requests, run_all
from tests.support.engine.tiny_models import CPU, tiny_engine

LENGTH = WINDOW + 12
TAPS = (-1, 0, 2)
NORMED_BY_ROWS = ("OLMo 2", "OLMo 3")  # all heads together
FUSED = [name for name in DESCRIBED if name not in NORMED_BY_ROWS]
PAGE_SIZE = 4
# Operators that launch no kernel.
_VIEWS = (
    *("view", "as_strided", "slice", "select", "t", "transpose", "_unsafe_view", "empty"),
    *("new_empty", "empty_like", "alias", "detach", "unsqueeze", "expand", "reshape", "flatten"),
)


def _pool(layers: FusedLayers, dtype: torch.dtype = torch.float32) -> KVPool:
    target = layers.described
    shape = KVShape(target.num_kv_heads, target.head_dim, target.head_dim, dtype)
    return KVPool(KVLayout(PAGE_SIZE, CPU, target=(shape,) * len(layers.layers)), num_pages=16)


def _decoder(
    layers: FusedLayers, attention: AttentionBackend | None = None, taps: tuple[int, ...] = TAPS
) -> FusedDecoder:
    return FusedDecoder(
        layers,
        pool=_pool(layers, layers.described.embedding.dtype),
        attention=attention or ReferenceAttention(page_size=PAGE_SIZE, device=CPU),
        tap_layers=taps,
    )


def _run(target: LoadedTarget, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Run two chunks of a text, over pages."""
    decoder = _decoder(FusedLayers(target.model, max_len=MAX_LEN))
    logits, taps = [], []
    for start, stop in ((0, LENGTH - 5), (LENGTH - 5, LENGTH)):
        batch = batch_of_rows([(ids, list(range(15, -1, -1)), start, stop)], page_size=PAGE_SIZE)
        for found, kept in zip(decoder.run(batch), (logits, taps), strict=True):
            kept.append(found)
    return torch.cat(logits), torch.cat(taps)


@pytest.mark.parametrize("name", FUSED)
@torch.inference_mode()
def test_fused_layers_compute_what_transformers_computes(name: str) -> None:
    target = described_target(name)
    ids = torch.arange(LENGTH) * 7919 % VOCAB
    for found, expected in zip(
        _run(target, ids), dense_reference(target.model, TAPS, ids[None]), strict=True
    ):
        assert (found - expected).abs().max() < 1e-5 * expected.abs().max()


@pytest.mark.parametrize("name", ["Qwen 3", "Gemma 3"])
@torch.inference_mode()
def test_bfloat16_layers_are_as_close_to_float32_as_their_rounding(name: str) -> None:
    """Triton's interpreter rounds to bfloat16 toward zero, which doubles the error."""
    target = described_target(name, torch.bfloat16)
    ids = torch.arange(LENGTH) * 7919 % VOCAB
    exact = dense_reference(copy.deepcopy(target.model).float(), TAPS, ids[None])
    theirs = dense_reference(target.model, TAPS, ids[None])
    for found, other, truth in zip(_run(target, ids), theirs, exact, strict=True):
        assert found.dtype == torch.bfloat16
        assert (found - truth).abs().mean() < 3 * (other - truth).abs().mean()


@pytest.mark.parametrize("name", NORMED_BY_ROWS)
def test_heads_that_are_normed_together_are_refused(name: str) -> None:
    with pytest.raises(FusedLayersUnavailable, match="norms all heads of a row together"):
        FusedLayers(described_target(name).model, max_len=MAX_LEN)


def test_int8_matrices_and_unknown_layers_are_refused() -> None:
    quantised = quantise(
        EngineConfig(target="t", quantization="int8"), described_target("Llama"), CPU
    )
    with pytest.raises(FusedLayersUnavailable, match="int8"):
        FusedLayers(quantised.model, max_len=MAX_LEN)


@torch.inference_mode()
def test_merged_projections_are_views_of_one_storage_and_follow_changes() -> None:
    target = described_target("Qwen 3")
    names = [name for name, _ in target.model.named_parameters()]
    size = sum(p.nbytes for p in target.model.parameters())
    layers = FusedLayers(target.model, max_len=MAX_LEN)
    assert [name for name, _ in target.model.named_parameters()] == names
    assert sum(p.nbytes for p in target.model.parameters()) == size
    attention = target.model.get_submodule("model.layers.1.self_attn")
    storages = {
        attention.get_parameter(f"{name}.weight").untyped_storage().data_ptr()
        for name in ("q_proj", "k_proj", "v_proj")
    }
    assert storages == {layers.layers[1].qkv.weight.untyped_storage().data_ptr()}
    again = FusedLayers(target.model, max_len=MAX_LEN)
    assert again.layers[1].qkv.weight.data_ptr() == layers.layers[1].qkv.weight.data_ptr()
    attention.get_parameter("k_proj.weight").data.zero_()
    rows = layers.layers[1].qkv.weight
    assert bool((rows[64:96] == 0).all())
    assert bool((rows[:64] != 0).all())


class _Launches:
    """Counts the launches of a kernel in place of running it."""

    def __init__(self, name: str, counts: Counter[str]) -> None:
        self._name, self._counts = name, counts

    def __getitem__(self, grid: object) -> Callable[..., None]:
        def launch(*args: object, **options: object) -> None:
            self._counts[self._name] += 1

        return launch


class _Operators(TorchDispatchMode):
    """Counts operators that launch a kernel."""

    def __init__(self, counts: Counter[str]) -> None:
        super().__init__()
        self._counts = counts

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().split("::")[1].split(".")[0]
        if name not in _VIEWS:
            self._counts[name] += 1
        return func(*args, **(kwargs or {}))


class _NoAttention:
    """An attention whose kernels are not counted."""

    page_size = PAGE_SIZE
    name = "none"

    def plan(self, **kwargs: object) -> "_NoAttention":
        return self

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, options: AttentionOptions
    ) -> Tensor:
        return query


@pytest.mark.parametrize(("name", "budget"), [("Qwen 3", 8), ("Gemma 3", 8), ("Granite", 10)])
@torch.inference_mode()
def test_a_layer_launches_so_many_kernels_besides_attention(
    name: str, budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most 13 with attention, which has two where its keys are split."""
    counts: Counter[str] = Counter()
    for kernel in ("_add_and_norm", "_rotate_and_store", "_activate"):
        monkeypatch.setattr(layer_kernels, kernel, _Launches(kernel, counts))
    layers = FusedLayers(described_target(name).model, max_len=MAX_LEN)
    batch = batch_of_rows([(torch.zeros(8, dtype=torch.long), [0, 1], 0, 8)], page_size=PAGE_SIZE)
    totals = []
    for used in (layers.layers, layers.layers[:1]):
        layers.layers = used
        decoder = _decoder(layers, _NoAttention(), taps=())  # type: ignore[arg-type]
        counts.clear()
        with _Operators(counts):
            decoder.run(batch)
        totals.append(counts.total())
    assert totals[0] - totals[1] == 2 * budget
    assert budget + 2 <= 13


@pytest.mark.parametrize("name", ["Qwen 3", "Gemma 3"])
def test_an_engine_runs_fused_layers_where_its_device_has_them(name: str) -> None:
    config = EngineConfig(target="tiny")
    plain = choose_device_backend(config, CPU)
    assert not plain.fuses_layers
    prompt = [5, 7, 11, 2, 9] * 3
    texts = []
    for backend in (plain, dataclasses.replace(plain, fuses_layers=True)):
        built = tiny_engine(
            target=described_target(name), device_backend=backend, native_kernels="off"
        )
        details: Any = built.engine.info.details["target"]
        texts.append(run_all(built, greedy_requests([prompt], 12))["0"][0])
    assert details["small_steps"] == {"path": "triton", "reason": None}
    assert texts[0] == texts[1]


def test_layers_that_disagree_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    run = FusedDecoder.run

    def wrong(self: FusedDecoder, batch: Any) -> tuple[Tensor, Tensor]:
        logits, taps = run(self, batch)
        return logits + 1, taps

    monkeypatch.setattr(FusedDecoder, "run", wrong)
    backend = choose_device_backend(EngineConfig(target="tiny"), CPU)
    built = tiny_engine(
        target=described_target("Llama"),
        device_backend=dataclasses.replace(backend, fuses_layers=True),
        native_kernels="off",
    )
    details: Any = built.engine.info.details["target"]
    assert details["small_steps"] == {
        "path": "transformers",
        "reason": "fused layers fail or do not agree with the model",
    }
