"""Profiles the engine's thread, for chrome://tracing or Perfetto."""

import logging
import time
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from engine.errors import RequestRejected

logger = logging.getLogger(__name__)


class StepProfiler:
    """Runs at most one profile at a time. Start and stop it in the thread that is profiled."""

    def __init__(self) -> None:
        self._running: Any = None
        self._folder = Path()

    def start(self, folder: Path) -> None:
        """Start a profile.

        Raises RequestRejected while one runs, or for a folder that cannot be created.
        """
        if self._running is not None:
            raise RequestRejected("a profile is being recorded; stop it first")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RequestRejected(f"no profile can be written to {folder}: {error}") from error
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        try:
            recording = profile(activities=activities)
            recording.start()
        except Exception as error:
            logger.exception("the profiler failed to start")
            raise RequestRejected(f"the profiler failed to start: {error}") from error
        self._running, self._folder = recording, folder

    def stop(self) -> Path:
        """Write the profile and return its file. Raises RequestRejected when none runs."""
        if self._running is None:
            raise RequestRejected("no profile is being recorded; start one first")
        recording, self._running = self._running, None
        file = (
            self._folder / f"profile-{time.strftime('%Y%m%d-%H%M%S')}-{time.time_ns() % 10**6}.json"
        )
        try:
            recording.stop()
            recording.export_chrome_trace(str(file))
        except Exception as error:
            logger.exception("the profiler failed")
            raise RequestRejected(f"the profile cannot be written to {file}: {error}") from error
        return file
