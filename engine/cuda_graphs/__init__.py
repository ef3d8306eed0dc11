"""Captures passes once and replays them, where launching kernels costs more than running them."""

from engine.cuda_graphs.capture import CudaCapturer, GraphCapturer, Recording
from engine.cuda_graphs.capture_sizes import CaptureSizes
from engine.cuda_graphs.draft_graphs import GraphedProposer
from engine.cuda_graphs.target_graphs import GraphedTarget

__all__ = [
    "CaptureSizes",
    "CudaCapturer",
    "GraphCapturer",
    "GraphedProposer",
    "GraphedTarget",
    "Recording",
]
