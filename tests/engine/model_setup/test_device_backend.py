"""The fastest parts that are installed and allowed are chosen, with a reason for the others."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch

from engine import LoadError
from engine.config import EngineConfig
from engine.cuda_graphs.tape import TapeCapturer
from engine.model_setup import device_backend
from engine.model_setup.device_backend import DeviceBackend, choose_device_backend
from kv_pool import KVPool, ReferenceAttention
from kv_pool.attention.flashinfer import FlashInferAttention
from kv_pool.attention.flashinfer_workspace import WORKSPACE_BYTES
from kv_pool.attention.triton_attention import DeviceLimits, TritonAttention
from tests.support.engine.tiny_models import CPU, tiny_engine
from tests.support.kv_pool.fake_flashinfer import FakeWrapper

CUDA = torch.device("cuda")


@contextmanager
def installed(*packages: str) -> Iterator[None]:
    with (
        patch.object(device_backend, "find_spec", lambda name: name if name in packages else None),
        patch.object(device_backend, "CudaCapturer", lambda device: TapeCapturer()),
        patch.object(DeviceLimits, "of", lambda device: DeviceLimits(232_448, 132)),
    ):
        yield


def chosen(device: torch.device = CUDA, **settings: object) -> DeviceBackend:
    return choose_device_backend(EngineConfig(target="t", **settings), device)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("packages", "attention", "reason"),
    [
        (["flashinfer", "triton"], "flashinfer", None),
        (["triton"], "triton", None),
        ([], "reference", "triton is not installed"),
    ],
)
def test_cuda_gets_the_fastest_attention_that_is_installed(
    packages: list[str], attention: str, reason: str | None
) -> None:
    with installed(*packages):
        found = chosen()
    assert (found.attention, found.attention_reason) == (attention, reason)
    assert (found.context_kernel is not None) == ("triton" in packages)
    assert (found.capturer is not None) == (attention != "reference")


def test_float32_gets_the_attention_that_has_kernels_for_it() -> None:
    with installed("flashinfer", "triton"):
        found = chosen(dtype="float32")
        assert chosen(dtype="float16").attention == "flashinfer"
    assert (found.attention, found.attention_reason) == ("triton", None)
    with installed("flashinfer"):
        assert chosen(dtype="float32").attention == "flashinfer"


def test_a_cpu_gets_reference_attention_with_reasons() -> None:
    found = chosen(CPU)
    assert found.attention == "reference"
    assert found.attention_reason == "triton's kernels are for CUDA"
    assert found.context_reason == "triton's kernels are for CUDA"
    assert found.graphs_reason == "graphs are for CUDA"
    assert isinstance(found.make_attention(4), ReferenceAttention)


def test_a_named_attention_is_chosen_or_refused() -> None:
    with installed("flashinfer", "triton"):
        assert chosen(attention_backend="triton").attention == "triton"
        assert chosen(attention_backend="reference").graphs_reason == (
            "reference attention has no fixed shapes"
        )
    with installed("triton"), pytest.raises(LoadError, match="flashinfer is not installed"):
        chosen(attention_backend="flashinfer")
    with pytest.raises(LoadError, match="found triton, but triton's kernels are for CUDA"):
        chosen(CPU, attention_backend="triton")


def test_graphs_can_be_switched_off() -> None:
    with installed("triton"):
        found = chosen(graphs="off")
    assert (found.capturer, found.graphs_reason) == (None, "device.graphs is 'off'")


def test_each_model_gets_a_separate_attention() -> None:
    with installed("triton"):
        make = chosen(CUDA).make_attention
        assert isinstance(make(4), TritonAttention)
        assert make(4) is not make(4)


def test_every_flashinfer_attention_shares_one_workspace(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One for both models, eager and captured; it exists before the pool is sized."""
    module = SimpleNamespace(BatchPrefillWithPagedKVCacheWrapper=FakeWrapper)
    monkeypatch.setitem(sys.modules, "flashinfer", module)
    with caplog.at_level(logging.INFO):
        make = device_backend._flashinfer_maker(CPU)
    assert "building its kernels takes minutes" in caplog.text
    one, other = make(4), make(16)
    assert isinstance(one, FlashInferAttention)
    assert isinstance(other, FlashInferAttention)
    assert one is not other
    assert one._workspace is other._workspace
    assert one._workspace.at_least(1).nbytes == WORKSPACE_BYTES


def test_a_failing_attention_is_replaced_by_the_next_best() -> None:
    with installed("flashinfer", "triton"):
        fastest = chosen()
        second = fastest.slower("draft", "it broke", CUDA)
        last = second.slower("target", "so did this", CUDA)
    assert (second.attention, second.attention_reason) == (
        "triton",
        "flashinfer attention fails for this draft",
    )
    assert second.capturer is fastest.capturer
    assert (last.attention, last.capturer) == ("reference", None)
    assert last.attention_reason == "triton attention fails for this target"


class _Broken(ReferenceAttention):
    name = "broken"

    def plan(self, **batch: object) -> object:  # type: ignore[override]
        raise RuntimeError("the compiler gave up")


def broken(*, demanded: bool) -> DeviceBackend:
    return DeviceBackend(
        make_attention=lambda page_size: _Broken(page_size=page_size, device=CPU),
        attention="broken",
        attention_reason=None,
        attention_demanded=demanded,
        context_kernel=None,
        context_reason=None,
        capturer=TapeCapturer(),
        graphs_reason=None,
    )


def test_attention_that_fails_the_target_check_is_replaced_unless_the_config_names_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    built = tiny_engine(device_backend=broken(demanded=False), native_kernels="off")
    details = built.engine.info.details
    assert details["attention"] == "reference"
    assert details["attention_reason"] == "broken attention fails for this target"
    assert details["graphs"] == {"tiers": [], "reason": "reference attention has no fixed shapes"}
    assert "the compiler gave up" in caplog.text
    assert isinstance(built.pool, KVPool)
    assert built.pool.num_pages == built.memory.num_pages
    with pytest.raises(LoadError, match="found broken, which fails for this target: the compiler"):
        tiny_engine(device_backend=broken(demanded=True), native_kernels="off")
