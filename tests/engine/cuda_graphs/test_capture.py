"""Recordings keep their tensors, and a failed capture restores its caller."""

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from engine.cuda_graphs import CudaCapturer
from engine.cuda_graphs.capture import Recording
from tests.support.engine.recorded import graphed_engine, taped
from tests.support.engine.tiny_models import write_tiny_draft


class Device:
    """A fake of torch.cuda for a capturer. A failed capture raises one more error at its end."""

    def __init__(self) -> None:
        self.is_capturing = False
        self.stream: Any = "the caller's"

    @contextmanager
    def installed(self) -> Iterator[None]:
        with patch.multiple(
            torch.cuda,
            Stream=lambda device: _Stream("side"),
            current_stream=lambda: _Stream(self.stream),
            stream=self._on,
            set_stream=lambda stream: setattr(self, "stream", stream.name),
            synchronize=lambda: None,
            graph_pool_handle=lambda: "pool",
            CUDAGraph=object,
            graph=self._capture,
        ):
            yield

    @contextmanager
    def _on(self, stream: "_Stream") -> Iterator[None]:
        before, self.stream = self.stream, stream.name
        yield
        self.stream = before

    @contextmanager
    def _capture(self, graph: object, *, pool: object, stream: "_Stream") -> Iterator[None]:
        self.stream, self.is_capturing = stream.name, True
        try:
            yield
        except Exception as error:
            raise RuntimeError("previous error during capture") from error
        self.stream, self.is_capturing = "the caller's", False


class _Stream:
    def __init__(self, name: str) -> None:
        self.name = name

    def wait_stream(self, other: "_Stream") -> None:
        pass


def capture(device: Device, run: Callable[[], Any]) -> Recording[Any]:
    with device.installed():
        return CudaCapturer(torch.device("cuda")).capture(run)


def test_a_recording_keeps_the_functions_tensors_alive() -> None:
    """A graph reads its inputs by address: freed memory would be reused."""
    rows = torch.arange(3)
    held = weakref.ref(rows)
    recording = capture(Device(), partial(torch.add, rows, 1))
    del rows
    gc.collect()
    assert held() is not None
    del recording
    gc.collect()
    assert held() is None


def test_a_failed_capture_restores_the_callers_stream() -> None:
    device = Device()

    def breaks_in_the_capture() -> None:
        if device.is_capturing:
            raise RuntimeError("a value was read")

    with pytest.raises(RuntimeError, match="previous error during capture"):
        capture(device, breaks_in_the_capture)
    assert device.stream == "the caller's"


class _Failing:
    name = "failing"

    def capture(self, run: Callable[[], Any]) -> Any:
        try:
            raise RuntimeError("experts are chosen by a value\nsecond line")
        except RuntimeError:
            raise RuntimeError("previous error during capture")  # noqa: B904  as torch does


def test_the_reason_for_having_no_graphs_is_the_first_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    offered = replace(taped(), capturer=_Failing())
    built = graphed_engine(draft_folder=write_tiny_draft(tmp_path), device_backend=offered)
    details = built.engine.info.details["graphs"]
    assert details == {"tiers": [], "reason": "experts are chosen by a value"}
    assert "no graphs: experts are chosen by a value" in caplog.text
