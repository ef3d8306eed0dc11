"""The forward pass of a training compiled by torch.compile, if it says the same."""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from draft.network.network import DSparkNetwork
from dspark.training.model.blocks import MicroBatch
from dspark.training.model.forward import BlockGuesses, GuessBlocks, guess_blocks

logger = logging.getLogger(__name__)

# Of the largest logit or gradient of a trial: rounding in another order stays below.
_TOLERANCE = 1e-3
_AUTOCAST_TOLERANCE = 5e-2
_TURNS = 5
_GAIN = 0.95  # of the plain pass's time at most, or compiling has gained nothing

# How many seconds a call takes, until the device is done with it.
Stopwatch = Callable[[Callable[[], object]], float]


def compile_for_any_length(guess: GuessBlocks, *, backend: Any = "inductor") -> GuessBlocks:
    """Numbers of tokens and of blocks are symbols from the start, so a new length compiles nothing.

    Where two of them happen to be equal, the compiler may make a form for just that; it has a limit
    of its own for such, beyond which it runs plainly what it has no form for.
    """
    compiled: GuessBlocks = torch.compile(guess, dynamic=True, backend=backend)
    return compiled


def compile_guesses(
    network: DSparkNetwork,
    trial: MicroBatch,
    *,
    autocast: bool,
    compiler: Callable[[GuessBlocks], GuessBlocks] = compile_for_any_length,
    stopwatch: Stopwatch | None = None,
) -> GuessBlocks:
    """guess_blocks compiled, or as it is and the reason logged.

    trial: what is run both ways, forward and backward, before the compiled form is taken. With a
    stopwatch that form must also be the faster one.
    """
    started = time.perf_counter()
    compiled = compiler(guess_blocks)
    expected = _run(guess_blocks, network, trial, autocast=autocast)
    try:
        found = _run(compiled, network, trial, autocast=autocast)
    except Exception as error:  # a compiler raises what it likes
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        logger.warning("training is not compiled: %s", reason[:300])
        return guess_blocks
    finally:
        network.zero_grad(set_to_none=True)
    difference = max(_difference(found[name], tensor) for name, tensor in expected.items())
    if not difference <= (_AUTOCAST_TOLERANCE if autocast else _TOLERANCE):  # NaN fails too
        logger.warning("training is not compiled: the compiled pass differs by %.1e", difference)
        return guess_blocks
    if stopwatch is not None:
        plain_s, compiled_s = _in_turns(
            stopwatch,
            lambda: _run(guess_blocks, network, trial, autocast=autocast),
            lambda: _run(compiled, network, trial, autocast=autocast),
        )
        network.zero_grad(set_to_none=True)
        if compiled_s > _GAIN * plain_s:
            logger.info(
                "training is not compiled: a pass takes %.1f ms compiled and %.1f ms plain",
                1000 * compiled_s,
                1000 * plain_s,
            )
            return guess_blocks
    logger.info("training is compiled: %.1f s", time.perf_counter() - started)
    return _Lasting(compiled)


def _in_turns(stopwatch: Stopwatch, *runs: Callable[[], object]) -> list[float]:
    """The least seconds of each."""
    turns = [[stopwatch(run) for run in runs] for _ in range(_TURNS)]
    return [min(times) for times in zip(*turns, strict=True)]


class _Lasting:
    """A compiled form that is given up, once and for all, when it cannot take a micro-batch."""

    def __init__(self, compiled: GuessBlocks) -> None:
        self._guess = compiled

    def __call__(self, network: DSparkNetwork, batch: MicroBatch) -> BlockGuesses:
        try:
            return self._guess(network, batch)
        except Exception as error:
            if self._guess is guess_blocks:
                raise
            logger.warning("training goes on without its compiled form: %s", type(error).__name__)
            self._guess = guess_blocks
        return guess_blocks(network, batch)


def _run(
    guess: GuessBlocks, network: DSparkNetwork, batch: MicroBatch, *, autocast: bool
) -> Mapping[str, Tensor]:
    """What comes out, and the gradients of a sum over it."""
    network.zero_grad(set_to_none=True)
    with torch.autocast(batch.taps.device.type, torch.bfloat16, enabled=autocast):
        guesses = guess(network, batch)
    logits = guesses.logits.float()
    total = logits.square().mean()
    if guesses.confidence_logits is not None:
        total = total + guesses.confidence_logits.float().square().mean()
    total.backward()  # type: ignore[no-untyped-call]
    gradients = {n: p.grad for n, p in network.named_parameters() if p.grad is not None}
    return {"logits": logits.detach(), **gradients}


def _difference(found: Tensor, expected: Tensor) -> float:
    """Relative to the largest, where there is any."""
    largest = float(expected.abs().max())
    return float((found - expected).abs().max()) / largest if largest else 0.0
