"""Passes recorded once and replayed: for devices where launching costs more than computing."""

from engine.graphs.drafting import GraphedProposer
from engine.graphs.recorder import CudaRecorder, GraphRecorder, Recording
from engine.graphs.tiers import Tiers
from engine.graphs.verifying import GraphedTarget

__all__ = [
    "CudaRecorder",
    "GraphRecorder",
    "GraphedProposer",
    "GraphedTarget",
    "Recording",
    "Tiers",
]
