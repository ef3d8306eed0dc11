"""Defines DSparkNetwork: tapped hidden states to context, a block of masks to base logits."""

from collections.abc import Sequence
from functools import lru_cache
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from draft.config import DecoderVariant, DSparkConfig
from draft.network.attention import BlockAttend, BlockAttention
from draft.network.draft_vocabulary import DraftVocabulary
from draft.network.heads import ConfidenceHead, MarkovHead, build_markov_head
from draft.network.norm import RMSNorm
from draft.network.rotary import RotaryTable, Rotation
from kv_pool import KVShape


class DSparkNetwork(nn.Module):
    """Runs a non-causal transformer over blocks [anchor, mask, mask, ...], with its heads.

        taps [N, A] --fc, hidden_norm--> context [N, E] --each layer's k_proj, v_proj--> context KV
        ids [B, N]  --embed, layers (attend to context KV and block), norm--> hidden [B, N, E]
        hidden      --lm_head--> base logits; Markov sampling adds the Markov head's bias

    Parameters are named as in a DeepSpec checkpoint. Linear layers may be replaced by modules
    that map the same shapes; see replace_linears.
    """

    def __init__(
        self, config: DSparkConfig, *, max_positions: int, device: torch.device | None = None
    ) -> None:
        """max_positions: longest sequence in tokens; a block may reach num_slots beyond it.

        device: of the rotary tables; parameters follow the default device, which may be meta.
        """
        super().__init__()
        self.config = config
        size = config.hidden_size
        rotations = [(layer.rope_theta, layer.rotary_fraction) for layer in config.layers]
        tables = {
            (theta, fraction): RotaryTable(
                head_dim=config.head_dim,
                theta=theta,
                fraction=fraction,
                num_positions=max_positions + config.num_slots,
                device=device or torch.get_default_device(),
            )
            for theta, fraction in set(rotations)
        }
        self.embed_tokens = nn.Embedding(config.vocab_size, size)
        self.lm_head: nn.Module = nn.Linear(size, config.num_outputs, bias=False)
        self.fc: nn.Module = nn.Linear(config.aux_size, size, bias=False)
        self.hidden_norm = RMSNorm(size, eps=config.rms_norm_eps)
        self.layers = nn.ModuleList(
            DraftLayer(config, index, tables[rotation]) for index, rotation in enumerate(rotations)
        )
        self.norm = RMSNorm(size, eps=config.rms_norm_eps)
        self.markov_head = _markov_head(config)
        self.confidence_head = _confidence_head(config)
        self.vocabulary = (
            DraftVocabulary(size=config.draft_vocab_size)
            if config.draft_vocab_size is not None
            else None
        )

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of activations; matrices and the embedding may have another."""
        return self.norm.weight.dtype

    @property
    def kv_shapes(self) -> tuple[KVShape, ...]:
        """Describe what each layer stores for one token."""
        return self.config.kv_shapes(self.dtype)

    @property
    def attentions(self) -> Sequence[BlockAttention]:
        return [cast(DraftLayer, layer).self_attn for layer in self.layers]

    def project_taps(self, aux_hidden: Float[Tensor, "N A"]) -> Float[Tensor, "N E"]:
        """Project aux hidden states to context vectors, the input of every layer's context KV."""
        context: Tensor = self.hidden_norm(self.fc(aux_hidden.to(self.dtype)))
        return context

    def block_ids(self, anchor_ids: Int[Tensor, "B"]) -> Int[Tensor, "B N"]:
        """Build each block's input ids, num_slots wide: the anchor, then mask tokens."""
        masks = anchor_ids.new_full((1, self.config.num_slots - 1), self.config.mask_token_id)
        return torch.cat([anchor_ids[:, None], masks.expand(anchor_ids.shape[0], -1)], dim=1)

    def hidden(
        self, ids: Int[Tensor, "B N"], positions: Int[Tensor, "B N"], block: BlockAttend
    ) -> Float[Tensor, "B N E"]:
        """Compute the blocks' hidden states after the final norm."""
        x = self._embed(ids.flatten())
        rotations = self.rotations(positions.flatten())
        for layer in self.layers:
            x = layer(x, rotations, block)
        hidden: Tensor = self.norm(x)
        return hidden.view(*ids.shape, -1)

    def _embed(self, ids: Int[Tensor, "T"]) -> Float[Tensor, "T E"]:
        x: Tensor = self.embed_tokens(ids).to(self.dtype)
        if not self.config.variant.scales_embeddings:
            return x
        return x * _rounded(x.shape[-1] ** 0.5, self.embed_tokens.weight.dtype)

    def predicting(
        self, hidden: Float[Tensor, "B N E"], anchor_ids: Int[Tensor, "B"]
    ) -> tuple[Float[Tensor, "B K E"], Float[Tensor, "B r"] | None]:
        """Return the hidden states of the predicting slots, and the Markov state before them.

        Without sample_from_anchor the anchor's slot predicts nothing. A recurrent head still
        advances over it, with the anchor as its previous token, as in training.
        """
        state = None
        if self.markov_head is not None and not self.config.sample_from_anchor:
            state = self.markov_head.state_after(anchor_ids, hidden[:, 0])
        return self.predicting_slots(hidden), state

    def predicting_slots(self, hidden: Float[Tensor, "B N E"]) -> Float[Tensor, "B K E"]:
        return hidden if self.config.sample_from_anchor else hidden[:, 1:]

    def base_logits(self, hidden: Float[Tensor, "B K E"]) -> Float[Tensor, "B K Vd"]:
        """Compute logits over the draft vocabulary, without the Markov head's bias."""
        logits: Tensor = self.lm_head(hidden)
        return cap_logits(logits, self.config.variant.logit_cap)

    def confidence_logits(
        self,
        hidden: Float[Tensor, "B K E"],
        anchor_ids: Int[Tensor, "B"],
        draft_ids: Int[Tensor, "B K"],
    ) -> Float[Tensor, "B K"] | None:
        """Compute the confidence logits of all slots in float32; None without the head."""
        if self.confidence_head is None:
            return None
        previous = None
        if self.config.confidence_with_markov:
            assert self.markov_head is not None, "the confidence head reads the Markov head's W1"
            before = torch.cat([anchor_ids[:, None], draft_ids[:, :-1]], dim=1)
            previous = self.markov_head.embed(before)
        logits: Tensor = self.confidence_head(hidden, previous)
        return logits

    def rotations(self, positions: Int[Tensor, "T"]) -> dict[RotaryTable, Rotation]:
        """Look up each distinct rotary table once."""
        tables = {attention.rotary for attention in self.attentions}
        return {table: table.at(positions) for table in tables}


