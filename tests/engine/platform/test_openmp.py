"""How threads that compute together wait: shortly, and without helpers of others beside them."""

import os
import sys
import threading
from pathlib import Path

import pytest
import torch

from engine.platform.openmp import dismiss_helpers, wait_shortly

_TASKS = Path("/proc/self/task")


def test_threads_wait_shortly_unless_the_environment_has_a_say() -> None:
    environ: dict[str, str] = {}
    wait_shortly(environ)
    assert 1000 <= int(environ["GOMP_SPINCOUNT"]) <= 10_000
    for own in ({"GOMP_SPINCOUNT": "5"}, {"OMP_WAIT_POLICY": "active"}):
        asked = dict(own)
        wait_shortly(asked)
        assert asked == own


def _helpers_after(*, dismissed: bool) -> set[str]:
    """Threads that are there after a thread has computed with a helper, while it still lives."""
    left: set[str] = set()

    def compute() -> None:
        before = set(os.listdir(_TASKS))
        torch.set_num_threads(2)
        torch.ones(1 << 20).add(1)
        if dismissed:
            dismiss_helpers()
        left.update(set(os.listdir(_TASKS)) - before)

    thread = threading.Thread(target=compute)
    thread.start()
    thread.join()
    return left


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_a_thread_that_has_computed_dismisses_its_helpers() -> None:
    assert len(_helpers_after(dismissed=False)) == 1
    assert _helpers_after(dismissed=True) == set()


def test_dismissing_is_nothing_where_nobody_has_computed() -> None:
    thread = threading.Thread(target=dismiss_helpers)
    thread.start()
    thread.join()
    assert not thread.is_alive()
