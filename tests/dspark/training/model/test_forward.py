"""Training computes what serving computes."""

import pytest
import torch

from draft import DSparkConfig, DSparkNetwork, LayerConfig
from dspark.training.data.examples import Example
from dspark.training.model.blocks import Labels, MicroBatch, draw_anchors
from dspark.training.model.forward import forward_blocks
from tests.support.draft.serving import Prompt, Served
from tests.support.draft.tiny import CONFIG, GEMMA4, random_network, tiny_config
from tests.support.training.sequences import FakeTarget, sequences

SLIDING = (LayerConfig(rope_theta=10_000.0), LayerConfig(rope_theta=500.0, sliding_window=5))
CONFIGS = {
    "vanilla": CONFIG,
    "gated": tiny_config(markov_kind="gated"),
    "rnn": tiny_config(markov_kind="rnn"),
    "no markov": tiny_config(markov_kind=None, markov_rank=0, confidence_with_markov=False),
    "reduced vocabulary": tiny_config(draft_vocab_size=23),
    "sliding": tiny_config(layers=SLIDING),
    "gemma4": GEMMA4,
}


def examples(config: DSparkConfig, count: int = 2, *, length: int = 18) -> list[Example]:
    target = FakeTarget(config)
    return [
        Example(s.tensor(), s.is_answer(), target(s))
        for s in sequences(count, vocab=config.vocab_size, length=length)
    ]


def serving_output(
    network: DSparkNetwork, example: Example, anchor: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits and confidences of the block after an anchor, from paged context.

    The heads get the true tokens.
    """
    prompt = Prompt(example.hidden.taps[:anchor], int(example.token_ids[anchor]))
    served = Served(network, [prompt])
    request = served.request()
    block = served.proposer._paged_block(request)
    ids = network.block_ids(request.anchor_ids)
    positions = torch.arange(anchor, anchor + served.block_size)[None]
    hidden = network.hidden(ids, positions, block)
    labels = example.token_ids[anchor + 1 : anchor + 1 + served.block_size][None]
    logits, state = network.base_logits(hidden), None
    if network.markov_head is not None:
        before = torch.cat([request.anchor_ids[:, None], labels[:, :-1]], 1)
        slots = []
        for k in range(served.block_size):
            bias, state = network.markov_head.bias(before[:, k], hidden[:, k], state)
            slots.append(logits[:, k] + bias)
        logits = torch.stack(slots, 1)
    confidence = network.confidence_logits(hidden, request.anchor_ids, labels)
    assert confidence is not None
    return logits[0], confidence[0]


@pytest.mark.parametrize("name", CONFIGS)
def test_a_block_in_training_is_the_block_in_serving(name: str) -> None:
    network = random_network(CONFIGS[name])
    both = examples(network.config)
    anchors = [torch.tensor([4, 5, 11]), torch.tensor([6, 12])]
    with torch.no_grad():
        output = forward_blocks(network, MicroBatch.of(both, anchors, block_size=4))
        row = 0
        for example, chosen in zip(both, anchors, strict=True):
            for anchor in chosen.tolist():
                logits, confidence = serving_output(network, example, anchor)
                torch.testing.assert_close(output.logits[row], logits, atol=1e-4, rtol=1e-4)
                assert output.confidence_logits is not None
                torch.testing.assert_close(
                    output.confidence_logits[row], confidence, atol=1e-4, rtol=1e-4
                )
                row += 1
    assert row == 5


def test_one_anchor_alone_equals_serving() -> None:
    network = random_network()
    (example,) = examples(network.config, 1)
    with torch.no_grad():
        batch = MicroBatch.of([example], [torch.tensor([9])], block_size=4)
        output = forward_blocks(network, batch)
        logits, _ = serving_output(network, example, 9)
    torch.testing.assert_close(output.logits[0], logits, atol=1e-4, rtol=1e-4)


def test_context_from_the_anchor_on_is_masked() -> None:
    network = random_network()
    (example,) = examples(network.config, 1)
    anchors = [torch.tensor([9])]
    with torch.no_grad():
        before = forward_blocks(network, MicroBatch.of([example], anchors, block_size=4))
        example.hidden.taps[9:] += 1
        after = forward_blocks(network, MicroBatch.of([example], anchors, block_size=4))
        example.hidden.taps[8] += 1
        other = forward_blocks(network, MicroBatch.of([example], anchors, block_size=4))
    assert torch.equal(before.logits, after.logits)
    assert not torch.allclose(before.logits, other.logits, atol=1e-3)


def test_anchors_are_answer_tokens_with_a_successor_and_never_drawn_twice() -> None:
    is_answer = torch.tensor([0, 0, 1, 1, 1, 0, 1, 1]).bool()
    generator = torch.Generator().manual_seed(0)
    assert draw_anchors(is_answer, count=9, generator=generator).tolist() == [2, 3, 6]
    some = draw_anchors(is_answer, count=2, generator=generator).tolist()
    assert len(set(some)) == 2
    assert set(some) <= {2, 3, 6}


def test_a_slot_is_valid_while_all_before_it_are() -> None:
    ids = torch.tensor([10, 11, 12, 13, 14, 15, 16])
    is_answer = torch.tensor([0, 1, 1, 1, 0, 1, 1]).bool()
    labels = Labels.after(ids, is_answer, torch.tensor([1, 5]), block_size=4)
    assert labels.is_valid.tolist() == [[True, True, False, False], [True, False, False, False]]
    assert labels.ids.tolist() == [[12, 13, 0, 0], [16, 0, 0, 0]]


def test_each_label_has_the_hidden_state_one_token_before() -> None:
    (example,) = examples(CONFIG, 1)
    batch = MicroBatch.of([example], [torch.tensor([7])], block_size=4)
    assert torch.equal(batch.target_hidden[0], example.hidden.final[7:11])
    assert batch.labels.ids[0].tolist() == example.token_ids[8:12].tolist()
