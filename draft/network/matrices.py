"""Stores a draft's matrices in a narrower dtype than its activations.

On a CPU a draft round is bound by reading weights, so narrow matrices shorten it. Matrices of a
bfloat16 checkpoint keep their exact values in bfloat16; int8 ones are rounded, with a scale for
each row. Matrix products widen the weights, or round the activations on CPUs that multiply
bfloat16 pairs. Activations, norms, biases, W1 and the confidence head are few numbers and may be
float32.
"""

from collections.abc import Mapping

import torch
from torch import nn

from draft.network.int8_linear import Int8Linear
from draft.network.linear import replace_linears
from draft.network.network import DSparkNetwork


def cast_matrices(network: DSparkNetwork, dtype: torch.dtype) -> None:
    """Cast every matrix to dtype. An lm_head shared with the target becomes a copy.

    The layers' `forward` must then widen their weights: see widening_linear.
    """
    with torch.inference_mode(False), torch.no_grad():
        for layer in matrices(network).values():
            if layer.weight.dtype != dtype:
                layer.weight = nn.Parameter(layer.weight.detach().to(dtype), requires_grad=False)


def quantise_matrices(network: DSparkNetwork, *, target_head: nn.Module) -> None:
    """Replace every matrix by an int8 one. A head with the target's rows becomes the target's."""
    with torch.inference_mode(False), torch.no_grad():
        replace_linears(network, lambda _, layer: Int8Linear.of(layer))
    head = network.lm_head
    if isinstance(head, Int8Linear) and isinstance(target_head, Int8Linear):
        pairs = ((head.weight, target_head.weight), (head.scale, target_head.scale))
        if all(torch.equal(ours, theirs) for ours, theirs in pairs):
            network.lm_head = target_head


def widen_other_parameters(network: DSparkNetwork) -> None:
    """Cast norms, biases and W1, and with them activations, to float32.

    Matrices and the embedding keep their dtype.
    """
    kept = {id(layer.weight) for layer in matrices(network).values()}
    kept.add(id(network.embed_tokens.weight))
    with torch.inference_mode(False), torch.no_grad():
        for module in network.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                is_plain = type(parameter) is nn.Parameter and id(parameter) not in kept
                is_float = parameter.dtype.is_floating_point
                if is_plain and is_float and parameter.dtype != torch.float32:
                    wide = nn.Parameter(parameter.detach().float(), requires_grad=False)
                    setattr(module, name, wide)


def is_lossless(network: DSparkNetwork, dtype: torch.dtype) -> bool:
    """Check whether every matrix except lm_head keeps its exact values in dtype.

    lm_head is often the target's, in the target's precision; rounding it moves logits slightly.
    """
    return all(
        bool((layer.weight.to(dtype).to(layer.weight.dtype) == layer.weight).all())
        for layer in matrices(network).values()
        if layer is not network.lm_head
    )


def matrices_dtype(network: DSparkNetwork) -> torch.dtype:
    """Return the dtype of the plain or int8 matrices; of activations if there are none."""
    if any(type(module) is Int8Linear for module in network.modules()):
        return torch.int8
    return next((m.weight.dtype for m in matrices(network).values()), network.dtype)


def matrices(network: DSparkNetwork) -> Mapping[str, nn.Linear]:
    """Return every plain linear layer by name, except the confidence head's."""
    confidence = network.confidence_head
    apart = set(confidence.modules()) if confidence is not None else set()
    return {
        name: module
        for name, module in network.named_modules()
        if type(module) is nn.Linear and module not in apart
    }
