"""Passes recorded once and replayed: for devices where launching costs more than computing."""

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
