"""The same promises on CUDA. Not run where there is no device."""

from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch.autograd import DeviceType

from engine import EngineSamplingParams, Request
from engine.build import load_engine
from engine.config import EngineConfig
from engine.core.offline import drive
from engine.cuda_graphs import CudaCapturer, Recording
from engine.loading.fused_norms import fuse_norms
from kv_pool import ReferenceAttention
from kv_pool.attention.flashinfer import FlashInferAttention, load_wrapper
from kv_pool.attention.flashinfer_workspace import Workspace
from tests.support.engine.running import generate_alone, prompts
from tests.support.engine.tiny_models import VOCAB, tiny_model, tiny_target, write_tiny_draft
from tests.support.kv_pool.oracle import Heads, Options, attend_dense, make_batch

Attention = Literal["triton", "reference"]

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def _saved(tmp_path: Path) -> tuple[str, str]:
    tiny_model("llama").save_pretrained(tmp_path / "target")  # type: ignore[operator]
    return str(tmp_path / "target"), str(write_tiny_draft(tmp_path / "draft"))


@pytest.mark.parametrize("attention", ["triton", "reference"])
@pytest.mark.parametrize("graphs", ["auto", "off"])
@pytest.mark.parametrize("speculates", [True, False])
def test_greedy_text_on_cuda_in_float32_equals_transformers(
    tmp_path: Path, speculates: bool, graphs: Literal["auto", "off"], attention: Attention
) -> None:
    target, draft = _saved(tmp_path)
    config = EngineConfig(
        target=target,
        draft=draft if speculates else None,
        device="cuda",
        dtype="float32",
        max_model_len=160,
        num_pages=128,
        graphs=graphs,
        attention_backend=attention,
    )
    built = load_engine(config, device=torch.device("cuda"))
    details: Any = built.engine.info.details["graphs"]
    assert bool(details["tiers"]) == (graphs == "auto" and attention == "triton"), details
    asked = prompts(4, vocab=VOCAB)
    requests = [
        Request(str(i), tuple(p), EngineSamplingParams(max_new_tokens=24))
        for i, p in enumerate(asked)
    ]
    runs = drive(built.engine, requests, concurrency=4)
    for run, prompt in zip(runs, asked, strict=True):
        assert run.token_ids == generate_alone(tiny_target(), prompt, 24)


def test_flashinfer_attention_is_dense_attention_eagerly_and_in_fixed_shapes() -> None:
    pytest.importorskip("flashinfer")
    device = torch.device("cuda")
    batch = make_batch(
        query_lens=[6, 6],
        kv_lens=[30, 900],
        page_size=16,
        heads=Heads(8, 2, 128, 128),
        dtype=torch.bfloat16,
    )
    backend = FlashInferAttention(
        page_size=16,
        workspace=Workspace(device),
        make_wrapper=load_wrapper(),
        fallback=ReferenceAttention(page_size=16, device=device),
    )
    tables = {"kv_lens": batch.kv_lens, "page_tables": batch.page_tables}
    for options in (Options(), Options(causal=False), Options(window=7)):
        fixed = backend.fixed_plan(
            num_sequences=2, query_len=6, max_pages=64, causal=options.causal
        )
        fixed.update(**tables)
        eager = backend.plan(query_lens=batch.query_lens, causal=options.causal, **tables)
        wanted = attend_dense(batch, options, scale=0.05)
        for plan in (fixed, eager):
            on_device = (x.to(device) for x in (batch.query, batch.keys, batch.values))
            found = plan.attend(*on_device, options.scaled(0.05))
            torch.testing.assert_close(found.cpu().double(), wanted, atol=2e-2, rtol=2e-2)


def test_bfloat16_sizes_its_pool_by_the_devices_memory_and_ends_every_request(
    tmp_path: Path,
) -> None:
    target, draft = _saved(tmp_path)
    config = EngineConfig(
        target=target, draft=draft, device="cuda", max_model_len=160, memory_fraction=0.2
    )
    built = load_engine(config, device=torch.device("cuda"))
    details = built.engine.info.details
    assert details["dtype"] == "bfloat16"
    assert details["attention_reason"] is None, "the draft's check left something out"
    assert built.context_kernel is not None
    assert built.memory.step_bytes > 0
    assert built.memory.graph_bytes > 0
    total = torch.cuda.mem_get_info()[1]
    assert 0.05 * total < built.memory.pool_bytes < 0.2 * total
    requests = [
        Request(
            str(i),
            tuple(p),
            EngineSamplingParams(max_new_tokens=24, temperature=float(i % 2), seed=i),
        )
        for i, p in enumerate(prompts(6, vocab=VOCAB))
    ]
    runs = drive(built.engine, requests, concurrency=6)
    assert all(run.finish is not None for run in runs)
    assert built.engine.snapshot().num_used_pages == 0


def test_a_replay_reads_its_own_memory_whatever_is_allocated_after_the_recording() -> None:
    device = torch.device("cuda")
    x = torch.tensor([1.0, 2.0, 3.0], device=device)

    def record_over_rows_of_its_own() -> Recording[torch.Tensor]:
        rows = torch.tensor([2, 0], device=device)
        return CudaCapturer(device).capture(lambda: x[rows] * 2)

    recording = record_over_rows_of_its_own()
    others = [torch.ones(2, dtype=torch.long, device=device) for _ in range(256)]
    recording.replay()
    assert recording.outputs.tolist() == [6.0, 2.0]
    assert len(others) == 256


def test_the_norms_of_a_target_are_one_kernel_each() -> None:
    model = tiny_model("qwen3").to("cuda", torch.bfloat16)
    ids = torch.arange(20, device="cuda")[None]

    def kernels() -> int:
        with torch.inference_mode(), torch.profiler.profile() as profile:
            model(input_ids=ids, use_cache=False)
            torch.cuda.synchronize()
        return sum(event.device_type == DeviceType.CUDA for event in profile.events() or ())

    kernels()
    written_out = kernels()
    num_norms = fuse_norms(model)
    assert num_norms > 0
    assert kernels() <= written_out - 6 * num_norms
