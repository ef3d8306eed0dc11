"""Defines the Markov heads (vanilla, gated, rnn) and the confidence head.

A new kind of Markov head is a subclass of MarkovHead here, with its entry in _HEADS.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from draft.config import MarkovKind
from draft.network.int8_linear import Int8Linear, is_matrix


class MarkovHead(nn.Module):
    """Computes a low-rank first-order bias on base logits: W2 · f(W1[previous token], ...).

    This class is the vanilla head: f is the row of W1.
    """

    def __init__(
        self, *, vocab_size: int, rank: int, hidden_size: int, num_outputs: int | None = None
    ) -> None:
        """num_outputs: size of the draft vocabulary; None: vocab_size."""
        super().__init__()
        self.markov_w1 = nn.Embedding(vocab_size, rank)
        self.markov_w2: nn.Module = nn.Linear(
            rank, vocab_size if num_outputs is None else num_outputs, bias=False
        )

    def embed(self, ids: Int[Tensor, "*B"]) -> Float[Tensor, "*B r"]:
        """Look up rows of W1."""
        rows: Tensor = self.markov_w1(ids)
        return rows

    def bias(
        self,
        previous_ids: Int[Tensor, "B"],
        hidden: Float[Tensor, "B E"],
        state: Float[Tensor, "B r"] | None,
    ) -> tuple[Float[Tensor, "B Vd"], Float[Tensor, "B r"] | None]:
        """Compute one slot's bias given its previous token, and the state for the next slot.

        hidden is the slot's hidden state after the final norm. The first slot's state is None.
        """
        feature, state = self._feature(self.embed(previous_ids), hidden, state)
        return self.markov_w2(feature), state

    @property
    def supports_partial_bias(self) -> bool:
        """Whether `partial_bias` works: the head has no state, and W2 is a plain matrix."""
        return is_matrix(self.markov_w2)

    def partial_bias(
        self, draft_ids: Int[Tensor, "n"], previous_id: Int[Tensor, ""], hidden: Float[Tensor, "E"]
    ) -> Float[Tensor, "n"]:
        """Compute one row's bias for the given vocabulary entries only."""
        w2 = self.markov_w2
        assert is_matrix(w2), type(w2)
        feature, _ = self._feature(self.embed(previous_id)[None], hidden[None], None)
        bias = w2.weight[draft_ids].to(feature.dtype) @ feature[0]
        return bias * w2.scale[draft_ids] if isinstance(w2, Int8Linear) else bias

    def state_after(
        self, previous_ids: Int[Tensor, "B"], hidden: Float[Tensor, "B E"]
    ) -> Float[Tensor, "B r"] | None:
        """Compute the state after the anchor's slot, if that slot predicts no token."""
        return self._feature(self.embed(previous_ids), hidden, None)[1]

    def _feature(
        self, previous: Tensor, hidden: Tensor, state: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        return previous, None


class GatedMarkovHead(MarkovHead):
    """Gates the row w of W1 by the hidden state: f = sigmoid(G · [hidden; w] + b) * w."""

    def __init__(
        self, *, vocab_size: int, rank: int, hidden_size: int, num_outputs: int | None = None
    ) -> None:
        super().__init__(
            vocab_size=vocab_size, rank=rank, hidden_size=hidden_size, num_outputs=num_outputs
        )
        self.gate_proj: nn.Module = nn.Linear(hidden_size + rank, rank)

    def _feature(
        self, previous: Tensor, hidden: Tensor, state: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        gate = torch.sigmoid(self.gate_proj(torch.cat([hidden, previous], dim=-1)))
        return gate * previous, None


class RNNMarkovHead(MarkovHead):
    """Runs a gated recurrence along the block: a slot's bias depends on all earlier tokens.

    (u, c, o) = J · [state; w; hidden] + b;  state = σ(u)·state + (1 - σ(u))·tanh(c);  f = tanh(o)
    """

    supports_partial_bias = False  # each slot needs the state of the slot before it

    def __init__(
        self, *, vocab_size: int, rank: int, hidden_size: int, num_outputs: int | None = None
    ) -> None:
        super().__init__(
            vocab_size=vocab_size, rank=rank, hidden_size=hidden_size, num_outputs=num_outputs
        )
        self.joint_proj: nn.Module = nn.Linear(2 * rank + hidden_size, 3 * rank)

    def _feature(
        self, previous: Tensor, hidden: Tensor, state: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        if state is None:
            state = torch.zeros_like(previous)
        joint: Tensor = self.joint_proj(torch.cat([state, previous, hidden], dim=-1))
        update, candidate, output = joint.chunk(3, dim=-1)
        kept = torch.sigmoid(update)
        return torch.tanh(output), kept * state + (1 - kept) * torch.tanh(candidate)


class ConfidenceHead(nn.Module):
    """Predicts, as a logit, that a slot's token is accepted given that all earlier ones are.

    With rank > 0 it also reads the previous token's row of W1. It does not read the slot's token,
    so its output may decide whether that token is verified.
    """

    def __init__(self, *, hidden_size: int, rank: int) -> None:
        super().__init__()
        self.proj = nn.Linear(hidden_size + rank, 1)  # always loaded in float32

    def forward(
        self, hidden: Float[Tensor, "B K E"], previous: Float[Tensor, "B K r"] | None
    ) -> Float[Tensor, "B K"]:
        feature = hidden if previous is None else torch.cat([hidden, previous], dim=-1)
        logits: Tensor = self.proj(feature.to(self.proj.weight.dtype))
        return logits.squeeze(-1).float()


_HEADS: dict[MarkovKind, type[MarkovHead]] = {
    "vanilla": MarkovHead,
    "gated": GatedMarkovHead,
    "rnn": RNNMarkovHead,
}


def build_markov_head(
    kind: MarkovKind,
    *,
    vocab_size: int,
    rank: int,
    hidden_size: int,
    num_outputs: int | None = None,
) -> MarkovHead:
    return _HEADS[kind](
        vocab_size=vocab_size, rank=rank, hidden_size=hidden_size, num_outputs=num_outputs
    )
