"""A device's kernels run the draft once at start, and are replaced if they fail."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from draft import DSparkNetwork
from draft.context.stacked_kv import StackedKV
from draft.context.triton_context import FusedContext
from engine import LoadError
from engine.model_setup.draft_check import check_device_backend
from kv_pool import KVPool, ReferenceAttention
from kv_pool.attention.fixed_reference import FixedReference
from tests.support.engine.recorded import graphed_engine, taped
from tests.support.engine.running import generate_alone, greedy_requests, prompts, run_all
from tests.support.engine.tiny_models import (
    CPU,
    VOCAB,
    load_tiny_draft,
    tiny_target,
    write_tiny_draft,
)


@pytest.fixture(scope="module")
def draft_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_draft(tmp_path_factory.mktemp("draft"))


@pytest.fixture
def network(draft_folder: Path) -> DSparkNetwork:
    return load_tiny_draft(draft_folder, tiny_target()).network


class BreaksOnBlocks(FixedReference):
    """Fails for draft blocks only."""

    def plan(self, *, causal: bool, **batch: Any) -> Any:
        if not causal:
            raise RuntimeError("no kernel for this block")
        return super().plan(causal=causal, **batch)


class Causal(FixedReference):
    """Attends causally within a block, which is wrong."""

    def plan(self, *, causal: bool, **batch: Any) -> Any:
        return super().plan(causal=True, **batch)


class Fused(FusedContext):
    """Runs the fused kernel, with an optional mistake."""

    def __init__(self, mistake: str | None = None) -> None:
        self._mistake = mistake

    def write_context_kv(
        self,
        network: DSparkNetwork,
        stacked: StackedKV,
        pool: KVPool,
        aux_hidden: Tensor,
        positions: Tensor,
        slots: Tensor,
    ) -> bool:
        if self._mistake == "breaks":
            raise RuntimeError("no C compiler")
        at = slots.flip(0) if self._mistake == "elsewhere" else slots
        return super().write_context_kv(network, stacked, pool, aux_hidden, positions, at)


def offering(attention: type[ReferenceAttention] = FixedReference, **changes: Any) -> Any:
    return replace(
        taped(),
        make_attention=lambda page_size: attention(page_size=page_size, device=CPU),
        attention="fast",
        **changes,
    )


def test_kernels_that_agree_are_kept(network: DSparkNetwork) -> None:
    offered = offering(context_kernel=Fused())
    assert check_device_backend(network, offered, device=CPU) is offered


@pytest.mark.parametrize("max_len", [6, 20, 40])
def test_short_requests_are_checked_within_their_positions(
    draft_folder: Path, max_len: int
) -> None:
    network = load_tiny_draft(draft_folder, tiny_target(max_len=max_len)).network
    table, pool_slots = network.attentions[0].rotary.num_positions, list[int]()

    class Watching(Fused):
        def write_context_kv(self, *given: Any) -> bool:
            *_, pool, _, positions, slots = given
            assert len(positions) > 0
            assert int(positions.max()) < table, "a GPU would abort"
            assert int(slots.max()) < pool.num_slots
            pool_slots.append(pool.num_slots)
            return False

    checked = check_device_backend(network, offering(context_kernel=Watching()), device=CPU)
    assert checked.context_kernel is not None
    assert checked.context_reason is None
    assert pool_slots


@pytest.mark.parametrize(
    ("attention", "problem"),
    [(BreaksOnBlocks, "no kernel for this block"), (Causal, "it differs by")],
)
def test_attention_that_fails_for_the_draft_is_replaced(
    attention: type[ReferenceAttention],
    problem: str,
    draft_folder: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    built = graphed_engine(draft_folder=draft_folder, device_backend=offering(attention))
    details = built.engine.info.details
    assert f"attention by fast is not used: {problem}" in caplog.text
    assert details["attention"] == "reference"
    assert details["attention_reason"] == "fast attention fails for this draft"
    each = prompts(2, vocab=VOCAB)
    found = run_all(built, greedy_requests(each, 8))
    assert [found[str(i)][0] for i in range(2)] == [
        generate_alone(tiny_target(), p, 8) for p in each
    ]


def test_a_named_attention_that_fails_is_refused(network: DSparkNetwork) -> None:
    offered = offering(BreaksOnBlocks, attention_demanded=True)
    with pytest.raises(LoadError, match="found fast, which fails for this draft: no kernel"):
        check_device_backend(network, offered, device=CPU)


@pytest.mark.parametrize(
    ("mistake", "problem"), [("breaks", "no C compiler"), ("elsewhere", "it differs by")]
)
def test_a_context_kernel_that_fails_or_differs_is_not_used(
    mistake: str, problem: str, network: DSparkNetwork, caplog: pytest.LogCaptureFixture
) -> None:
    found = check_device_backend(network, offering(context_kernel=Fused(mistake)), device=CPU)
    assert f"the fused context kernel is not used: {problem}" in caplog.text
    assert (found.context_kernel, found.attention) == (None, "fast")
    assert found.context_reason == "it fails for this draft"


def test_a_device_without_kernels_has_nothing_checked(network: DSparkNetwork) -> None:
    before = torch.stack([p.data.sum() for p in network.parameters()])
    offered = replace(offering(BreaksOnBlocks), attention="reference")
    assert check_device_backend(network, offered, device=CPU) is offered
    assert torch.equal(before, torch.stack([p.data.sum() for p in network.parameters()]))
