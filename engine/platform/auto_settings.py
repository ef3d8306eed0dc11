"""Resolves settings that are `auto` to this machine's and this draft's values."""

import logging
import os
from collections.abc import Mapping

import torch

from engine.config import EngineConfig
from engine.errors import LoadError
from engine.platform.host import available_cores, why_too_many_threads

_SHORT_WINDOW = 4  # rows; most rounds of a cautious budget fit into it

logger = logging.getLogger(__name__)


def resolve_device(config: EngineConfig) -> torch.device:
    """Choose the device. Raises LoadError when the config demands CUDA and torch finds none."""
    has_cuda = torch.cuda.is_available()
    if config.device == "cuda" and not has_cuda:
        raise LoadError("device is 'cuda', but torch finds no CUDA device; accepted: auto, cpu")
    return torch.device("cuda" if has_cuda and config.device != "cpu" else "cpu")


def resolve_dtype(config: EngineConfig, device: torch.device) -> torch.dtype:
    """Choose the target's dtype: float32 on a CPU and bfloat16 on CUDA, unless configured."""
    if config.dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    dtype: torch.dtype = getattr(torch, config.dtype)
    return dtype


def configure_threads(config: EngineConfig, device: torch.device) -> int | None:
    """Set torch's threads from the config, else OMP_NUM_THREADS, else the usable cores.

    Warns when they exceed the usable cores. Returns their number; None when the device is no CPU.
    """
    if device.type != "cpu":
        return None
    cores = available_cores()
    num_threads = config.num_threads or _threads_in(os.environ) or cores
    torch.set_num_threads(num_threads)
    reason = why_too_many_threads(num_threads=num_threads, cores=cores)
    if reason is not None:
        logger.warning("%s", reason)
    return num_threads


def _threads_in(environ: Mapping[str, str]) -> int | None:
    """Read OMP_NUM_THREADS; None unless it is a positive integer."""
    value = environ.get("OMP_NUM_THREADS", "")
    return int(value) if value.isdecimal() and int(value) > 0 else None


def resolve_lookup_tokens(config: EngineConfig) -> int:
    """Return the most tokens that a lookup proposes; 0 without lookups."""
    return config.lookup_tokens if config.lookup != "off" else 0


def resolve_window(config: EngineConfig, block_size: int) -> int:
    """Return the most rows that a round verifies, its anchor's included."""
    drafts = resolve_num_draft_tokens(config, block_size)
    return 1 + max(drafts, resolve_lookup_tokens(config))


def resolve_widths(config: EngineConfig, block_size: int) -> tuple[int, ...]:
    """Return the window widths to capture: single rows, short windows, a draft's and a lookup's."""
    window = resolve_window(config, block_size)
    drafts = resolve_num_draft_tokens(config, block_size)
    widths = {1, _SHORT_WINDOW, 1 + drafts, window}
    return tuple(sorted(width for width in widths if width <= window))


def resolve_num_draft_tokens(config: EngineConfig, block_size: int) -> int:
    """Choose how many tokens of the draft model a round verifies at most.

    Raises LoadError beyond the block size, which is the width that the draft was trained with.
    """
    wanted = config.num_draft_tokens
    if wanted is None or block_size == 0:
        return block_size
    if not 1 <= wanted <= block_size:
        raise LoadError(
            f"speculative.num_draft_tokens: found {wanted}; accepted: 1 to {block_size}, which is "
            "this draft's block size (the anchor and the bonus token are not counted)"
        )
    return wanted
