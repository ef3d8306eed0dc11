"""Resolves the names of target and draft, and runs an engine over them."""

import dataclasses
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dspark.demo.target import cached_demo_target, ensure_demo_target
from dspark.gguf.conversion import cached_gguf_target, ensure_gguf_target
from dspark.gguf.progress import Progress
from dspark.runtime.hub import use_cache_if_offline
from dspark.runtime.packaged import DEMO_DRAFT
from dspark.runtime.progress import TerminalProgress
from engine import EngineClient, EngineConfig, LoadError
from engine.platform.cache_dir import default_cache_dir
from engine.platform.host import find_cuda
from engine.platform.stage_times import logged_stage
from server.settings.engine_config import to_engine_config
from server.settings.model_sources import DEMO_NAME, is_gguf
from server.settings.schema import Settings

logger = logging.getLogger(__name__)

# Libraries with irrelevant warnings: torchao about parts for other hardware, and torch about the
# way in which torchao registers its types.
_NOISY = ("torchao", "torch.utils._pytree")


def silence_libraries() -> None:
    """Drop warnings of libraries that a user of this project can do nothing about."""
    for name in _NOISY:
        logging.getLogger(name).setLevel(logging.ERROR)


def resolved_engine_config(settings: Settings) -> EngineConfig:
    """Return the engine's config with folders for the demo pair's names and for GGUF files.

    Fetches a missing demo target, and converts a new GGUF file. Raises LoadError.
    """
    config = to_engine_config(settings)
    if config.device == "cuda" and (missing := find_cuda().missing) is not None:
        raise LoadError(f"device is 'cuda', but {missing}; accepted here: auto, cpu")
    if config.draft == DEMO_NAME:
        config = dataclasses.replace(config, draft=str(DEMO_DRAFT))
    with TerminalProgress(stream=sys.stderr) as progress:
        return dataclasses.replace(config, target=resolved_target(config.target, progress))


def demo_target() -> Path:
    """Return the folder of the demo target; fetches it with a progress bar. Raises LoadError."""
    with TerminalProgress(stream=sys.stderr) as progress:
        return Path(resolved_target(DEMO_NAME, progress))


def resolved_target(name: str, progress: Progress) -> str:
    """Return the folder of the demo's name or a GGUF file, made if needed; else the name itself.

    Raises LoadError.
    """
    cache_dir = default_cache_dir(os.environ)
    if name == DEMO_NAME:
        return str(ensure_demo_target(cache_dir=cache_dir, progress=progress))
    if is_gguf(name):
        return str(ensure_gguf_target(Path(name), cache_dir=cache_dir, progress=progress))
    return name


def local_target(name: str) -> Path | None:
    """Return the folder of a target that is on this machine; None for one that is not yet."""
    cache_dir = default_cache_dir(os.environ)
    if name == DEMO_NAME:
        return cached_demo_target(cache_dir)
    if is_gguf(name):
        return cached_gguf_target(Path(name), cache_dir)
    return Path(name) if Path(name).is_dir() else None


@contextmanager
def running_engine(config: EngineConfig) -> Iterator[EngineClient]:
    """Run an engine for as long as the block lasts. Raises LoadError."""
    if config.draft is not None:
        use_cache_if_offline("speculative.draft_model", config.draft, config.draft_revision)
    silence_libraries()
    with logged_stage(logger, "importing torch and transformers"):
        from transformers.utils import logging as transformers_logging

        from engine.build import build_engine

    if not sys.stderr.isatty():
        transformers_logging.disable_progress_bar()
    engine = build_engine(config)
    try:
        yield engine
    finally:
        engine.close()
