"""Drafts of both slot conventions, and with a reduced vocabulary, through the whole engine."""

from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import chisquare

from engine import EngineSamplingParams, Request
from engine.loading.target import LoadedTarget, by_transformers_alone
from tests.support.draft.speculators_files import SpeculatorsDraft
from tests.support.engine.eight_tokens import PROMPT, eight_token_target
from tests.support.engine.running import generate_alone, greedy_requests, prompts, run_all
from tests.support.engine.tiny_models import HIDDEN, VOCAB, tiny_engine, tiny_target

NEW_TOKENS = 20
SLIDING = {
    "layer_types": ["sliding_attention", "full_attention"],
    "use_sliding_window": True,
    "sliding_window": 6,
}
DRAFTS: dict[str, dict[str, Any]] = {
    "the anchor predicts nothing": {"sample_from_anchor": False},
    "draft vocabulary": {"draft_vocab": 90},
    "both, rnn": {"draft_vocab": 90, "sample_from_anchor": False, "kind": "rnn"},
    "causal sliding layers": {"layer_fields": SLIDING},
}


def write(folder: Path, **fields: Any) -> Path:
    return SpeculatorsDraft(hidden=HIDDEN, vocab=VOCAB, **fields).save(folder)


@pytest.mark.parametrize("name", DRAFTS)
@pytest.mark.parametrize(
    "settings", [{}, {"page_size": 1}, {"num_pages": 21, "prefill_chunk_tokens": 7}], ids=str
)
def test_greedy_text_equals_transformers(
    name: str, settings: dict[str, int], tmp_path: Path
) -> None:
    each = prompts(6, vocab=VOCAB)
    expected = [generate_alone(tiny_target(), prompt, NEW_TOKENS) for prompt in each]
    built = tiny_engine(draft_folder=write(tmp_path, **DRAFTS[name]), **settings)
    found = run_all(built, greedy_requests(each, NEW_TOKENS))
    assert [found[str(i)][0] for i in range(6)] == expected
    assert built.engine.snapshot().num_rounds > 0
    if "num_pages" in settings:
        assert built.engine.snapshot().num_preemptions > 0


def test_the_engine_reserves_a_slot_more_than_the_block_has_tokens(tmp_path: Path) -> None:
    built = tiny_engine(
        draft_folder=write(tmp_path, sample_from_anchor=False), page_size=1, num_pages=60
    )
    assert built.engine.info.block_size == 4
    assert built.proposer.num_slots == 5
    assert built.engine.info.served_max_len == 55
    longest = Request(
        "a", tuple(range(1, 31)), EngineSamplingParams(max_new_tokens=25, ignore_eos=True)
    )
    ids, _ = run_all(built, [longest])["a"]
    assert len(ids) == 25


def test_sampled_text_is_distributed_as_the_target_alone(tmp_path: Path) -> None:
    """Two tokens after the first, jointly; the draft has half of the vocabulary, one idle slot."""
    small_target, count = eight_token_target(), 4000
    draft = SpeculatorsDraft(
        hidden=HIDDEN, vocab=8, draft_vocab=4, sample_from_anchor=False, block_size=3
    )
    built = tiny_engine(
        target=small_target, draft_folder=draft.save(tmp_path), max_running_requests=64
    )
    counts = torch.zeros(8, 8, 8, dtype=torch.float64)
    requests = [
        Request(str(i), PROMPT, EngineSamplingParams(max_new_tokens=3, temperature=1.0, seed=i))
        for i in range(count)
    ]
    for at in range(0, count, 250):
        for ids, _ in run_all(built, requests[at : at + 250]).values():
            counts[tuple(ids)] += 1
    expected = _joint(small_target, PROMPT).sum(0) * count
    assert chisquare(counts.sum(0).flatten().numpy(), expected.flatten().numpy()).pvalue > 0.001
    snapshot = built.engine.snapshot()
    assert 0 < snapshot.num_accepted_tokens < snapshot.num_draft_tokens


def _joint(target: LoadedTarget, prompt: tuple[int, ...]) -> torch.Tensor:
    """Compute p(a, b, c | prompt) of the dense model."""
    pairs = torch.cartesian_prod(torch.arange(8), torch.arange(8))
    ids = torch.cat([torch.tensor(prompt).expand(64, -1), pairs], dim=1)
    with by_transformers_alone(target.model), torch.inference_mode():
        logits = target.model(ids, use_cache=False).logits.double()
    first, second, third = torch.softmax(logits[:, -3:], -1).unbind(1)
    probability = first[range(64), pairs[:, 0]] * second[range(64), pairs[:, 1]]
    return (probability[:, None] * third).view(8, 8, 8)
