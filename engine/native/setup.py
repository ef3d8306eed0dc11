"""Whether native kernels serve this engine, and with which limits."""

import os
from dataclasses import dataclass

import torch

from draft import LinearFunction
from engine.demo_target import default_cache_dir
from engine.native.compiling import Kernels, NativeUnavailable, load_kernels
from engine.native.linear import native_linear

# Rows up to which a product is bound by reading the weight once, not by arithmetic; beyond,
# PyTorch's own GEMM is the faster one. See docs/experiments.md.
LINEAR_ROWS = 16
# Rows up to which a whole decoder pass is faster natively than layer by layer from Python.
DECODER_ROWS = 24
# Slots of a batch of blocks up to which a draft pass is faster natively than by PyTorch.
DRAFT_ROWS = 80
# Tokens up to which a context write computes its products itself.
CONTEXT_ROWS = 32


@dataclass(frozen=True, slots=True)
class Native:
    """Compiled kernels and how to use them here."""

    kernels: Kernels
    linear: LinearFunction
    num_threads: int
    decoder_rows: int = DECODER_ROWS


def prepare_native(*, wanted: bool, dtype: torch.dtype, device: torch.device) -> Native:
    """Compile or load the kernels. Raises NativeUnavailable with the reason."""
    if not wanted:
        raise NativeUnavailable("switched off")
    if device.type != "cpu":
        raise NativeUnavailable(f"the device is {device.type}")
    if dtype != torch.float32:
        raise NativeUnavailable(f"the kernels compute in float32, not {dtype}")
    kernels = load_kernels(default_cache_dir(os.environ))
    num_threads = torch.get_num_threads()
    return Native(
        kernels=kernels,
        linear=native_linear(kernels, max_rows=LINEAR_ROWS, num_threads=num_threads),
        num_threads=num_threads,
    )
