"""Small Markov heads and random blocks for tests of Markov sampling."""

import torch
from torch import Tensor

from draft import BlockSampling
from draft.network.heads import MarkovHead, build_markov_head

KINDS = ("vanilla", "gated", "rnn")
VOCAB, WIDTH, HIDDEN = 5, 3, 6


def head_of(kind: str | None, vocab_size: int = VOCAB) -> MarkovHead | None:
    if kind is None:
        return None
    head = build_markov_head(kind, vocab_size=vocab_size, rank=4, hidden_size=HIDDEN)  # type: ignore[arg-type]
    return head.requires_grad_(False)


def random_block(rows: int, vocab_size: int = VOCAB) -> tuple[Tensor, Tensor, Tensor]:
    """Draw hidden states [B, K, E], base logits [B, K, V] and anchors [B]."""
    hidden, logits = torch.randn(rows, WIDTH, HIDDEN), torch.randn(rows, WIDTH, vocab_size)
    return hidden, logits, torch.randint(vocab_size, (rows,))


def sampling_of(rows: list[int], temperatures: list[float], seed: int = 0) -> BlockSampling:
    generator = torch.Generator().manual_seed(seed)
    uniforms = torch.rand(len(rows), WIDTH, dtype=torch.float64, generator=generator)
    return BlockSampling(torch.tensor(rows), torch.tensor(temperatures), uniforms)


def corrected_logits(
    head: MarkovHead | None, hidden: Tensor, logits: Tensor, anchor: Tensor, chain: Tensor
) -> Tensor:
    """Add the Markov bias to one row's base logits [K, V], given its tokens [K]."""
    if head is None:
        return logits
    previous, state, rows = anchor, None, []
    for k, token in enumerate(chain):
        bias, state = head.bias(previous[None], hidden[None, k], state)
        rows.append(logits[k] + bias[0])
        previous = token
    return torch.stack(rows)
