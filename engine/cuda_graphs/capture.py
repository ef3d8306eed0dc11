"""Captures what a function does on a device, to replay it without running the function."""

from collections.abc import Callable
from typing import Protocol, TypeVar

import torch

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_WARM_UPS = 2  # runs before a capture: libraries initialise, kernels are compiled


class Recording(Protocol[T_co]):
    """A captured CUDA graph, or its equivalent: device operations on fixed memory.

    It holds the function, and so all tensors that the function references. A graph reads its
    inputs by address, and memory without a reference would be reused.
    """

    @property
    def outputs(self) -> T_co:
        """Return the function's result.

        Its tensors are overwritten by every replay of this recording, and by replays of earlier
        recordings of the same capturer. A caller that needs them longer makes a copy.
        """
        ...

    def replay(self) -> None:
        """Run the operations again on the inputs' current values, without waiting."""
        ...


class GraphCapturer(Protocol):
    """Captures recordings."""

    name: str

    def capture(self, run: Callable[[], T]) -> Recording[T]:
        """Run the function a few times, and capture what the last run did on the device.

        Its inputs are tensors at fixed addresses. It must not read their values on the host; its
        decisions in Python are fixed by the capture.
        """
        ...


class CudaCapturer:
    """Captures CUDA graphs that share one memory pool for their intermediates.

    Later captures do not use the outputs' memory while their recording lives. Outputs may lie
    where an earlier recording has its intermediates.
    """

    name = "cuda graphs"

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def capture(self, run: Callable[[], T]) -> Recording[T]:
        """See GraphCapturer.capture."""
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            for _ in range(_WARM_UPS):
                run()
        current.wait_stream(self._stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                outputs = run()
        finally:
            torch.cuda.set_stream(current)  # a failed capture does not always restore it
        return _CudaRecording(graph, outputs, run)


class _CudaRecording(Recording[T_co]):
    def __init__(
        self, graph: torch.cuda.CUDAGraph, outputs: T_co, run: Callable[[], object]
    ) -> None:
        self._graph = graph
        self._outputs = outputs
        self._run = run  # held, never called again: see Recording

    @property
    def outputs(self) -> T_co:
        return self._outputs

    def replay(self) -> None:
        self._graph.replay()
