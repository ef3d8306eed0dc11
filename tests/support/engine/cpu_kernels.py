"""The kernels, compiled once into the user's cache as a server would have them."""

import os

import pytest

from engine.cpu_kernels.compiling import CpuKernelsUnavailable, KernelLibrary, load_kernels
from engine.platform.cache_dir import default_cache_dir


def kernels_or_skip() -> KernelLibrary:
    try:
        return load_kernels(default_cache_dir(os.environ))
    except CpuKernelsUnavailable as error:
        pytest.skip(f"no native kernels here: {error}")
