"""What a device offers for a draft is run once before anybody asks, and left out if it fails."""

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
    """Does all that a target asks for."""

    def plan(self, *, causal: bool, **batch: Any) -> Any:
        if not causal:
            raise RuntimeError("no kernel for this block")
        return super().plan(causal=causal, **batch)


class Causal(FixedReference):
    """Never shows a block what stands behind."""

    def plan(self, *, causal: bool, **batch: Any) -> Any:
        return super().plan(causal=True, **batch)


class Fused(FusedContext):
    """As the kernel, with a mistake if asked for."""

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


def test_what_agrees_is_kept(network: DSparkNetwork) -> None:
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
            assert int(positions.max()) < table, "a GPU would stop at once"
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
def test_attention_that_does_not_do_the_draft_is_left_out(
    attention: type[ReferenceAttention],
    problem: str,
    draft_folder: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    built = graphed_engine(draft_folder=draft_folder, device_backend=offering(attention))
    details = built.engine.info.details
    assert f"attention by fast is left out: {problem}" in caplog.text
    assert details["attention"] == "reference"
    assert details["attention_reason"] == "fast attention does not do this draft here"
    asked = prompts(2, vocab=VOCAB)
    found = run_all(built, greedy_requests(asked, 8))
    assert [found[str(i)][0] for i in range(2)] == [
        generate_alone(tiny_target(), p, 8) for p in asked
    ]


def test_attention_that_was_asked_for_is_refused_instead(network: DSparkNetwork) -> None:
    offered = offering(BreaksOnBlocks, attention_demanded=True)
    with pytest.raises(LoadError, match="'fast', which does not do this draft: no kernel"):
        check_device_backend(network, offered, device=CPU)


@pytest.mark.parametrize(
    ("mistake", "problem"), [("breaks", "no C compiler"), ("elsewhere", "it differs by")]
)
def test_a_context_kernel_that_breaks_or_differs_is_left_out(
    mistake: str, problem: str, network: DSparkNetwork, caplog: pytest.LogCaptureFixture
) -> None:
    found = check_device_backend(network, offering(context_kernel=Fused(mistake)), device=CPU)
    assert f"the fused context write is left out: {problem}" in caplog.text
    assert (found.context_kernel, found.attention) == (None, "fast")
    assert found.context_reason == "it does not do this draft here"


def test_a_device_that_offers_nothing_has_nothing_checked(network: DSparkNetwork) -> None:
    before = torch.stack([p.data.sum() for p in network.parameters()])
    offered = replace(offering(BreaksOnBlocks), attention="reference")
    assert check_device_backend(network, offered, device=CPU) is offered
    assert torch.equal(before, torch.stack([p.data.sum() for p in network.parameters()]))
