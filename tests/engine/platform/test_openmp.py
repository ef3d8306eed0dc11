"""OpenMP threads spin shortly at barriers, and released workers end."""

import os
import sys
import threading
from pathlib import Path

import pytest
import torch

from engine.platform.openmp import limit_spinning, release_workers

_TASKS = Path("/proc/self/task")


def test_spinning_is_limited_unless_the_environment_sets_it() -> None:
    environ: dict[str, str] = {}
    limit_spinning(environ)
    assert 1000 <= int(environ["GOMP_SPINCOUNT"]) <= 10_000
    for given in ({"GOMP_SPINCOUNT": "5"}, {"OMP_WAIT_POLICY": "active"}):
        environ = dict(given)
        limit_spinning(environ)
        assert environ == given


def _workers_after(*, released: bool) -> set[str]:
    """Start a thread that computes with a worker; the threads that exist before it ends."""
    left: set[str] = set()

    def compute() -> None:
        before = set(os.listdir(_TASKS))
        torch.set_num_threads(2)
        torch.ones(1 << 20).add(1)
        if released:
            release_workers()
        left.update(set(os.listdir(_TASKS)) - before)

    thread = threading.Thread(target=compute)
    thread.start()
    thread.join()
    return left


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_a_thread_releases_its_workers() -> None:
    assert len(_workers_after(released=False)) == 1
    assert _workers_after(released=True) == set()


def test_a_thread_without_workers_releases_nothing() -> None:
    thread = threading.Thread(target=release_workers)
    thread.start()
    thread.join()
    assert not thread.is_alive()
