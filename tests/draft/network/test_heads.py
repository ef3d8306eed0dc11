"""Heads by their formulas."""

import torch

from draft.network.heads import ConfidenceHead, GatedMarkovHead, MarkovHead, RNNMarkovHead

SIZES = {"vocab_size": 11, "rank": 3, "hidden_size": 5}
IDS, HIDDEN = torch.tensor([4, 9]), torch.linspace(-1, 1, 10).view(2, 5)


def test_vanilla_is_one_row_times_the_other_matrix() -> None:
    head = MarkovHead(**SIZES)
    bias, state = head.bias(IDS, HIDDEN, None)
    expected = head.markov_w1.weight[IDS] @ head.markov_w2.weight.T
    assert state is None
    torch.testing.assert_close(bias, expected)


def test_gated_reads_the_hidden_state_first() -> None:
    head = GatedMarkovHead(**SIZES)
    bias, _ = head.bias(IDS, HIDDEN, None)
    row = head.markov_w1.weight[IDS]
    weight, offset = head.gate_proj.weight, head.gate_proj.bias
    gate = torch.sigmoid(HIDDEN @ weight[:, :5].T + row @ weight[:, 5:].T + offset)
    torch.testing.assert_close(bias, (gate * row) @ head.markov_w2.weight.T)


def test_rnn_carries_a_state_that_starts_at_zero() -> None:
    head = RNNMarkovHead(**SIZES)
    row = head.markov_w1.weight[IDS]
    weight, offset = head.joint_proj.weight, head.joint_proj.bias
    expected_state = torch.zeros(2, 3)
    state = None
    for _ in range(2):
        z = torch.cat([expected_state, row, HIDDEN], -1)
        u, c, o = (z @ weight.T + offset).split(3, -1)
        expected_state = u.sigmoid() * expected_state + (1 - u.sigmoid()) * c.tanh()
        bias, state = head.bias(IDS, HIDDEN, state)
        torch.testing.assert_close(state, expected_state)
        torch.testing.assert_close(bias, o.tanh() @ head.markov_w2.weight.T)


def test_confidence_is_float32_whatever_the_hidden_states_are() -> None:
    head = ConfidenceHead(hidden_size=5, rank=3)
    hidden, previous = torch.randn(2, 4, 5), torch.randn(2, 4, 3)
    expected = torch.cat([hidden, previous], -1) @ head.proj.weight[0] + head.proj.bias
    torch.testing.assert_close(head(hidden, previous), expected)
    for dtype in (torch.float16, torch.bfloat16):
        found = head(hidden.to(dtype), previous.to(dtype))
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
    assert head.to(torch.bfloat16)(hidden, previous).dtype == torch.float32


def test_confidence_without_markov_reads_the_hidden_state_alone() -> None:
    head = ConfidenceHead(hidden_size=5, rank=0)
    hidden = torch.randn(2, 4, 5)
    torch.testing.assert_close(head(hidden, None), hidden @ head.proj.weight[0] + head.proj.bias)
