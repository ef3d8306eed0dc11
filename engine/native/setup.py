"""Whether native kernels serve this engine, and with which limits."""

import os
from dataclasses import dataclass

import torch

from draft import LinearFunction
from engine.demo_target import default_cache_dir
from engine.int8_linear import Int8Product
from engine.native.compiling import Kernels, NativeUnavailable, load_kernels
from engine.native.linear import native_int8_product, native_linear

# Rows up to which the kernels take a product, a context write or a whole decoder pass: all that a
# step may have. They are the faster ones at any number of rows, and the only ones whose rows say
# the same in any batch; beyond this PyTorch saves the scratch. See docs/experiments.md.
LINEAR_ROWS = 4096
DECODER_ROWS = 4096
# Slots of blocks that a draft pass takes at a time: what there is scratch for.
DRAFT_ROWS = 80


@dataclass(frozen=True, slots=True)
class Native:
    """Compiled kernels and how to use them here."""

    kernels: Kernels
    linear: LinearFunction
    int8_product: Int8Product
    num_threads: int
    decoder_rows: int = DECODER_ROWS


def prepare_native(*, wanted: bool, dtype: torch.dtype, device: torch.device) -> Native:
    """Compile or load the kernels. Raises NativeUnavailable with the reason."""
    if not wanted:
        raise NativeUnavailable("switched off")
    if device.type != "cpu":
        raise NativeUnavailable(f"the device is {device.type}")
    if dtype not in (torch.float32, torch.bfloat16):
        raise NativeUnavailable(f"there is no code for {dtype}")
    kernels = load_kernels(default_cache_dir(os.environ))
    num_threads = torch.get_num_threads()
    return Native(
        kernels=kernels,
        linear=native_linear(kernels, max_rows=LINEAR_ROWS, num_threads=num_threads),
        int8_product=native_int8_product(kernels, num_threads=num_threads),
        num_threads=num_threads,
    )
