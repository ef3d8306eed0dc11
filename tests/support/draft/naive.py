"""Computes the draft by its formulas: one sequence at a time, dense, in float64."""

from collections.abc import Sequence

import torch
from torch import Tensor

from draft import DSparkNetwork, LayerConfig
from draft.network.attention import BlockAttention
from draft.network.norm import RMSNorm


def naive_context(
    network: DSparkNetwork, aux_hidden: Tensor, positions: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute keys and values of context tokens: [L, N, H, D] each."""
    network = _double(network)
    context = _norm(network.fc(aux_hidden.double()), network.hidden_norm)
    pairs = [_keys_values(attention, context, positions) for attention in network.attentions]
    return torch.stack([k for k, _ in pairs]), torch.stack([v for _, v in pairs])


def naive_hidden(network: DSparkNetwork, aux_hidden: Tensor, anchor_id: int) -> Tensor:
    """Compute hidden states [N, E] of the block after a context of len(aux_hidden) tokens."""
    keys, values = naive_context(network, aux_hidden, torch.arange(len(aux_hidden)))
    network, config = _double(network), network.config
    anchor, width = len(aux_hidden), _num_slots(network)
    positions = torch.arange(anchor, anchor + width)
    ids = torch.tensor([anchor_id] + [config.mask_token_id] * (width - 1))
    x = network.embed_tokens(ids)
    for index, layer in enumerate(network.layers):
        attention, y = layer.self_attn, _norm(x, layer.input_layernorm)
        block_keys, block_values = _keys_values(attention, y, positions)
        query = _heads(attention.q_proj(y), config.head_dim)
        query = _rotate(_norm(query, attention.q_norm), positions, attention.rotary.theta)
        out = _attend(
            query,
            torch.cat([keys[index], block_keys]),
            torch.cat([values[index], block_values]),
            positions,
            config.layers[index],
        )
        x = x + attention.o_proj(out.flatten(1))
        y = _norm(x, layer.post_attention_layernorm)
        mlp = layer.mlp
        x = x + mlp.down_proj(torch.nn.functional.silu(mlp.gate_proj(y)) * mlp.up_proj(y))
    return _norm(x, network.norm)


def naive_predictions(
    network: DSparkNetwork, hidden: Tensor, anchor_id: int, draft_ids: Sequence[int]
) -> tuple[Tensor, Tensor | None]:
    """Compute probabilities [K, V] and confidence logits [K] of a block with these tokens.

    With sample_from_anchor slot j predicts the token at anchor + j + 1, without it the token at
    anchor + j. The token before that one feeds the Markov head; for the anchor's position it is
    the anchor.
    """
    config = network.config
    tokens = [anchor_id, *draft_ids]
    target_ids = network.vocabulary.target_ids if network.vocabulary else None
    probs, confidences, state = [], [], None
    for slot in range(len(hidden)):
        place = slot + 1 if config.sample_from_anchor else slot
        before = torch.tensor([tokens[max(place - 1, 0)]])
        logits = network.lm_head(hidden[slot])
        if network.markov_head is not None:
            bias, state = network.markov_head.bias(before, hidden[None, slot], state)
            logits = logits + bias[0]
        if place == 0:
            continue
        q = torch.softmax(logits, -1)
        if target_ids is not None:
            whole = torch.zeros(config.vocab_size)
            for target_id, probability in zip(target_ids.tolist(), q, strict=True):
                whole[target_id] = probability
            q = whole
        probs.append(q)
        if network.confidence_head is not None:
            feature = hidden[slot]
            if config.confidence_with_markov:
                feature = torch.cat([feature, network.markov_head.markov_w1.weight[before[0]]])
            row = network.confidence_head.proj
            confidences.append(feature @ row.weight[0] + row.bias[0])
    return torch.stack(probs), torch.stack(confidences) if confidences else None


def _num_slots(network: DSparkNetwork) -> int:
    config = network.config
    return config.block_size if config.sample_from_anchor else 1 + config.block_size


def _double(network: DSparkNetwork) -> DSparkNetwork:
    """Copy the network in float64; rotations are computed here, not looked up."""
    twin = DSparkNetwork(network.config, max_positions=1, device=torch.device("cpu")).double()
    for mine, theirs in zip(twin.attentions, network.attentions, strict=True):
        mine.rotary, mine.k_norm.eps = theirs.rotary, theirs.k_norm.eps
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            if getattr(theirs, name).bias is not None and getattr(mine, name).bias is None:
                getattr(mine, name).bias = torch.nn.Parameter(
                    torch.zeros_like(getattr(theirs, name).bias)
                )
    twin.load_state_dict({k: v.double() for k, v in network.state_dict().items()}, assign=True)
    return twin.requires_grad_(False)


def _norm(x: Tensor, norm: RMSNorm) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight


def _heads(x: Tensor, head_dim: int) -> Tensor:
    return x.view(x.shape[0], x.shape[1] // head_dim, head_dim)


def _rotate(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    half = x.shape[-1] // 2
    angles = positions.double()[:, None] / theta ** (torch.arange(half).double() / half)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]  # (N, 1, D / 2)
    low, high = x[..., :half], x[..., half:]
    return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)


def _keys_values(attention: BlockAttention, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    keys = _norm(_heads(attention.k_proj(x), attention.head_dim), attention.k_norm)
    values = _heads(attention.v_proj(x), attention.head_dim)
    return _rotate(keys, positions, attention.rotary.theta), values


def _attend(
    query: Tensor, keys: Tensor, values: Tensor, positions: Tensor, layer: LayerConfig
) -> Tensor:
    group = query.shape[1] // keys.shape[1]
    keys, values = (x.repeat_interleave(group, dim=1) for x in (keys, values))
    scores = torch.einsum("qhd,khd->hqk", query, keys) * query.shape[-1] ** -0.5
    at = torch.arange(len(keys))
    if layer.sliding_window is not None:
        unseen = at <= positions[:, None] - layer.sliding_window
        scores = scores.masked_fill(unseen, float("-inf"))
    if layer.causal:
        scores = scores.masked_fill(at > positions[:, None], float("-inf"))
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), values)
