"""Every test: shapes are checked at run time, one thread, one seed."""

import os

import pytest
import torch
from hypothesis import settings
from jaxtyping import install_import_hook

# Triton reads it when it is first imported: without a device its kernels are interpreted.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# One commit gives one result. `make verify` looks for new examples, with Hypothesis's own profile.
settings.register_profile("fixed", derandomize=True)
settings.load_profile("fixed")

pytest_plugins = ["tests.support.demo_fixtures"]

# Modules whose jaxtyping signatures are checked; the hook must stand before their first import.
install_import_hook(
    ["kv_pool", "draft", "engine.runner.batch", "engine.sampling.rejection"], "beartype.beartype"
)


@pytest.fixture(autouse=True)
def _one_thread_and_one_seed() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
