"""The precision in which a draft's matrices lie in memory, which may be less than it computes in.

A draft round on a CPU is mostly reading: of half as many bytes, in half the time. Products widen
what they read, or round the rows that meet it where the CPU multiplies pairs of bfloat16: a matrix
that was stored in bfloat16 loses nothing by lying there in bfloat16. Activations, norms, biases and
the confidence head are few numbers, and so is what is read of the embedding: they may be float32
beside it.
"""

from collections.abc import Mapping

import torch
from torch import nn

from draft.network.network import DSparkNetwork


def hold_matrices(network: DSparkNetwork, dtype: torch.dtype) -> None:
    """Keep every matrix in dtype; a head that was the target's own becomes a copy of it.

    The layers' `forward` must widen from then on: see widening_linear.
    """
    with torch.inference_mode(False), torch.no_grad():
        for layer in matrices(network).values():
            if layer.weight.dtype != dtype:
                layer.weight = nn.Parameter(layer.weight.detach().to(dtype), requires_grad=False)


def widen_the_rest(network: DSparkNetwork) -> None:
    """Activations, norms, biases and W1 in float32, beside matrices and embedding as they are."""
    staying = {id(layer.weight) for layer in matrices(network).values()}
    staying.add(id(network.embed_tokens.weight))
    with torch.inference_mode(False), torch.no_grad():
        for module in network.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                is_plain = type(parameter) is nn.Parameter and id(parameter) not in staying
                if is_plain and parameter.dtype != torch.float32:
                    wide = nn.Parameter(parameter.detach().float(), requires_grad=False)
                    setattr(module, name, wide)


def loses_nothing(network: DSparkNetwork, dtype: torch.dtype) -> bool:
    """Whether every matrix is the same in dtype, the head apart.

    The head is often the target's, in the target's precision. Rounding it moves logits a little.
    """
    return all(
        bool((layer.weight.to(dtype).to(layer.weight.dtype) == layer.weight).all())
        for layer in matrices(network).values()
        if layer is not network.lm_head
    )


def matrices_dtype(network: DSparkNetwork) -> torch.dtype:
    """Of the plain ones; the activations' own where every layer is a foreign one."""
    return next((m.weight.dtype for m in matrices(network).values()), network.dtype)


def matrices(network: DSparkNetwork) -> Mapping[str, nn.Linear]:
    """Every plain matrix product by name, the single row of the confidence head apart."""
    confidence = network.confidence_head
    apart = set(confidence.modules()) if confidence is not None else set()
    return {
        name: module
        for name, module in network.named_modules()
        if type(module) is nn.Linear and module not in apart
    }
