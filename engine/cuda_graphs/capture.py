"""Recording what a function does on a device, to do it again without running the function."""

from collections.abc import Callable
from typing import Protocol, TypeVar

import torch

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_WARM_UPS = 2  # runs before a recording: libraries set themselves up, kernels are compiled


class Recording(Protocol[T_co]):
    """Device operations on memory that stays where it is.

    It keeps the function, and with it all that the function holds: a graph knows its inputs by
    their addresses only, and memory that nobody holds is given to others.
    """

    @property
    def outputs(self) -> T_co:
        """What the function returned.

        Its tensors are overwritten by every replay, and by those of recordings that the same
        capturer made before: whoever needs them longer takes a copy.
        """
        ...

    def replay(self) -> None:
        """Do all of it again, on what the function's inputs hold now. Waits for nothing."""
        ...


class GraphCapturer(Protocol):
    """Makes recordings."""

    name: str

    def capture(self, run: Callable[[], T]) -> Recording[T]:
        """Run the function a few times, and keep what the last run did on the device.

        Its inputs are tensors that it finds where it always finds them. It reads no value of
        theirs on the host, and what it decides in Python is decided once and for all.
        """
        ...


class CudaCapturer:
    """CUDA graphs that share one memory pool: intermediates of one are scratch for another.

    Outputs are kept apart from what is recorded later, for as long as their recording lives. They
    may lie where an earlier recording has its intermediates.
    """

    name = "cuda graphs"

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def capture(self, run: Callable[[], T]) -> Recording[T]:
        """See GraphCapturer.record."""
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
            torch.cuda.set_stream(current)  # a capture that fails does not always go back itself
        return _CudaRecording(graph, outputs, run)


class _CudaRecording(Recording[T_co]):
    def __init__(
        self, graph: torch.cuda.CUDAGraph, outputs: T_co, run: Callable[[], object]
    ) -> None:
        self._graph = graph
        self._outputs = outputs
        self._run = run  # never called again: see Recording

    @property
    def outputs(self) -> T_co:
        return self._outputs

    def replay(self) -> None:
        self._graph.replay()
