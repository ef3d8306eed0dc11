"""Pages from bytes: arithmetic that is printed, and refusals with numbers."""

from pathlib import Path

import pytest

from engine import LoadError
from engine.model_setup.memory_plan import GIB, MemoryPlan, cuda_budget, pages_for_budget, size_text
from tests.support.engine.tiny_models import tiny_engine, write_tiny_draft


def test_a_budget_buys_whole_pages() -> None:
    pages = pages_for_budget(
        budget_bytes=1000, bytes_per_page=300, page_size=16, min_tokens=32, budget="b"
    )
    assert pages == 3


def test_a_pool_too_small_for_one_request_is_refused_with_numbers() -> None:
    with pytest.raises(
        LoadError, match=r"kv\.memory_gib=0\.001 leaves room for 16 tokens.* at least 37"
    ):
        pages_for_budget(
            budget_bytes=500,
            bytes_per_page=300,
            page_size=16,
            min_tokens=37,
            budget="kv.memory_gib=0.001",
        )


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (2.5 * GIB, "2.50 GiB"),
        (GIB // 2, "0.50 GiB"),
        (99 << 20, "99 MiB"),
        (5 << 20, "5 MiB"),
        (32 << 10, "0.0312 MiB"),
        (0, "0 MiB"),
    ],
)
def test_a_size_is_told_in_a_unit_that_shows_it(size: float, text: str) -> None:
    assert size_text(size) == text


def test_on_cuda_weights_and_the_largest_step_come_first() -> None:
    left = cuda_budget(
        total_bytes=80 * GIB,
        fraction=0.85,
        used_bytes=20 * GIB,
        step_bytes=4 * GIB,
        graph_bytes=6 * GIB,
    )
    assert left == 38 * GIB


def test_the_plan_says_what_takes_how_much(tmp_path: Path) -> None:
    built = tiny_engine(
        draft_folder=write_tiny_draft(tmp_path),
        num_pages=64,
        page_size=4,
        native_kernels="off",  # they want whole large pages, of which a tiny model fills a part
    )
    plan: MemoryPlan = built.memory
    per_token = 5 * 2 * (16 + 16) * 4 + 2 * 2 * (12 + 12) * 4
    assert plan.bytes_per_page == 4 * per_token
    assert plan.pool_bytes == 64 * 4 * per_token
    model = built.target.model
    assert plan.target_bytes == sum(t.nbytes for t in (*model.parameters(), *model.buffers()))
    assert built.draft is not None
    own = {n: p for n, p in built.draft.network.named_parameters() if "embed" not in n}
    assert 0 < plan.draft_bytes <= sum(p.nbytes for p in own.values()) * 1.5
    assert built.engine.info.details["memory"] == dict(plan.describe())


@pytest.mark.parametrize(
    "settings", [{"num_pages": 10**15}, {"num_pages": None, "memory_gib": 1e6}]
)
def test_a_pool_beyond_the_machines_memory_is_refused_with_numbers(
    settings: dict[str, float],
) -> None:
    with pytest.raises(LoadError, match=r"asks for .* GiB of KV memory; this machine has .* GiB"):
        tiny_engine(**settings)


def test_memory_gib_sizes_the_pool_on_cpu() -> None:
    built = tiny_engine(num_pages=None, memory_gib=0.01)
    assert built.memory.num_pages == int(0.01 * GIB) // built.memory.bytes_per_page
