"""The step that is measured at start is as large as a step can become."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from draft import DSparkProposer
from engine import EngineSamplingParams, Request
from engine.model_setup.peak_step import PeakStep
from engine.runner.target_model import TargetModel
from engine.sampling import verify_step as verifier
from engine.sampling.draft_token_masks import DraftTokenMasks
from engine.sampling.token_masks import TokenMasks
from tests.support.engine.running import prompts, run_all
from tests.support.engine.tiny_models import CPU, VOCAB, tiny_engine, write_tiny_draft

RUNNING, CHUNK, BLOCK = 20, 24, 4


@pytest.fixture(scope="module")
def draft_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_draft(tmp_path_factory.mktemp("draft"), block_size=BLOCK)


def largest(*, speculates: bool, chunk: int = CHUNK) -> PeakStep:
    width = BLOCK if speculates else 0
    return PeakStep(
        max_running=RUNNING,
        num_draft_tokens=width,
        block_size=width,
        num_slots=width,
        chunk_tokens=chunk,
        page_size=4,
    )


@contextmanager
def watched() -> Iterator[dict[str, list[Any]]]:
    """Count the rows of passes, blocks and context writes, and the distributions at one time."""
    names = ("passes", "blocks", "writes", "drawn", "masked", "masked drafts")
    seen: dict[str, list[Any]] = {name: [] for name in names}
    forward, propose, write = (
        TargetModel.forward,
        DSparkProposer.propose,
        DSparkProposer.write_context,
    )
    probs = verifier.target_probs

    def counted_forward(self: Any, batch: Any) -> Any:
        seen["passes"].append((len(batch.token_ids), len(batch.logit_rows)))
        return forward(self, batch)

    def counted_propose(self: Any, request: Any) -> Any:
        block = propose(self, request)
        drawn = None if block.draft_probs is None else len(block.draft_probs)
        seen["blocks"].append((len(request.context_lens), drawn))
        return block

    def counted_write(self: Any, aux_hidden: Any, positions: Any, slots: Any) -> None:
        seen["writes"].append(len(slots))
        write(self, aux_hidden, positions, slots)

    apply, allowed = TokenMasks.apply, DraftTokenMasks.allowed

    def counted_masks(self: TokenMasks, *tensors: Any) -> None:
        seen["masked"].append(self.num_rows)
        apply(self, *tensors)

    def counted_allowed(self: DraftTokenMasks) -> Any:
        mask = allowed(self)
        seen["masked drafts"].append(len(mask))
        return mask

    def counted_probs(logits: Any, params: Any, **size: Any) -> Any:
        seen["drawn"].append(logits.shape[0])
        return probs(logits, params, **size)

    with (
        patch.object(TargetModel, "forward", counted_forward),
        patch.object(DSparkProposer, "propose", counted_propose),
        patch.object(DSparkProposer, "write_context", counted_write),
        patch.object(verifier, "target_probs", counted_probs),
        patch.object(TokenMasks, "apply", counted_masks),
        patch.object(DraftTokenMasks, "allowed", counted_allowed),
    ):
        yield seen


def run(folder: Path | None, step: PeakStep) -> dict[str, list[Any]]:
    built = tiny_engine(draft_folder=folder, native_kernels="off")
    with torch.inference_mode(), watched() as seen:
        step.run(built.runner, built.proposer, device=CPU)
    return seen


def test_it_is_a_round_of_all_sequences_and_a_chunk_with_logits_of_every_row(
    draft_folder: Path,
) -> None:
    seen = run(draft_folder, largest(speculates=True))
    rows = RUNNING * (BLOCK + 1) + CHUNK
    assert seen["passes"] == [(rows, rows)]
    assert seen["blocks"] == [(RUNNING, RUNNING)]  # all of them draw
    assert seen["writes"] == [rows]
    assert sum(seen["drawn"]) == RUNNING + 1


def test_every_row_of_it_has_a_grammars_mask(draft_folder: Path) -> None:
    seen = run(draft_folder, largest(speculates=True))
    assert seen["masked"] == [RUNNING * (BLOCK + 1) + 1]
    assert seen["masked drafts"] == [RUNNING] * BLOCK
    assert run(None, largest(speculates=False))["masked"] == [RUNNING + 1]


def test_without_a_chunk_it_is_the_rounds_that_graphs_capture(draft_folder: Path) -> None:
    seen = run(draft_folder, largest(speculates=True, chunk=0))
    assert seen["passes"] == [(RUNNING * (BLOCK + 1), RUNNING * (BLOCK + 1))]
    assert seen["blocks"] == [(RUNNING, RUNNING)]  # a recording that draws needs more memory
    assert seen["drawn"] == []  # the verdict is outside of graphs
    assert seen["masked"] == seen["masked drafts"] == []


def test_without_a_draft_it_is_a_row_of_each_sequence_and_a_chunk() -> None:
    seen = run(None, largest(speculates=False))
    assert seen["passes"] == [(RUNNING + CHUNK, RUNNING + CHUNK)]
    assert (seen["blocks"], seen["writes"]) == ([], [])


def test_the_end_of_a_prompt_after_a_long_context_is_run(draft_folder: Path) -> None:
    built = tiny_engine(draft_folder=draft_folder, native_kernels="off")
    seen: list[tuple[Any, Any]] = []
    forward = TargetModel.forward

    def recorded(self: Any, batch: Any) -> Any:
        seen.append((batch.query_lens, batch.kv_lens))
        return forward(self, batch)

    with torch.inference_mode(), patch.object(TargetModel, "forward", recorded):
        for max_len in (160, 5000, 40):
            largest(speculates=True).run_tail(built.runner, max_len=max_len, device=CPU)
    assert seen == [((64,), (160,)), ((64,), (1024,)), ((40,), (40,))]


def test_the_end_of_a_prompt_uses_the_kernel_that_merges_split_keys() -> None:
    """No other start-up pass without graphs uses that kernel."""
    attention = pytest.importorskip("kv_pool.attention.triton_schedule")
    for num_heads, num_kv_heads in ((32, 8), (40, 8), (16, 16)):
        queries = 64 // (num_heads // num_kv_heads)
        found = attention.schedule(
            attention.tile_table([64], queries),
            queries=queries,
            query_lens=[64],
            kv_lens=[1024],
            causal=True,
            window=None,
            num_programs=264 // num_kv_heads,
        )
        assert len(found.merges) > 0


def test_at_most_16_sequences_have_their_distributions_at_one_time(draft_folder: Path) -> None:
    built = tiny_engine(
        draft_folder=draft_folder, max_running_requests=40, num_pages=600, native_kernels="off"
    )
    requests = [
        Request(str(i), tuple(p), EngineSamplingParams(max_new_tokens=6, temperature=0.9, seed=i))
        for i, p in enumerate(prompts(40, vocab=VOCAB, high=4))
    ]
    with watched() as seen:
        together = run_all(built, requests)
    assert max(seen["drawn"]) == 16
    assert max(count for count, _ in seen["blocks"]) > 32
    for one in requests[::13]:
        assert run_all(built, [one])[one.request_id][0] == together[one.request_id][0]
