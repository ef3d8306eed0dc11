"""Heads on top of the block: the Markov correction of its logits, and its confidence."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from draft.config import MarkovKind


class MarkovHead(nn.Module):
    """A first-order bias of low rank: W2 · f(W1[previous token], ...), added to base logits.

    This class is the vanilla head, where f is W1's row itself.
    """

    def __init__(
        self, *, vocab_size: int, rank: int, hidden_size: int, num_outputs: int | None = None
    ) -> None:
        """num_outputs: tokens that the draft can say; None: all that it can follow."""
        super().__init__()
        self.markov_w1 = nn.Embedding(vocab_size, rank)
        self.markov_w2: nn.Module = nn.Linear(
            rank, vocab_size if num_outputs is None else num_outputs, bias=False
        )

    def embed(self, ids: Int[Tensor, "*B"]) -> Float[Tensor, "*B r"]:
        """Rows of W1."""
        rows: Tensor = self.markov_w1(ids)
        return rows

    def bias(
        self,
        previous_ids: Int[Tensor, "B"],
        hidden: Float[Tensor, "B E"],
        state: Float[Tensor, "B r"] | None,
    ) -> tuple[Float[Tensor, "B Vd"], Float[Tensor, "B r"] | None]:
        """The bias of one slot given the token before it, and the state for the next slot.

        hidden is the slot's, after the final norm. The first slot's state is None.
        """
        feature, state = self._feature(self.embed(previous_ids), hidden, state)
        return self.markov_w2(feature), state

    @property
    def tells_words_apart(self) -> bool:
        """Whether `bias_of` can be asked, and slots that have not asked for `bias` do no harm."""
        return type(self.markov_w2) is nn.Linear

    def bias_of(
        self, words: Int[Tensor, "n"], previous_id: Int[Tensor, ""], hidden: Float[Tensor, "E"]
    ) -> Float[Tensor, "n"]:
        """`bias` of one row for some of its words alone."""
        assert isinstance(self.markov_w2, nn.Linear), type(self.markov_w2)
        feature, _ = self._feature(self.embed(previous_id)[None], hidden[None], None)
        return self.markov_w2.weight[words].to(feature.dtype) @ feature[0]

    def state_after(
        self, previous_ids: Int[Tensor, "B"], hidden: Float[Tensor, "B E"]
    ) -> Float[Tensor, "B r"] | None:
        """The state that a first slot without a prediction leaves to the next one."""
        return self._feature(self.embed(previous_ids), hidden, None)[1]

    def _feature(
        self, previous: Tensor, hidden: Tensor, state: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        return previous, None


class GatedMarkovHead(MarkovHead):
    """f = sigmoid(G · [hidden; w] + b) * w, with w the row of W1."""

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
    """A gated recurrence along the block, so that a slot remembers more than one token.

    (u, c, o) = J · [state; w; hidden] + b;  state = σ(u)·state + (1 - σ(u))·tanh(c);  f = tanh(o)
    """

    tells_words_apart = False  # each slot's state is the next one's

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
    """The chance, as a logit, that a slot's token stands given that those before it stand.

    With rank > 0 it also reads the row of W1 of the token before the slot. It never reads the
    slot's own token, and so may decide whether that one is verified at all.
    """

    def __init__(self, *, hidden_size: int, rank: int) -> None:
        super().__init__()
        self.proj = nn.Linear(hidden_size + rank, 1)  # loaded in float32, whatever the rest is

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