@lru_cache
def _rounded(number: float, dtype: torch.dtype) -> float:
    """Round a number to dtype."""
    return torch.tensor(number, dtype=dtype).item()


def cap_logits(logits: Float[Tensor, "*B V"], cap: float | None) -> Float[Tensor, "*B V"]:
    """Compute cap * tanh(logits / cap); None: no cap."""
    return logits if cap is None else torch.tanh(logits / cap) * cap


class DraftLayer(nn.Module):
    """Runs one decoder layer; DecoderVariant describes its norms, activation and scale.

        x = x + attention(input norm(x));  x = x + feed-forward(post-attention norm(x))

    A variant that norms outputs adds post-attention norm(attention(...)) instead, and puts the
    feed-forward network between two norms.
    """

    layer_scalar: Float[Tensor, "1"] | None

    def __init__(self, config: DSparkConfig, index: int, rotary: RotaryTable) -> None:
        super().__init__()
        variant, size, eps = config.variant, config.hidden_size, config.rms_norm_eps
        self.self_attn = BlockAttention(config, layer=index, rotary=rotary)
        self.mlp = GatedMLP(size, config.intermediate_size, variant=variant)
        self.input_layernorm = RMSNorm(size, eps=eps)
        self.post_attention_layernorm = RMSNorm(size, eps=eps)
        self.norms_outputs = variant.norms_outputs
        if variant.norms_outputs:
            self.pre_feedforward_layernorm = RMSNorm(size, eps=eps)
            self.post_feedforward_layernorm = RMSNorm(size, eps=eps)
        self.register_buffer("layer_scalar", torch.ones(1) if variant.scales_layers else None)

    def forward(
        self,
        x: Float[Tensor, "T E"],
        rotations: dict[RotaryTable, Rotation],
        block: BlockAttend,
    ) -> Float[Tensor, "T E"]:
        attended = self.self_attn(self.input_layernorm(x), rotations[self.self_attn.rotary], block)
        if self.norms_outputs:
            x = x + self.post_attention_layernorm(attended)
            x = x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))
        else:
            x = x + attended
            x = x + self.mlp(self.post_attention_layernorm(x))
        return x if self.layer_scalar is None else x * self.layer_scalar


class GatedMLP(nn.Module):
    def __init__(
        self, hidden_size: int, intermediate_size: int, *, variant: DecoderVariant
    ) -> None:
        super().__init__()
        self.activation = variant.activation
        self.gate_proj: nn.Module = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj: nn.Module = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj: nn.Module = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: Float[Tensor, "T E"]) -> Float[Tensor, "T E"]:
        gate = self.gate_proj(x)
        gate = F.silu(gate) if self.activation == "silu" else F.gelu(gate, approximate="tanh")
        out: Tensor = self.down_proj(gate * self.up_proj(x))
        return out


def _markov_head(config: DSparkConfig) -> MarkovHead | None:
    if config.markov_kind is None:
        return None
    return build_markov_head(
        config.markov_kind,
        vocab_size=config.vocab_size,
        num_outputs=config.num_outputs,
        rank=config.markov_rank,
        hidden_size=config.hidden_size,
    )


def _confidence_head(config: DSparkConfig) -> ConfidenceHead | None:
    if not config.has_confidence_head:
        return None
    rank = config.markov_rank if config.confidence_with_markov else 0
    return ConfidenceHead(hidden_size=config.hidden_size, rank=rank)
