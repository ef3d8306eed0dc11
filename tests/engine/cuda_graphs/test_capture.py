"""What a recorder asks of a device that is not there, and what a failure leaves."""

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
    """torch.cuda as far as a recorder needs it. A broken capture ends with one more error."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.stream: Any = "the caller's"

    @contextmanager
    def installed(self) -> Iterator[None]:
        with patch.multiple(
            torch.cuda,
            Stream=lambda device: _Stream(self, "side"),
            current_stream=lambda: _Stream(self, self.stream),
            stream=self._on,
            set_stream=lambda stream: setattr(self, "stream", stream.name),
            synchronize=lambda: self.log.append("synchronize"),
            graph_pool_handle=lambda: "pool",
            CUDAGraph=lambda: _Graph(self),
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
        self.stream = stream.name
        self.log.append(f"capture into {pool}")
        try:
            yield
        except Exception as error:
            raise RuntimeError("previous error during capture") from error
        self.stream = "the caller's"
        self.log.append("end of capture")


class _Stream:
    def __init__(self, device: Device, name: str) -> None:
        self.name = name
        self._device = device

    def wait_stream(self, other: "_Stream") -> None:
        self._device.log.append(f"{self.name} waits for {other.name}")


class _Graph:
    def __init__(self, device: Device) -> None:
        self._device = device

    def replay(self) -> None:
        self._device.log.append("replay")


def record(device: Device, run: Callable[[], Any]) -> Recording[Any]:
    with device.installed():
        return CudaCapturer(torch.device("cuda")).capture(run)


def test_a_function_is_warmed_up_beside_the_callers_stream_and_captured_once() -> None:
    device = Device()
    recording = record(device, lambda: device.log.append(f"run on {device.stream}") or 7)
    recording.replay()
    assert device.log == [
        "side waits for the caller's",
        "run on side",
        "run on side",
        "the caller's waits for side",
        "synchronize",
        "capture into pool",
        "run on side",
        "end of capture",
        "replay",
    ]
    assert recording.outputs == 7


def test_what_the_function_holds_lives_as_long_as_the_recording() -> None:
    """A graph reads its inputs by their addresses: what is given back would be another's memory."""
    rows = torch.arange(3)
    held = weakref.ref(rows)
    recording = record(Device(), partial(torch.add, rows, 1))
    del rows
    gc.collect()
    assert held() is not None
    del recording
    gc.collect()
    assert held() is None


def test_a_capture_that_fails_leaves_the_caller_on_its_own_stream() -> None:
    device = Device()

    def breaks_in_the_capture() -> None:
        if device.log[-1].startswith("capture"):
            raise RuntimeError("a value was read")

    with pytest.raises(RuntimeError, match="previous error during capture"):
        record(device, breaks_in_the_capture)
    assert device.stream == "the caller's"


class _Failing:
    name = "failing"

    def capture(self, run: Callable[[], Any]) -> Any:
        try:
            raise RuntimeError("experts are chosen by a value\nsecond line")
        except RuntimeError:
            raise RuntimeError("previous error during capture")  # noqa: B904  as torch does


def test_the_reason_for_having_no_graphs_is_what_went_wrong_first(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    offered = replace(taped(), capturer=_Failing())
    built = graphed_engine(draft_folder=write_tiny_draft(tmp_path), device_backend=offered)
    details = built.engine.info.details["graphs"]
    assert details == {"tiers": [], "reason": "experts are chosen by a value"}
    assert "no graphs: experts are chosen by a value" in caplog.text
