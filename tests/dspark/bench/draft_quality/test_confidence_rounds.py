"""Collecting confidences and acceptance for calibration."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from draft import BlockRequest, DraftBlock, DSparkProposer
from dspark.bench.draft_quality.confidence_rounds import ConfidenceRecorder
from engine import EngineSamplingParams, Request
from tests.support.engine.running import generate_alone, oracle, prompts, run_all
from tests.support.engine.tiny_models import VOCAB, tiny_engine, tiny_target, write_tiny_draft

NEW_TOKENS = 21


@pytest.mark.parametrize("good", [0, 2, 4])
def test_every_whole_round_but_the_last_is_taken_with_its_outcome(
    good: int, tmp_path: Path
) -> None:
    prompt_ids = prompts(2, vocab=VOCAB)
    target = tiny_target(has_eos=False)
    texts = [prompt + generate_alone(target, prompt, NEW_TOKENS) for prompt in prompt_ids]
    recorder = ConfidenceRecorder()
    built = tiny_engine(target=target, draft_folder=write_tiny_draft(tmp_path), observer=recorder)
    params = EngineSamplingParams(max_new_tokens=NEW_TOKENS)
    with oracle(texts, good=good, vocab=VOCAB), anchors_as_confidences():
        requests = [Request(str(i), tuple(p), params) for i, p in enumerate(prompt_ids)]
        run_all(built, requests)
    for name, prompt in zip("01", prompt_ids, strict=True):
        rounds = recorder.rounds(block_size=4, of=lambda x, name=name: x == name)
        assert len(rounds) >= 2
        assert set(rounds.num_accepted.tolist()) == {good}
        anchors = [len(prompt) + i * (good + 1) for i in range(len(rounds))]
        assert rounds.logits[:, 0].tolist() == anchors  # each outcome belongs to its confidences
    assert len(recorder.rounds(block_size=4, of=lambda name: False)) == 0


@contextmanager
def anchors_as_confidences() -> Iterator[None]:
    """Confidence logits that are the position of the anchor."""
    guess = DSparkProposer.propose

    def propose(self: DSparkProposer, request: BlockRequest) -> DraftBlock:
        block = guess(self, request)
        logits = request.anchor_positions[:, None].float().expand(-1, self.block_size)
        return DraftBlock(block.draft_ids, block.draft_probs, logits)

    with patch.object(DSparkProposer, "propose", propose):
        yield


def test_a_draft_without_confidences_records_nothing(tmp_path: Path) -> None:
    recorder = ConfidenceRecorder()
    built = tiny_engine(draft_folder=write_tiny_draft(tmp_path), observer=recorder)
    with oracle([], good=0, vocab=VOCAB):  # its blocks have none
        run_all(built, [Request("a", (1, 2, 3), EngineSamplingParams(max_new_tokens=9))])
    rounds = recorder.rounds(block_size=4, of=lambda name: True)
    assert rounds.logits.shape == (0, 4)
    assert torch.equal(rounds.num_accepted, torch.zeros(0, dtype=torch.long))
