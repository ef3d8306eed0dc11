"""Proposals equal the formulas, and do not depend on batch, pages or earlier passes."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from draft import BlockSampling, DraftBlock, DSparkNetwork, LayerConfig, NoDraft, inverse_cdf
from tests.support.draft.naive import naive_hidden, naive_predictions
from tests.support.draft.serving import Prompt, Served, prompts_of, sample_rows
from tests.support.draft.tiny import block_request, random_network, slots_of, tiny_config

LENGTHS = (9, 0, 1, 23, 4)
CONFIGS = {
    "plain": tiny_config(),
    "gated, biases": tiny_config(markov_kind="gated", attention_bias=True),
    "rnn": tiny_config(markov_kind="rnn"),
    "no heads": tiny_config(
        markov_kind=None, markov_rank=0, has_confidence_head=False, confidence_with_markov=False
    ),
    "confidence of hidden states": tiny_config(confidence_with_markov=False),
    "sliding layers, two ropes": tiny_config(
        layers=(LayerConfig(1e4, 5), LayerConfig(1e6), LayerConfig(1e4, 1))
    ),
    "one slot": tiny_config(block_size=1),
    "the anchor predicts nothing": tiny_config(sample_from_anchor=False),
    "the anchor predicts nothing, rnn": tiny_config(sample_from_anchor=False, markov_kind="rnn"),
    "the anchor predicts nothing, no heads": tiny_config(
        sample_from_anchor=False,
        markov_kind=None,
        markov_rank=0,
        has_confidence_head=False,
        confidence_with_markov=False,
    ),
    "a draft vocabulary": tiny_config(draft_vocab_size=23),
    "a draft vocabulary, rnn": tiny_config(draft_vocab_size=23, markov_kind="rnn"),
    "all options": tiny_config(
        sample_from_anchor=False,
        draft_vocab_size=23,
        markov_kind="gated",
        layers=(LayerConfig(1e4, 5, causal=True), LayerConfig(1e4), LayerConfig(1e4, 2)),
    ),
}


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(params=CONFIGS)
def network(request: pytest.FixtureRequest) -> DSparkNetwork:
    return random_network(CONFIGS[request.param])


def all_rows(served: Served, *, temperature: float = 1.0) -> BlockSampling:
    return sample_rows(range(len(served.prompts)), served.block_size, temperature=temperature)


def test_a_sampled_block_follows_the_formulas(network: DSparkNetwork) -> None:
    for prompt in prompts_of(network, LENGTHS):
        served = Served(network, [prompt])
        sampling = replace(all_rows(served), uniforms=torch.zeros(1, served.block_size).double())
        block = served.proposer.propose(served.request(sampling))
        hidden = naive_hidden(network, prompt.aux_hidden, prompt.anchor_id).float()
        _assert_follows(network, hidden, prompt.anchor_id, block)


def _assert_follows(
    network: DSparkNetwork, hidden: torch.Tensor, anchor_id: int, block: DraftBlock
) -> None:
    """Compare a block's probabilities and confidences with those of its hidden states [N, E]."""
    assert block.draft_probs is not None
    ids = block.draft_ids[0].tolist()
    probs, confidence = naive_predictions(network, hidden, anchor_id, ids)
    torch.testing.assert_close(block.draft_probs[0], probs, rtol=1e-4, atol=1e-5)
    if confidence is None:
        assert block.confidence_logits is None
    else:
        assert block.confidence_logits is not None
        torch.testing.assert_close(block.confidence_logits[0], confidence, rtol=1e-4, atol=1e-4)


def test_a_greedy_block_follows_the_formulas(network: DSparkNetwork) -> None:
    for prompt in prompts_of(network, LENGTHS):
        served = Served(network, [prompt])
        ids = served.proposer.propose(served.request()).draft_ids[0].tolist()
        hidden = naive_hidden(network, prompt.aux_hidden, prompt.anchor_id).float()
        probs, _ = naive_predictions(network, hidden, prompt.anchor_id, ids)
        assert probs.argmax(-1).tolist() == ids


def test_tokens_are_drawn_from_the_reported_distribution(
    network: DSparkNetwork,
) -> None:
    """Every token is the inverse CDF of its uniform over the draft vocabulary."""
    prompt = prompts_of(network, [9])[0]
    served = Served(network, [prompt])
    target_ids = torch.arange(network.config.vocab_size)
    if network.vocabulary is not None:
        target_ids = network.vocabulary.target_ids
    for uniform in (0.0, 0.3, 0.7, 0.999):
        uniforms = torch.full((1, served.block_size), uniform, dtype=torch.float64)
        block = served.proposer.propose(
            served.request(replace(all_rows(served), uniforms=uniforms))
        )
        assert block.draft_probs is not None
        drawn = target_ids[inverse_cdf(block.draft_probs[..., target_ids], uniforms)]
        assert torch.equal(drawn, block.draft_ids)
        torch.testing.assert_close(block.draft_probs.sum(-1), torch.ones(1, served.block_size))


@pytest.mark.parametrize("sampled", [False, True])
def test_a_batch_of_n_is_n_batches_of_one(network: DSparkNetwork, sampled: bool) -> None:
    prompts = prompts_of(network, LENGTHS)
    together = Served(network, prompts)
    sampling = all_rows(together) if sampled else None
    batch = together.proposer.propose(together.request(sampling))
    for row, prompt in enumerate(prompts):
        alone = Served(network, [prompt], page_size=2, seed=row + 1)
        own = None
        if sampled:
            own = replace(sample_rows([row], alone.block_size), rows=torch.tensor([0]))
        block = alone.proposer.propose(alone.request(own))
        assert torch.equal(block.draft_ids[0], batch.draft_ids[row])
        if block.confidence_logits is not None and batch.confidence_logits is not None:
            torch.testing.assert_close(
                block.confidence_logits[0], batch.confidence_logits[row], rtol=1e-4, atol=1e-4
            )
        if block.draft_probs is not None and batch.draft_probs is not None:
            torch.testing.assert_close(
                block.draft_probs[0], batch.draft_probs[row], rtol=1e-4, atol=1e-5
            )


