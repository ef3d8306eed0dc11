"""Initialises a trainable draft: random weights, or weights of the target."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draft.config import DSparkConfig
from draft.network.network import DSparkNetwork

_EMBEDDING, _LM_HEAD = "embed_tokens.weight", "lm_head.weight"
_FROZEN = (_EMBEDDING, _LM_HEAD)
_MARKOV_HEAD = "markov_head.markov_w2.weight"
# Queries and keys of a target without norms are larger than 1 per component; norm weights of 1
# would make the draft's attention almost uniform at first. See docs/experiments.md.
_HEAD_NORM = 1.5


@dataclass(frozen=True, slots=True)
class TargetWeights:
    """Initial weights from the target, with the names of a Llama decoder layer."""

    layers: Sequence[Mapping[str, Tensor]]  # the last ones, in order, one for each draft layer
    final_norm: Float[Tensor, "E"] | None


def new_network(
    config: DSparkConfig,
    *,
    embedding: Float[Tensor, "V E"],
    lm_head: Float[Tensor, "V E"],
    start: TargetWeights | None,
    max_positions: int,
    seed: int,
    device: torch.device,
    kept_ids: Int[Tensor, "Vd"] | None = None,
) -> DSparkNetwork:
    """Build a float32 network that shares the target's embedding and head, never trained.

    kept_ids: target ids, ascending, of a draft with a reduced vocabulary; its head is the
    target's rows for them.

    Without `start`, matrices are random with a standard deviation of 1 / sqrt(3 * inputs). With
    it, layers and the final norm start as the target's if the shapes agree. Norms of queries and
    keys that the target lacks sharpen attention, and fc passes the last tap through.
    """
    with torch.device("meta"):
        network = DSparkNetwork(config, max_positions=max_positions, device=device)
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        name: _random(name, tuple(parameter.shape), generator)
        for name, parameter in network.state_dict().items()
        if name not in _FROZEN
    }
    for attention in network.attentions:  # scores as with the usual scale, 1 / sqrt(head_dim)
        query_norm = tensors[f"layers.{attention.layer}.self_attn.q_norm.weight"]
        query_norm *= config.head_dim**-0.5 / attention.scale
    if start is not None:
        _copy_target_weights(tensors, start)
    placed = {name: tensor.to(device) for name, tensor in tensors.items()}
    head = lm_head.detach() if kept_ids is None else lm_head.detach()[kept_ids.to(lm_head.device)]
    frozen = {_EMBEDDING: embedding.detach(), _LM_HEAD: head}
    network.load_state_dict(placed | frozen, strict=True, assign=True)
    if network.vocabulary is not None:
        assert kept_ids is not None, "a reduced vocabulary without kept_ids"
        network.vocabulary.target_ids = kept_ids.to(device)
    return make_trainable(network)


def with_draft_vocabulary(
    network: DSparkNetwork, kept_ids: Int[Tensor, "Vd"], *, max_positions: int
) -> DSparkNetwork:
    """Reduce a draft with the whole vocabulary to `kept_ids`: target ids, ascending."""
    assert network.vocabulary is None, "the vocabulary is already reduced"
    config = replace(network.config, draft_vocab_size=len(kept_ids))
    tensors = network.state_dict()
    device = network.norm.weight.device
    with torch.device("meta"):
        reduced = DSparkNetwork(config, max_positions=max_positions, device=device)
    for name in (_LM_HEAD, _MARKOV_HEAD):
        if name in tensors:
            tensors[name] = tensors[name][kept_ids.to(device)]
    reduced.load_state_dict(tensors, strict=True, assign=True)
    assert reduced.vocabulary is not None
    reduced.vocabulary.target_ids = kept_ids.to(device)
    return reduced


def make_trainable(network: DSparkNetwork) -> DSparkNetwork:
    """Enable gradients for all parameters except those of the target."""
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(name not in _FROZEN)
    return network.train()


def _random(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    if "norm" in name or name.endswith("layer_scalar"):
        return torch.ones(shape)
    starts_at_zero = name.startswith(("confidence_head.", "markov_head.markov_w2"))
    if len(shape) == 1 or starts_at_zero:
        return torch.zeros(shape)
    spread: float = (3 * shape[-1]) ** -0.5
    return torch.randn(shape, generator=generator) * spread


def _copy_target_weights(tensors: dict[str, Tensor], start: TargetWeights) -> None:
    for index, layer in enumerate(start.layers):
        for norm in ("q_norm", "k_norm"):
            tensors[f"layers.{index}.self_attn.{norm}.weight"].fill_(_HEAD_NORM)
        for name, tensor in layer.items():
            _copy_if_same_shape(tensors, f"layers.{index}.{name}", tensor)
    _copy_if_same_shape(tensors, "norm.weight", start.final_norm)
    size = tensors["fc.weight"].shape[0]
    tensors["fc.weight"][:, -size:] = torch.eye(size)


def _copy_if_same_shape(tensors: dict[str, Tensor], name: str, tensor: Tensor | None) -> None:
    if tensor is not None and name in tensors and tensors[name].shape == tensor.shape:
        tensors[name] = tensor.detach().float().clone()
