"""The kernels, compiled once into the user's cache as a server would have them."""

import os

import pytest

from engine.demo_target import default_cache_dir
from engine.native.compiling import Kernels, NativeUnavailable, load_kernels


def kernels_or_skip() -> Kernels:
    try:
        return load_kernels(default_cache_dir(os.environ))
    except NativeUnavailable as error:
        pytest.skip(f"no native kernels here: {error}")
