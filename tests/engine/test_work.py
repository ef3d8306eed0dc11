"""What a step does, counted: a change that makes steps do more work fails here on any machine.

The scenario: three prompts of 40, 20 and 9 tokens, 12 output tokens each, prompt chunks of 32
tokens, blocks of 4 draft tokens, pages of 4 tokens.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from engine import Request, SamplingParams
from engine.build import Built
from tests.engine.running import generate_alone, oracle
from tests.engine.tiny_models import LAYERS, VOCAB, tiny_engine, tiny_target, write_tiny_draft
from tests.engine.work import Work, run_counting

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
    """make(native="auto" or "off", speculates=True) is an engine for the scenario."""

    def engine(*, native: str, speculates: bool = True) -> Built:
        built = tiny_engine(
            target=tiny_target(has_eos=False),
            draft_folder=draft_folder if speculates else None,
            native_kernels=native,
        )
        if native != "off" and built.linear is F.linear:
            pytest.skip("native kernels cannot be had here")
        return built

    return engine


def requests() -> list[Request]:
    generator = torch.Generator().manual_seed(11)
    return [
        Request(
            str(i),
            tuple(torch.randint(1, VOCAB - 1, (length,), generator=generator).tolist()),
            SamplingParams(max_new_tokens=NEW_TOKENS),
        )
        for i, length in enumerate(PROMPTS)
    ]


def texts(asked: list[Request]) -> list[list[int]]:
    """What the target says alone, a little further than is asked for."""
    target = tiny_target(has_eos=False)
    return [[*r.prompt_ids, *generate_alone(target, r.prompt_ids, 20)] for r in asked]


def steady(steps: list[Work]) -> list[Work]:
    """Steps in which all three are past their prompts and have room for a whole block."""
    width = BLOCK + 1
    return [step for step in steps if step.passes == [(3 * width, 3 * width)]]


@pytest.mark.parametrize("native", ["auto", "off"])
def test_prompts_are_computed_once_and_rounds_compute_a_window_each(
    make: Make, native: str
) -> None:
    asked = requests()
    with oracle(texts(asked), good=0, vocab=VOCAB):  # nothing stands: a token a round
        steps = run_counting(make(native=native), asked)
    assert all(len(step.passes) == 1 for step in steps)  # one pass of the target a step
    # 69 prompt tokens, each of them once: two chunks of 32, of which the second ends two prompts
    # (a logit row each), and the third prompt's last 5 tokens beside the others' first rounds.
    assert [step.passes[0] for step in steps[:3]] == [(32, 0), (32, 2), (2 * 5 + 5, 2 * 5 + 1)]
    # Then a window for each: the anchor and four drafts, and logits of every row of them.
    assert steps[3].passes == [(15, 15)]
    # No window verifies drafts that there is no room for: the first two have had a token more.
    assert [step.passes[0] for step in steps[-5:]] == [(13, 13), (10, 10), (7, 7), (4, 4), (1, 1)]
    # 12 tokens of the slowest, which begins in the third step, one a step.
    assert len(steps) == 2 + NEW_TOKENS
    assert sum(step.num_committed for step in steps) == 3 * NEW_TOKENS


@pytest.mark.parametrize("native", ["auto", "off"])
def test_all_drafts_of_a_step_are_made_in_one_pass(make: Make, native: str) -> None:
    steps = run_counting(make(native=native), requests())
    # No draft before the first output token; then one pass over all sequences that may draft.
    assert [step.blocks for step in steps[:4]] == [[], [], [2], [3]]
    assert all(len(step.blocks) <= 1 for step in steps)


@pytest.mark.parametrize(("good", "stood"), [(0, 1), (2, 3), (4, 5)])
def test_context_is_written_in_one_call_for_exactly_the_rows_that_stand(
    make: Make, good: int, stood: int
) -> None:
    asked = requests()
    with oracle(texts(asked), good=good, vocab=VOCAB):
        steps = run_counting(make(native="auto"), asked)
    # The prompt's chunks, row for row.
    assert [step.writes for step in steps[:2]] == [[32], [32]]
    assert steady(steps)
    for step in steady(steps):
        # Of each window the anchor's row and those of the drafts that stood.
        assert step.writes == [3 * stood]
        assert step.num_committed == 3 * stood


@pytest.mark.parametrize("native", ["auto", "off"])
def test_the_host_looks_at_the_device_once_a_step(make: Make, native: str) -> None:
    steps = run_counting(make(native=native), requests())
    # A chunk that ends no prompt decides nothing, so there is nothing to look at.
    assert steps[0].reads == Counter()
    # What was accepted, the tokens and all else cross in one copy, which is then read as an array.
    assert all(step.reads == Counter(cpu=1, numpy=1) for step in steps[1:])


def test_native_rounds_copy_no_keys_and_values(make: Make) -> None:
    rounds = steady(run_counting(make(native="auto"), requests()))
    # They read the pool where it lies, the target's half and the draft's.
    assert [step.gathered_bytes for step in rounds] == [0] * len(rounds)


def test_the_reference_attention_gathers_every_layer_once(make: Make) -> None:
    asked = requests()
    with oracle(texts(asked), good=0, vocab=VOCAB):
        steps = run_counting(make(native="off", speculates=False), asked)
    # Keys and values of a layer, of all sequences, padded to the longest: 40 prompt tokens, the
    # first output token (a step earlier than the third sequence's) and one for each step since.
    per_token = FLOAT * LAYERS * 2 * KV_HEADS * TARGET_DIM
    rounds = steps[3:6]
    assert [step.passes for step in rounds] == [[(3, 3)]] * 3
    longest = [40 + 2, 40 + 3, 40 + 4]
    assert [step.gathered_bytes for step in rounds] == [3 * n * per_token for n in longest]


# Operations of torch in a steady round, views left out: each makes a tensor, or copies into one.
# A ceiling, so that making a round cheaper breaks nothing; lower it then.
MOST_OPERATIONS = {
    # Neither pass makes any. What is left: the batch's ids (9), the taps' rows for the context
    # write (6), argmax and the greedy verdict over a rectangle (12).
    "auto": 27,
    # By transformers' layers, some 37 each for five of the target and two of the draft, the
    # Markov chain's four steps, and the same rest.
    "off": 324,
}


@pytest.mark.parametrize("native", ["auto", "off"])
def test_a_round_makes_no_more_tensors_than_it_did(make: Make, native: str) -> None:
    rounds = steady(run_counting(make(native=native), requests()))
    assert len(rounds) >= 5
    counts = [step.operations.total() for step in rounds]
    assert max(counts) <= MOST_OPERATIONS[native], rounds[-1].operations
    assert counts[-1] <= counts[0], "rounds make more tensors as their contexts grow"


def test_a_cached_prefix_is_not_computed_again(make: Make) -> None:
    built = make(native="auto")
    (asked, *_) = requests()
    first = run_counting(built, [asked])
    again = run_counting(built, [asked])
    assert [step.passes[0][0] for step in first[:2]] == [32, 8]
    # Nine of its ten pages are shared; the last one is computed, for its logits are needed.
    assert again[0].passes == [(4, 1)]
    assert again[0].writes == [4]
