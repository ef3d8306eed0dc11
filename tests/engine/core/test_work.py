"""Counts the passes, reads and writes of steps, which do not depend on the machine.

The scenario: three prompts of 40, 20 and 9 tokens, 12 output tokens each, prompt chunks of 32
tokens, blocks of 4 draft tokens, pages of 4 tokens.
"""

import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from engine import EngineSamplingParams, Request
from engine.build import Built
from engine.cpu_kernels.decoder import CpuDecoder
from engine.runner.batch import ScheduleBatch
from tests.support.engine.running import generate_alone, oracle
from tests.support.engine.tiny_models import (
    LAYERS,
    VOCAB,
    tiny_engine,
    tiny_target,
    write_tiny_draft,
)
from tests.support.engine.work import Work, run_counting

PROMPTS = (40, 20, 9)
NEW_TOKENS = 12
BLOCK = 4
FLOAT = 4  # bytes
KV_HEADS, TARGET_DIM, DRAFT_LAYERS, DRAFT_DIM = 2, 16, 2, 16

Make = Callable[..., Built]


@pytest.fixture(scope="module")
def draft_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_draft(tmp_path_factory.mktemp("draft"), block_size=BLOCK, head_dim=DRAFT_DIM)


@pytest.fixture
def make(draft_folder: Path) -> Make:
    """make(native="auto" or "off", speculates=True, dtype=...) builds an engine."""

    def engine(
        *, native: str, speculates: bool = True, dtype: torch.dtype = torch.float32
    ) -> Built:
        target = tiny_target(has_eos=False)
        if dtype != torch.float32:
            target = replace(target, model=copy.deepcopy(target.model).to(dtype), dtype=dtype)
        built = tiny_engine(
            target=target,
            draft_folder=draft_folder if speculates else None,
            native_kernels=native,
        )
        if native != "off" and not _is_native(built):
            pytest.skip("native kernels are not available")
        return built

    return engine


def _is_native(built: Built) -> bool:
    target: Any = built.engine.info.details["target"]
    return bool(target["small_steps"]["path"] == "native")


def requests(lengths: tuple[int, ...] = PROMPTS) -> list[Request]:
    generator = torch.Generator().manual_seed(11)
    return [
        Request(
            str(i),
            tuple(torch.randint(1, VOCAB - 1, (length,), generator=generator).tolist()),
            EngineSamplingParams(max_new_tokens=NEW_TOKENS),
        )
        for i, length in enumerate(lengths)
    ]


def texts(given: list[Request]) -> list[list[int]]:
    """Return what the target generates alone, a few tokens beyond the limit."""
    target = tiny_target(has_eos=False)
    return [[*r.prompt_ids, *generate_alone(target, r.prompt_ids, 20)] for r in given]


def steady(steps: list[Work]) -> list[Work]:
    """Return the steps in which all three requests verify a whole block."""
    width = BLOCK + 1
    return [step for step in steps if step.passes == [(3 * width, 3 * width)]]


@pytest.mark.parametrize("native", ["auto", "off"])
def test_prompts_are_computed_once_and_rounds_compute_a_window_each(
    make: Make, native: str
) -> None:
    given = requests()
    with oracle(texts(given), good=0, vocab=VOCAB):  # no draft is accepted: one token per round
        steps = run_counting(make(native=native), given)
    assert all(len(step.passes) == 1 for step in steps)  # one pass of the target a step
    # 69 prompt tokens, each of them once: two chunks of 32, of which the second ends two prompts
    # (a logit row each), and the third prompt's last 5 tokens with the others' first rounds.
    assert [step.passes[0] for step in steps[:3]] == [(32, 0), (32, 2), (2 * 5 + 5, 2 * 5 + 1)]
    # Then a window for each: the anchor and four drafts, and logits of every row of them.
    assert steps[3].passes == [(15, 15)]
    # Near the limit windows shrink to the tokens that fit; the first two are a token ahead.
    assert [step.passes[0] for step in steps[-5:]] == [(13, 13), (10, 10), (7, 7), (4, 4), (1, 1)]
    # 12 tokens of the last request, which starts in the third step, one per step.
    assert len(steps) == 2 + NEW_TOKENS
    assert sum(step.num_committed for step in steps) == 3 * NEW_TOKENS


@pytest.mark.parametrize("native", ["auto", "off"])
def test_all_drafts_of_a_step_are_made_in_one_pass(make: Make, native: str) -> None:
    steps = run_counting(make(native=native), requests())
    # No draft before the first output token; then one pass over all sequences that may draft.
    assert [step.blocks for step in steps[:4]] == [[], [], [2], [3]]
    assert all(len(step.blocks) <= 1 for step in steps)


