"""Compiles the forward pass with torch.compile, if the results agree."""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from draft.network.network import DSparkNetwork
from dspark.training.model.blocks import MicroBatch
from dspark.training.model.forward import BlockOutput, ForwardBlocks, forward_blocks

logger = logging.getLogger(__name__)

# Relative to the largest logit or gradient of the trial; above rounding differences.
_TOLERANCE = 1e-3
_AUTOCAST_TOLERANCE = 5e-2
_TURNS = 5
_GAIN = 0.95  # largest accepted time relative to the plain pass

# Returns the seconds of a call, until the device has finished.
Stopwatch = Callable[[Callable[[], object]], float]


def compile_for_any_length(forward: ForwardBlocks, *, backend: Any = "inductor") -> ForwardBlocks:
    """Compile with symbolic numbers of tokens and blocks, so that new lengths do not recompile.

    If two of them are equal, the compiler may specialise; beyond its limit it runs uncompiled.
    """
    compiled: ForwardBlocks = torch.compile(forward, dynamic=True, backend=backend)
    return compiled


def compile_forward(
    network: DSparkNetwork,
    trial: MicroBatch,
    *,
    autocast: bool,
    compiler: Callable[[ForwardBlocks], ForwardBlocks] = compile_for_any_length,
    stopwatch: Stopwatch | None = None,
) -> ForwardBlocks:
    """Return forward_blocks compiled, or as it is with the reason in the log.

    trial: a batch to compare both, forward and backward. With a stopwatch the compiled form must
    also be faster.
    """
    started = time.perf_counter()
    compiled = compiler(forward_blocks)
    expected = _run(forward_blocks, network, trial, autocast=autocast)
    try:
        found = _run(compiled, network, trial, autocast=autocast)
    except Exception as error:  # a compiler may raise anything
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        logger.warning("training is not compiled: %s", reason[:300])
        return forward_blocks
    finally:
        network.zero_grad(set_to_none=True)
    difference = max(_difference(found[name], tensor) for name, tensor in expected.items())
    if not difference <= (_AUTOCAST_TOLERANCE if autocast else _TOLERANCE):  # NaN fails too
        logger.warning("training is not compiled: the compiled pass differs by %.1e", difference)
        return forward_blocks
    if stopwatch is not None:
        plain_s, compiled_s = _least_seconds(
            stopwatch,
            lambda: _run(forward_blocks, network, trial, autocast=autocast),
            lambda: _run(compiled, network, trial, autocast=autocast),
        )
        network.zero_grad(set_to_none=True)
        if compiled_s > _GAIN * plain_s:
            logger.info(
                "training is not compiled: a pass takes %.1f ms compiled and %.1f ms plain",
                1000 * compiled_s,
                1000 * plain_s,
            )
            return forward_blocks
    logger.info("training is compiled: %.1f s", time.perf_counter() - started)
    return _WithFallback(compiled)


def _least_seconds(stopwatch: Stopwatch, *runs: Callable[[], object]) -> list[float]:
    """Return the least seconds of each run."""
    turns = [[stopwatch(run) for run in runs] for _ in range(_TURNS)]
    return [min(times) for times in zip(*turns, strict=True)]


class _WithFallback:
    """Runs the compiled form, and forward_blocks after its first error."""

    def __init__(self, compiled: ForwardBlocks) -> None:
        self._forward = compiled

    def __call__(self, network: DSparkNetwork, batch: MicroBatch) -> BlockOutput:
        try:
            return self._forward(network, batch)
        except Exception as error:
            if self._forward is forward_blocks:
                raise
            logger.warning("training continues uncompiled: %s", type(error).__name__)
            self._forward = forward_blocks
        return forward_blocks(network, batch)


def _run(
    forward: ForwardBlocks, network: DSparkNetwork, batch: MicroBatch, *, autocast: bool
) -> Mapping[str, Tensor]:
    """Return the logits, and the gradients of a sum over the outputs."""
    network.zero_grad(set_to_none=True)
    with torch.autocast(batch.taps.device.type, torch.bfloat16, enabled=autocast):
        output = forward(network, batch)
    logits = output.logits.float()
    total = logits.square().mean()
    if output.confidence_logits is not None:
        total = total + output.confidence_logits.float().square().mean()
    total.backward()  # type: ignore[no-untyped-call]
    gradients = {n: p.grad for n, p in network.named_parameters() if p.grad is not None}
    return {"logits": logits.detach(), **gradients}


def _difference(found: Tensor, expected: Tensor) -> float:
    """Return the largest difference relative to the largest expected value."""
    largest = float(expected.abs().max())
    return float((found - expected).abs().max()) / largest if largest else 0.0
