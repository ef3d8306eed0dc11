"""On CUDA the pool takes what weights, largest step and graphs leave of a device."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from engine import LoadError
from engine.config import EngineConfig
from engine.cuda_graphs.capture_sizes import CaptureSizes
from engine.cuda_graphs.memory import GraphSizes
from engine.loading.draft import LoadedDraft
from engine.model_setup import pool_sizing
from engine.model_setup.memory_plan import MemoryPlan
from engine.model_setup.peak_step import PeakStep
from engine.runner import hf_attention as attention_hook
from kv_pool import KVLayout, KVShape
from kv_pool.attention.fixed_reference import FixedReference
from tests.support.engine.tiny_models import CPU, LAYERS, VOCAB, load_tiny_draft, tiny_target
from tests.support.engine.tiny_models import write_tiny_draft as write_draft

MIB = 1024**2
TOTAL, USED, STEP, ROUND = 100 * MIB, 20 * MIB, 7 * MIB, 3 * MIB


def _peak(chunk_tokens: int) -> int:
    return STEP if chunk_tokens else ROUND


def _layout(draft: LoadedDraft, device: torch.device) -> KVLayout:
    layers = (KVShape(2, 16, 16, torch.float32),) * LAYERS
    return KVLayout(4, device, target=layers, draft=draft.network.kv_shapes)


@pytest.fixture(scope="module")
def draft_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_draft(tmp_path_factory.mktemp("draft"))


def planned(draft_folder: Path, *, graphs: bool = False, **settings: object) -> MemoryPlan:
    """Plan for a device of 100 MiB with 20 in use; the largest step takes 7, a round 3."""
    target = tiny_target()
    draft = load_tiny_draft(draft_folder, target)
    config = EngineConfig(target="tiny", draft="d", page_size=4, **settings)  # type: ignore[arg-type]
    with (
        patch.object(torch.cuda, "mem_get_info", lambda device: (TOTAL - USED, TOTAL)),
        patch.object(pool_sizing, "_measure_step", lambda *_, chunk_tokens: _peak(chunk_tokens)),
    ):
        return pool_sizing.plan_pool(
            config,
            target=target,
            draft=draft,
            layout=_layout(draft, torch.device("cuda")),
            attention=FixedReference(page_size=4, device=CPU),
            records_graphs=graphs,
        )


@pytest.mark.parametrize("fraction", [0.5, 0.85])
def test_the_fraction_of_a_device_includes_weights_and_step(
    draft_folder: Path, fraction: float
) -> None:
    plan = planned(draft_folder, memory_fraction=fraction)
    left = int(TOTAL * fraction) - USED - STEP
    assert plan.num_pages == left // plan.bytes_per_page
    assert (plan.step_bytes, plan.graph_bytes) == (STEP, 0)
    assert plan.budget == f"kv.memory_fraction={fraction}"


def test_graphs_keep_their_outputs_a_round_and_one_page(draft_folder: Path) -> None:
    plan = planned(draft_folder, graphs=True, max_running_requests=6)
    rows = 6 * 5  # the largest size, of windows of 4 drafts and the anchor; all sizes share it
    outputs = rows * (VOCAB + 3 * 48) * 4 + 6 * 4 * VOCAB * 4
    assert plan.graph_bytes == outputs + ROUND + plan.bytes_per_page
    left = int(TOTAL * 0.85) - USED - STEP - plan.graph_bytes
    assert plan.num_pages == left // plan.bytes_per_page
    assert plan.describe()["graphs_gib"] == round(plan.graph_bytes / 1024**3, 6)


def test_attention_plans_of_all_captures_are_counted(draft_folder: Path) -> None:
    plain = planned(draft_folder, graphs=True, max_running_requests=6)
    with patch.object(FixedReference, "fixed_plan_bytes", MIB):
        with_plans = planned(draft_folder, graphs=True, max_running_requests=6)
    # 4 capture sizes, each with windows of 1, 4 and 5 rows, greedy blocks and drawn blocks
    assert with_plans.graph_bytes - plain.graph_bytes == 4 * 5 * MIB


def test_a_number_of_pages_is_taken_exactly(draft_folder: Path) -> None:
    plan = planned(draft_folder, num_pages=50)
    assert (plan.num_pages, plan.step_bytes) == (50, STEP)


@pytest.mark.parametrize("graphs", [False, True])
def test_pages_that_leave_a_step_no_memory_are_refused_at_start(
    draft_folder: Path, graphs: bool
) -> None:
    some = planned(draft_folder, num_pages=50, graphs=graphs)
    most = (TOTAL - USED - STEP - some.graph_bytes) // some.bytes_per_page
    assert planned(draft_folder, num_pages=most, graphs=graphs).num_pages == most
    refusal = (
        rf"kv\.num_pages={most + 1}: found [\d.]+ MiB of KV memory; accepted: at most [\d.]+ MiB"
    )
    with pytest.raises(LoadError, match=refusal):
        planned(draft_folder, num_pages=most + 1, graphs=graphs)


def measured(draft_folder: Path, **settings: object) -> int:
    """Run the real measurement of a step on a CPU, where no bytes are counted."""
    target = tiny_target(max_len=100)
    target.model.set_attn_implementation(attention_hook.IMPLEMENTATION)  # type: ignore[operator]
    draft = load_tiny_draft(draft_folder, target)
    names = "synchronize", "reset_peak_memory_stats", "memory_allocated", "max_memory_allocated"
    with patch.multiple(torch.cuda, **{name: lambda *_: 0 for name in names}):
        return pool_sizing._measure_step(
            EngineConfig(target="tiny", draft="d", page_size=4, max_running_requests=6),
            target,
            draft,
            _layout(draft, CPU),
            FixedReference(page_size=4, device=CPU),
            **settings,  # type: ignore[arg-type]
        )


def test_a_step_that_does_not_fit_with_the_weights_is_refused(draft_folder: Path) -> None:
    with (
        patch.object(PeakStep, "run", side_effect=torch.OutOfMemoryError),
        pytest.raises(LoadError, match="a step of 6 sequences and 64 prompt tokens does not fit"),
    ):
        measured(draft_folder, chunk_tokens=64)


@pytest.mark.parametrize("chunk_tokens", [0, 64, 100, 512])
def test_a_chunk_is_no_longer_than_a_request_may_be(draft_folder: Path, chunk_tokens: int) -> None:
    """The draft has no rotary factors for later positions; a GPU would abort."""
    chunks: list[int] = []
    run = PeakStep.run

    def recorded(self: PeakStep, *models: Any, **options: Any) -> None:
        chunks.append(self.chunk_tokens)
        run(self, *models, **options)

    with patch.object(PeakStep, "run", recorded):
        measured(draft_folder, chunk_tokens=chunk_tokens)
    assert chunks == [min(chunk_tokens, 100)]


def test_a_full_device_is_refused_with_numbers(draft_folder: Path) -> None:
    with pytest.raises(LoadError, match=r"kv\.memory_fraction=0\.25: found room for 0 tokens"):
        planned(draft_folder, memory_fraction=0.25)


def test_captures_for_128_sequences_of_the_released_pair_keep_less_than_one_gigabyte() -> None:
    sizes = GraphSizes(
        capture_sizes=CaptureSizes.up_to(128),
        widths=(1, 4, 8),
        vocab_size=151936,
        aux_size=5 * 4096,
        block_size=7,
        itemsize=2,
    )
    assert sizes.output_bytes < 1e9
