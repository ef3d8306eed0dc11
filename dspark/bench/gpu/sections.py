"""Maps the section names of `dspark bench gpu` to the functions that run them."""

from collections.abc import Callable, Mapping

import torch

from dspark.bench.gpu import checks, measures, replays
from dspark.bench.gpu.results import SECTION_NAMES, Found

Section = Callable[[torch.device, bool], Found]  # the device; True: tiny models

SECTIONS: Mapping[str, Section] = dict(
    zip(
        SECTION_NAMES,
        (
            checks.triton_attention,
            checks.context,
            replays.graphs,
            checks.texts,
            measures.writes,
            measures.speculation,
            measures.sampled,
            measures.backends,
            measures.eager,
            measures.plain,
            checks.flashinfer_attention,
        ),
        strict=True,
    )
)