@pytest.mark.parametrize(("good", "committed"), [(0, 1), (2, 3), (4, 5)])
def test_context_is_written_in_one_call_for_exactly_the_committed_rows(
    make: Make, good: int, committed: int
) -> None:
    given = requests()
    with oracle(texts(given), good=good, vocab=VOCAB):
        steps = run_counting(make(native="auto"), given)
    # The prompt's chunks, row for row.
    assert [step.writes for step in steps[:2]] == [[32], [32]]
    assert steady(steps)
    for step in steady(steps):
        # Of each window the anchor's row and those of the accepted drafts.
        assert step.writes == [3 * committed]
        assert step.num_committed == 3 * committed


@pytest.mark.parametrize("native", ["auto", "off"])
def test_the_host_reads_from_the_device_once_per_step(make: Make, native: str) -> None:
    steps = run_counting(make(native=native), requests())
    # A chunk that ends no prompt samples nothing.
    assert steps[0].reads == Counter()
    # Accepted counts and tokens are transferred in one copy, read as an array.
    assert all(step.reads == _ONE_COPY for step in steps[1:])


@dataclass(frozen=True)
class Kind:
    """Steps of a kind, and the work of each with native kernels."""

    prompts: tuple[int, ...]  # lengths
    steps: slice
    rows: tuple[int, int]  # of the target's one pass, and logit rows among them
    reads: Counter[str]
    # In bfloat16 the draft's pass runs in PyTorch and copies this many tokens of its context.
    bfloat16_context: int


_LONG = (140,)
# NumPy reads host memory: the copy, and on a CPU also the scores.
_ONE_COPY = Counter(cpu=1, numpy=2)
KINDS = {
    "prompt chunks": Kind(_LONG, slice(1, 4), (32, 0), Counter(), 0),
    "the end of a prompt": Kind(_LONG, slice(4, 5), (12, 1), _ONE_COPY, 0),
    "rounds with the end of a prompt": Kind(PROMPTS, slice(2, 3), (15, 11), _ONE_COPY, 2 * 44),
    "rounds of three": Kind(PROMPTS, slice(4, 9), (15, 15), _ONE_COPY, 3 * 50),
    "rounds of a long context": Kind(_LONG, slice(6, 9), (5, 5), _ONE_COPY, 147),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_native_steps_copy_neither_half_of_the_pool(
    make: Make, kind: Kind, dtype: torch.dtype
) -> None:
    is_short = dtype == torch.bfloat16
    per_token = dtype.itemsize * DRAFT_LAYERS * 2 * KV_HEADS * DRAFT_DIM
    steps = run_counting(make(native="auto", dtype=dtype), requests(kind.prompts))
    assert len(steps[kind.steps]) >= 1
    for step in steps[kind.steps]:
        assert step.passes == [kind.rows]
        assert step.reads == kind.reads
        assert step.gathered_bytes <= (kind.bfloat16_context if is_short else 0) * per_token


def test_a_gather_of_one_layer_is_counted(make: Make) -> None:
    built = make(native="auto")
    run = CpuDecoder.run

    def gathering(self: CpuDecoder, batch: ScheduleBatch) -> tuple[Tensor, Tensor]:
        built.pool.target_keys(1).index_select(0, batch.slot_mapping)
        return run(self, batch)

    with patch.object(CpuDecoder, "run", gathering):
        steps = run_counting(built, requests(_LONG))
    found = [step.gathered_bytes for step in steps[1:4]]
    assert found == [32 * KV_HEADS * TARGET_DIM * FLOAT] * 3


def test_the_reference_attention_gathers_every_layer_once(make: Make) -> None:
    given = requests()
    with oracle(texts(given), good=0, vocab=VOCAB):
        steps = run_counting(make(native="off", speculates=False), given)
    # Keys and values of a layer, of all sequences, padded to the longest: 40 prompt tokens, the
    # first output token (a step earlier than the third sequence's) and one for each step since.
    per_token = FLOAT * LAYERS * 2 * KV_HEADS * TARGET_DIM
    rounds = steps[3:6]
    assert [step.passes for step in rounds] == [[(3, 3)]] * 3
    longest = [40 + 2, 40 + 3, 40 + 4]
    assert [step.gathered_bytes for step in rounds] == [3 * n * per_token for n in longest]


@pytest.mark.parametrize("native", ["auto", "off"])
def test_rounds_make_no_more_tensors_as_their_contexts_grow(make: Make, native: str) -> None:
    rounds = steady(run_counting(make(native=native), requests()))
    assert len(rounds) >= 5
    counts = [step.operations.total() for step in rounds]
    assert counts[-1] <= counts[0], rounds[-1].operations


def test_a_cached_prefix_is_not_computed_again(make: Make) -> None:
    built = make(native="auto")
    (given, *_) = requests()
    first = run_counting(built, [given])
    again = run_counting(built, [given])
    assert [step.passes[0][0] for step in first[:2]] == [32, 8]
    # Nine of ten pages are shared; the last is computed for its logits.
    assert again[0].passes == [(4, 1)]
    assert again[0].writes == [4]
