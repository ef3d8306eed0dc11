"""The sections of the program, in the order in which they are worth their time."""

from collections.abc import Callable, Mapping

import torch

from dspark.bench.gpu import checks, measures, replays
from dspark.bench.gpu.results import Found

Section = Callable[[torch.device, bool], Found]  # the device; whether in small

SECTIONS: Mapping[str, Section] = {
    "triton": checks.triton_attention,
    "context": checks.context,
    "graphs": replays.graphs,
    "texts": checks.texts,
    "writes": measures.writes,
    "speculation": measures.speculation,
    "eager": measures.eager,
    "plain": measures.plain,
    "flashinfer": checks.flashinfer_attention,
}
