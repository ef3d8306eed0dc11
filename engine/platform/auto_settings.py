"""What `auto` means on this machine, for this pair."""

import logging
import os
from collections.abc import Mapping

import torch

from engine.config import EngineConfig
from engine.errors import LoadError
from engine.platform.host import available_cores, why_too_many_threads

logger = logging.getLogger(__name__)


def resolve_device(config: EngineConfig) -> torch.device:
    """Raises LoadError when CUDA is asked for and there is none."""
    has_cuda = torch.cuda.is_available()
    if config.device == "cuda" and not has_cuda:
        raise LoadError("device is 'cuda', but torch finds no CUDA device; accepted: auto, cpu")
    return torch.device("cuda" if has_cuda and config.device != "cpu" else "cpu")


def resolve_dtype(config: EngineConfig, device: torch.device) -> torch.dtype:
    if config.dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    dtype: torch.dtype = getattr(torch, config.dtype)
    return dtype


def configure_threads(config: EngineConfig, device: torch.device) -> int | None:
    """Torch's threads: what the config says, else OMP_NUM_THREADS, else the cores in reach.

    Warns when they are more than those cores.
    """
    if device.type != "cpu":
        return None
    cores = available_cores()
    num_threads = config.num_threads or _asked_for(os.environ) or cores
    torch.set_num_threads(num_threads)
    reason = why_too_many_threads(num_threads=num_threads, cores=cores)
    if reason is not None:
        logger.warning("%s", reason)
    return num_threads


def _asked_for(environ: Mapping[str, str]) -> int | None:
    """OMP_NUM_THREADS, by which a machine is shared out; None without a number there."""
    asked = environ.get("OMP_NUM_THREADS", "")
    return int(asked) if asked.isdecimal() and int(asked) > 0 else None


def resolve_num_draft_tokens(config: EngineConfig, block_size: int) -> int:
    """Raises LoadError beyond the block: a draft is always run at the width it was trained with."""
    wanted = config.num_draft_tokens
    if wanted is None or block_size == 0:
        return block_size
    if not 1 <= wanted <= block_size:
        raise LoadError(
            f"speculative.num_draft_tokens is {wanted}; this draft's block size is {block_size}, "
            f"so accepted is 1 to {block_size} (the anchor and the bonus token are not counted)"
        )
    return wanted
