"""Records the graphs of an engine, or says why it does without."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from draft import DSparkProposer, Proposer
from engine.cuda_graphs.capture import GraphCapturer
from engine.cuda_graphs.capture_sizes import CaptureSizes
from engine.cuda_graphs.draft_graphs import GraphedProposer
from engine.cuda_graphs.scratch import ScratchPage
from engine.cuda_graphs.target_graphs import GraphedTarget
from engine.runner.target_model import Target, TargetModel
from kv_pool import AttentionBackend, FixedBackend, NoFixedPlan

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Graphs:
    """Both models as they run, and the tiers that are recorded for them."""

    target: Target
    proposer: Proposer
    capture_sizes: tuple[int, ...]  # empty without graphs
    reason: str | None  # why there are none


@dataclass(frozen=True, slots=True)
class CaptureLimits:
    """What graphs must be able to hold."""

    max_running: int  # sequences
    max_len: int  # tokens of a sequence
    width: int  # rows of a full verify window


def capture_graphs(
    *,
    target: TargetModel,
    proposer: Proposer,
    make_target: Callable[[AttentionBackend], TargetModel],
    make_attention: Callable[[], AttentionBackend],
    capturer: GraphCapturer,
    limits: CaptureLimits,
    scratch: ScratchPage,
    device: torch.device,
) -> Graphs:
    """Record the verify pass and, with a draft, its round, for every tier of batch sizes.

    make_attention makes one for each model. What cannot be recorded stays as it is.
    """
    started = time.perf_counter()
    capture_sizes = CaptureSizes.up_to(limits.max_running)

    def pages(width: int) -> int:
        return -(-(limits.max_len + width) // scratch.page_size)

    try:
        graphed_target = GraphedTarget(
            eager=target,
            make_target=make_target,
            attention=_fixed(make_attention()),
            capturer=capturer,
            capture_sizes=capture_sizes,
            width=limits.width,
            max_pages=pages(limits.width),
            scratch=scratch,
            device=device,
        )
        graphed_proposer = proposer
        if isinstance(proposer, DSparkProposer):
            _settle_weights(proposer)
            graphed_proposer = GraphedProposer(
                eager=proposer,
                attention=_fixed(make_attention()),
                capturer=capturer,
                capture_sizes=capture_sizes,
                max_pages=pages(proposer.num_slots),
                scratch=scratch,
                device=device,
            )
    except (NoFixedPlan, RuntimeError) as error:  # the latter from what a capture forbids
        reason = _first_line(error)
        logger.warning("no graphs: %s", reason)
        return Graphs(target, proposer, (), reason)
    logger.info(
        "graphs: recorded for up to %s sequences in %.1f s",
        ", ".join(map(str, capture_sizes.sizes)),
        time.perf_counter() - started,
    )
    return Graphs(graphed_target, graphed_proposer, capture_sizes.sizes, None)


def _first_line(error: BaseException) -> str:
    """Of what went wrong first: when a pass breaks off, the end of its capture fails as well."""
    while error.__context__ is not None:
        error = error.__context__
    return next(iter(str(error).splitlines()), type(error).__name__)


def _fixed(attention: AttentionBackend) -> FixedBackend:
    if not isinstance(attention, FixedBackend):
        raise NoFixedPlan(f"{attention.name} attention has no fixed shapes")
    return attention


def _settle_weights(proposer: DSparkProposer) -> None:
    """Let the stacked writer move the weights to its storage now, if it ever will.

    A recording knows weights by their addresses; a switch of the writer's mode later on must not
    move them any more.
    """
    mode = proposer.context_kv_mode
    proposer.set_context_kv("auto")
    proposer.set_context_kv(mode)
