"""Defines DSparkConfig: a draft's configuration, independent of its checkpoint format."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch

from draft.errors import DraftLoadError
from kv_pool import KVShape

MarkovKind = Literal["vanilla", "gated", "rnn"]
Activation = Literal["silu", "gelu_tanh"]
ValueKind = Literal["projected", "normed_projection", "normed_keys"]


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """Describes the target that a draft must match."""

    hidden_size: int
    num_layers: int
    vocab_size: int  # rows of the embedding, padding included


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """Describes what may differ between the layers of one draft."""

    rope_theta: float
    sliding_window: int | None = None  # tokens; None: the whole past
    causal: bool = False  # a slot does not attend to later slots of its block
    rotary_fraction: float = 1.0  # of the frequencies; the rest of the head is not rotated


@dataclass(frozen=True, slots=True)
class DecoderVariant:
    """Describes how a draft's decoder differs from Qwen3's, which the defaults describe."""

    activation: Activation = "silu"
    attention_scale: float | None = None  # None: head_dim ** -0.5
    values: ValueKind = "projected"  # normed: per head, without a weight; keys: before their norm
    norms_outputs: bool = False  # attention and feed-forward outputs are normed before they add
    scales_layers: bool = False  # a layer's output is multiplied by its layer_scalar
    scales_embeddings: bool = False  # by sqrt(hidden_size), rounded to the embedding's dtype
    logit_cap: float | None = None  # base logits become cap * tanh(logits / cap)

    @property
    def shares_kv(self) -> bool:
        """Whether keys and values come from one projection."""
        return self.values == "normed_keys"

    @property
    def norms_values(self) -> bool:
        return self.values != "projected"


def gemma4_variant(*, shares_kv: bool, logit_cap: float | None) -> DecoderVariant:
    """Describe Gemma 4's decoder. shares_kv: its attention_k_eq_v."""
    return DecoderVariant(
        activation="gelu_tanh",
        attention_scale=1.0,
        values="normed_keys" if shares_kv else "normed_projection",
        norms_outputs=True,
        scales_layers=True,
        scales_embeddings=True,
        logit_cap=logit_cap,
    )


@dataclass(frozen=True, slots=True)
class DSparkConfig:
    """Describes a draft. Readers in draft/checkpoint build it from a config.json.

    A block is block_size draft tokens. Its num_slots slots in the network are the anchor and
    mask tokens. The slot convention defines which token a slot predicts:

        sample_from_anchor   slots            slot j predicts the token at
        True                 block_size       anchor + j + 1
        False                block_size + 1   anchor + j; slot 0 predicts nothing
    """

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    attention_bias: bool
    layers: tuple[LayerConfig, ...]
    block_size: int
    mask_token_id: int
    tap_layers: tuple[int, ...]  # 0 is the first layer's output, -1 the embedding's
    markov_kind: MarkovKind | None  # None: no Markov head, which is DFlash
    markov_rank: int  # 0 without a Markov head
    has_confidence_head: bool
    confidence_with_markov: bool  # the confidence head also reads the previous token's row of W1
    ties_embeddings: bool = False  # lm_head and embedding are one matrix
    sample_from_anchor: bool = True
    draft_vocab_size: int | None = None  # None: the target's whole vocabulary
    variant: DecoderVariant = DecoderVariant()

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def num_slots(self) -> int:
        """Count the slots of a block: its rows in the network and its scratch KV slots."""
        return self.block_size if self.sample_from_anchor else self.block_size + 1

    @property
    def num_outputs(self) -> int:
        """Count the rows of lm_head and of the Markov head's W2."""
        return self.vocab_size if self.draft_vocab_size is None else self.draft_vocab_size

    @property
    def aux_size(self) -> int:
        """Return the width A of the concatenated taps."""
        return len(self.tap_layers) * self.hidden_size

    def kv_shapes(self, dtype: torch.dtype) -> tuple[KVShape, ...]:
        """Describe what each layer stores for one token."""
        shape = KVShape(
            num_kv_heads=self.num_kv_heads,
            key_dim=self.head_dim,
            value_dim=self.head_dim,
            dtype=dtype,
        )
        return (shape,) * self.num_layers


def check_taps(field: str, taps: tuple[int, ...], *, num_layers: int) -> None:
    """Check that taps are strictly increasing layers that can be captured.

    The last layer cannot: its hidden state in transformers is after the final norm, while drafts
    are trained on the output before it.

    Raises DraftLoadError.
    """
    in_order = all(low < high for low, high in pairwise(taps))
    if not taps or not in_order or taps[0] < -1 or taps[-1] > num_layers - 2:
        raise DraftLoadError(
            field,
            found=list(taps),
            accepted=f"strictly increasing layers from -1 (embedding) to {num_layers - 2} "
            f"(the target's last layer, {num_layers - 1}, cannot be tapped)",
        )
