"""Captures the graphs of an engine, or reports why it has none."""

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
    """Both models as they run, and the sizes that are captured for them."""

    target: Target
    proposer: Proposer
    capture_sizes: tuple[int, ...]  # empty without graphs
    reason: str | None  # why there are no graphs


@dataclass(frozen=True, slots=True)
class CaptureLimits:
    """The largest batch that graphs must hold."""

    max_running: int  # sequences
    max_len: int  # tokens of a sequence
    widths: tuple[int, ...]  # rows of verify windows, ascending


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
    """Capture the verify pass and, with a draft, its round, for every capture size.

    make_attention is called once for each model. If a capture fails, both models stay eager.
    """
    started = time.perf_counter()
    capture_sizes = CaptureSizes.up_to(limits.max_running)

    def pages(width: int) -> int:
        return -(-(limits.max_len + width) // scratch.page_size)

    draft = proposer if isinstance(proposer, DSparkProposer) else None
    try:
        if draft is not None:
            _stack_weights(draft)
        graphed_target = GraphedTarget(
            eager=target,
            make_target=make_target,
            attention=_fixed(make_attention()),
            capturer=capturer,
            capture_sizes=capture_sizes,
            widths=limits.widths,
            max_pages=pages(limits.widths[-1]),
            scratch=scratch,
            draft=draft,
            device=device,
        )
        graphed_proposer = proposer
        if draft is not None:
            graphed_proposer = GraphedProposer(
                eager=draft,
                attention=_fixed(make_attention()),
                capturer=capturer,
                capture_sizes=capture_sizes,
                max_pages=pages(draft.num_slots),
                scratch=scratch,
                device=device,
            )
    except Exception as error:  # a capture forbids operations; kernel compilers raise any type
        reason = _first_line(error)
        logger.warning("no graphs: %s", reason)
        return Graphs(target, proposer, (), reason)
    logger.info(
        "graphs: captured for up to %s sequences in %.1f s",
        ", ".join(map(str, capture_sizes.sizes)),
        time.perf_counter() - started,
    )
    return Graphs(graphed_target, graphed_proposer, capture_sizes.sizes, None)


def _first_line(error: BaseException) -> str:
    """Return the first line of the first error: a failed pass makes the end of its capture fail."""
    while error.__context__ is not None:
        error = error.__context__
    return next(iter(str(error).splitlines()), type(error).__name__)


def _fixed(attention: AttentionBackend) -> FixedBackend:
    if not isinstance(attention, FixedBackend):
        raise NoFixedPlan(f"{attention.name} attention has no fixed shapes")
    return attention


def _stack_weights(proposer: DSparkProposer) -> None:
    """Move the weights to the stacked writer's storage now, if it can hold them.

    A graph reads weights by their addresses, so a later switch of the writer's mode must not move
    them.
    """
    mode = proposer.context_kv_mode
    proposer.set_context_kv("auto")
    proposer.set_context_kv(mode)
