"""Sequences with synthetic hidden states, for a tiny draft."""

import torch
from torch import Tensor

from draft import DSparkConfig, DSparkNetwork
from dspark.training.data.examples import HiddenStates, TokenSequence
from dspark.training.data.sequence_examples import SequenceExamples
from dspark.training.model.initialising import new_network


class FakeTarget:
    """Computes deterministic hidden states from the tokens; its head is tiny_head."""

    def __init__(self, config: DSparkConfig, *, seed: int = 3) -> None:
        generator = torch.Generator().manual_seed(seed)
        self._taps = torch.randn(config.vocab_size, config.aux_size, generator=generator)
        self._final = torch.randn(config.vocab_size, config.hidden_size, generator=generator)
        self._head = tiny_head(config)
        self.num_passes = 0

    def __call__(self, sequence: TokenSequence) -> HiddenStates:
        self.num_passes += 1
        token_ids = sequence.tensor()
        final = 2 * self._final[token_ids]
        normaliser = torch.logsumexp(final.bfloat16().float() @ self._head.T, dim=-1)
        return HiddenStates(self._taps[token_ids].cumsum(0), final, normaliser)


def tiny_head(config: DSparkConfig) -> Tensor:
    """Return the embedding and head of the fake target."""
    generator = torch.Generator().manual_seed(11)
    return torch.randn(config.vocab_size, config.hidden_size, generator=generator)


def tiny_network(config: DSparkConfig) -> DSparkNetwork:
    """Return a trainable network from scratch, the same in each call."""
    head = tiny_head(config)
    return new_network(
        config,
        embedding=head,
        lm_head=head,
        start=None,
        max_positions=80,
        seed=1,
        device=torch.device("cpu"),
    )


def sequences(count: int, *, vocab: int, length: int = 18, seed: int = 0) -> list[TokenSequence]:
    generator = torch.Generator().manual_seed(seed)
    return [
        TokenSequence(tuple(torch.randint(1, vocab, (length,), generator=generator).tolist()), 4)
        for _ in range(count)
    ]


def examples_of(config: DSparkConfig, count: int = 6, *, length: int = 18) -> SequenceExamples:
    return SequenceExamples(
        sequences=sequences(count, vocab=config.vocab_size, length=length),
        compute=FakeTarget(config),
    )