def test_greedy_rows_of_a_sampled_batch_are_those_of_a_greedy_batch(
    network: DSparkNetwork,
) -> None:
    served = Served(network, prompts_of(network, LENGTHS))
    greedy = served.proposer.propose(served.request())
    sampling = sample_rows([3, 0], served.block_size, temperature=20.0)
    mixed = served.proposer.propose(served.request(sampling))
    assert greedy.draft_probs is None
    assert mixed.draft_probs is not None
    assert mixed.draft_probs.shape == (2, served.block_size, network.config.vocab_size)
    others = [1, 2, 4]
    assert torch.equal(mixed.draft_ids[others], greedy.draft_ids[others])
    assert not torch.equal(mixed.draft_ids, greedy.draft_ids)


def probs_of(served: Served, *, shift: int = 0) -> torch.Tensor:
    request = served.request(all_rows(served))
    shifted = replace(request, anchor_positions=request.anchor_positions + shift)
    block = served.proposer.propose(shifted)
    assert block.draft_probs is not None
    return block.draft_probs[:, 0]


@pytest.mark.parametrize("shift", [-1, 1])
def test_a_block_depends_on_its_position(shift: int) -> None:
    network = random_network()
    served = Served(network, prompts_of(network, [9, 23, 4]))
    here, there = probs_of(served), probs_of(served, shift=shift)
    assert ((here - there).abs().amax(-1) > 1e-4).all()


def test_context_depends_on_its_positions() -> None:
    network = random_network()
    served = Served(network, prompts_of(network, [9]))
    before = probs_of(served)
    prompt, table = served.prompts[0], served.tables[0]
    served.proposer.write_context(prompt.aux_hidden, torch.arange(1, 10), slots_of(table, 0, 9))
    assert (probs_of(served) - before).abs().max() > 1e-4


def test_context_does_not_depend_on_the_order_of_its_tokens() -> None:
    network = random_network()
    served = Served(network, prompts_of(network, [23]))
    before = probs_of(served)
    order = torch.randperm(23)
    slots = slots_of(served.tables[0], 0, 23)
    served.proposer.write_context(served.prompts[0].aux_hidden[order], order, slots[order])
    torch.testing.assert_close(probs_of(served), before, rtol=1e-4, atol=1e-6)


def test_a_pass_changes_no_context_and_reads_no_earlier_pass() -> None:
    network = random_network()
    served = Served(network, prompts_of(network, [9, 23]))
    slots = torch.cat([slots_of(t, 0, n) for t, n in zip(served.tables, (9, 23), strict=True)])
    keys = served.pool.draft_keys[:, slots].clone()
    first = served.proposer.propose(served.request())
    again = served.proposer.propose(served.request())
    assert torch.equal(served.pool.draft_keys[:, slots], keys)
    assert first.confidence_logits is not None
    assert torch.equal(first.draft_ids, again.draft_ids)
    assert torch.equal(first.confidence_logits, again.confidence_logits)  # type: ignore[arg-type]


def test_entries_of_a_page_table_past_the_block_are_not_read() -> None:
    network = random_network()
    served = Served(network, prompts_of(network, [9, 23]))
    request = served.request()
    poisoned = replace(request, page_tables=[[*t, -1, 10**9] for t in request.page_tables])
    expected = served.proposer.propose(request).draft_ids
    assert torch.equal(served.proposer.propose(poisoned).draft_ids, expected)


def test_the_last_block_may_reach_past_the_longest_sequence() -> None:
    network = random_network(max_positions=16)
    prompts = prompts_of(network, [16, 17])
    Served(network, prompts[:1]).proposer.propose(Served(network, prompts[:1]).request())
    served = Served(network, prompts[1:])
    with pytest.raises(IndexError):
        served.proposer.propose(served.request())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_draft_in_half_precision_has_nearly_the_same_distributions(dtype: torch.dtype) -> None:
    network = random_network()
    prompts = prompts_of(network, [9, 23])
    served = Served(network, prompts)
    expected = probs_of(served)
    half = Served(network.to(dtype), prompts)
    found = probs_of(half)
    assert found.dtype == torch.float32
    assert (found - expected).abs().max() < 0.1


def test_a_request_of_the_wrong_width_is_an_assertion_error() -> None:
    network = random_network()
    served = Served(network, prompts_of(network, [9]))
    narrow = block_request([1], [9], served.tables, num_slots=served.num_slots - 1)
    with pytest.raises(AssertionError, match="3 slots for a block of 4"):
        served.proposer.propose(narrow)


def test_without_a_draft_blocks_are_empty_and_context_is_dropped() -> None:
    proposer = NoDraft()
    prompt = Prompt(torch.randn(3, 8), 1)
    network = random_network()
    request = Served(network, prompts_of(network, [3, 4])).request()
    assert proposer.propose(request).draft_ids.shape == (2, 0)
    proposer.write_context(prompt.aux_hidden, torch.arange(3), torch.arange(3))
    assert (proposer.block_size, proposer.tap_layers) == (0, ())
    assert (proposer.context_kv_path, proposer.context_kv_reason) == ("none", None)
    proposer.set_context_kv("auto")
    with pytest.raises(ValueError, match="there is no draft"):
        proposer.set_context_kv("on")
