"""Prepares the CPU kernels for an engine, and defines their row limits."""

import os
from dataclasses import dataclass

import torch

from draft import LinearFunction
from draft.network.int8_linear import Int8Product
from engine.cpu_kernels.compiling import CpuKernelsUnavailable, KernelLibrary, load_kernels
from engine.cpu_kernels.linear import cpu_int8_product, cpu_linear
from engine.platform.cache_dir import default_cache_dir

# The most rows of a product, a context write or a decoder pass that the kernels take: as many as a
# step may have. They are faster than PyTorch at any number of rows, and only their rows have the
# same results in any batch. With more rows PyTorch saves the scratch. See docs/experiments.md.
LINEAR_ROWS = 4096
DECODER_ROWS = 4096
# The most slots of blocks that a draft pass takes at a time; the scratch has as many rows.
DRAFT_ROWS = 80


@dataclass(frozen=True, slots=True)
class CpuKernels:
    """The compiled kernels, and functions that call them with this machine's threads."""

    library: KernelLibrary
    linear: LinearFunction
    int8_product: Int8Product
    num_threads: int


def prepare_cpu_kernels(*, wanted: bool, dtype: torch.dtype, device: torch.device) -> CpuKernels:
    """Compile or load the kernels. Raises CpuKernelsUnavailable with the reason."""
    if not wanted:
        raise CpuKernelsUnavailable("switched off")
    if device.type != "cpu":
        raise CpuKernelsUnavailable(f"the device is {device.type}")
    if dtype not in (torch.float32, torch.bfloat16):
        raise CpuKernelsUnavailable(f"there is no code for {dtype}")
    library = load_kernels(default_cache_dir(os.environ))
    num_threads = torch.get_num_threads()
    return CpuKernels(
        library=library,
        linear=cpu_linear(library, max_rows=LINEAR_ROWS, num_threads=num_threads),
        int8_product=cpu_int8_product(library, num_threads=num_threads),
        num_threads=num_threads,
    )
