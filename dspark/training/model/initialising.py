"""Where a training begins: random weights, or what can be had from the target."""

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
# Queries and keys of a target that does not norm them are longer than 1 a component; with weights
# of 1 the draft's attention would begin almost flat. See docs/experiments.md.
_HEAD_NORM = 1.5


@dataclass(frozen=True, slots=True)
class TargetWeights:
    """What a draft may begin with; names as in a decoder layer of Llama's kind."""

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
    words: Int[Tensor, "Vd"] | None = None,
) -> DSparkNetwork:
    """A float32 network whose embedding and head are the target's own tensors, never trained.

    words: target ids, ascending, of a draft with a vocabulary of its own; its head is the
    target's rows for them.

    Without `start` every matrix is random, with a standard deviation of 1 / sqrt(3 * inputs).
    With it, layers and the final norm begin as the target's wherever the shapes agree, norms of
    queries and keys that it lacks sharpen attention, and the projection of the taps begins by
    handing the last of them through.
    """
    with torch.device("meta"):
        network = DSparkNetwork(config, max_positions=max_positions, device=device)
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        name: _random(name, tuple(parameter.shape), generator)
        for name, parameter in network.state_dict().items()
        if name not in _FROZEN
    }
    if start is not None:
        _begin_like(tensors, start)
    placed = {name: tensor.to(device) for name, tensor in tensors.items()}
    head = lm_head.detach() if words is None else lm_head.detach()[words.to(lm_head.device)]
    frozen = {_EMBEDDING: embedding.detach(), _LM_HEAD: head}
    network.load_state_dict(placed | frozen, strict=True, assign=True)
    if network.vocabulary is not None:
        assert words is not None, "a reduced vocabulary without words"
        network.vocabulary.target_ids = words.to(device)
    return make_trainable(network)


def with_words(
    network: DSparkNetwork, words: Int[Tensor, "Vd"], *, max_positions: int
) -> DSparkNetwork:
    """The same draft, which had the whole vocabulary, with `words` alone: target ids, ascending."""
    assert network.vocabulary is None, "words of words"
    config = replace(network.config, draft_vocab_size=len(words))
    tensors = network.state_dict()
    device = network.norm.weight.device
    with torch.device("meta"):
        reduced = DSparkNetwork(config, max_positions=max_positions, device=device)
    for name in (_LM_HEAD, _MARKOV_HEAD):
        if name in tensors:
            tensors[name] = tensors[name][words.to(device)]
    reduced.load_state_dict(tensors, strict=True, assign=True)
    assert reduced.vocabulary is not None
    reduced.vocabulary.target_ids = words.to(device)
    return reduced


def make_trainable(network: DSparkNetwork) -> DSparkNetwork:
    """Gradients for everything that is not the target's."""
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(name not in _FROZEN)
    return network.train()


def _random(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    if "norm" in name:
        return torch.ones(shape)
    starts_silent = name.startswith(("confidence_head.", "markov_head.markov_w2"))
    if len(shape) == 1 or starts_silent:
        return torch.zeros(shape)
    spread: float = (3 * shape[-1]) ** -0.5
    return torch.randn(shape, generator=generator) * spread


def _begin_like(tensors: dict[str, Tensor], start: TargetWeights) -> None:
    for index, layer in enumerate(start.layers):
        for norm in ("q_norm", "k_norm"):
            tensors[f"layers.{index}.self_attn.{norm}.weight"].fill_(_HEAD_NORM)
        for name, tensor in layer.items():
            _take(tensors, f"layers.{index}.{name}", tensor)
    _take(tensors, "norm.weight", start.final_norm)
    size = tensors["fc.weight"].shape[0]
    tensors["fc.weight"][:, -size:] = torch.eye(size)


def _take(tensors: dict[str, Tensor], name: str, tensor: Tensor | None) -> None:
    if tensor is not None and name in tensors and tensors[name].shape == tensor.shape:
        tensors[name] = tensor.detach().float().clone()
