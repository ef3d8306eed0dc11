"""Configures how OpenMP threads wait at barriers. Importing this loads no torch.

A step has hundreds of barriers. libgomp, which comes with torch, lets a waiting thread spin and
then sleep. Both of its modes are too slow here:

    default       spins for 7 ms and more. With another busy process on the machine, the awaited
                  thread cannot run meanwhile, and a step takes tens of times as long.
    throttled     sleeps at once, and waking takes as long as the work. libgomp throttles when
                  threads outnumber cores, and counts the idle workers of every thread.

"Threads that wait" in docs/experiments.md has measurements of both.
"""

import ctypes
import logging
import os
from collections.abc import MutableMapping

logger = logging.getLogger(__name__)

_SPIN_COUNT = "3000"  # checks of a barrier before a thread sleeps: 75 to 150 microseconds
_OMP_PAUSE_SOFT = 1  # keeps the threads' settings


def limit_spinning(environ: MutableMapping[str, str] = os.environ) -> None:
    """Limit how long threads spin at a barrier, unless the environment sets it.

    Call it before the first import of torch: libgomp reads the variable when it is loaded.
    """
    if "OMP_WAIT_POLICY" not in environ:
        environ.setdefault("GOMP_SPINCOUNT", _SPIN_COUNT)


def release_workers() -> None:
    """Release the calling thread's OpenMP workers; its next parallel region starts new ones.

    A thread that loads models calls it before another thread runs them: idle workers count as
    threads, and libgomp would throttle. Does nothing without libgomp.
    """
    try:
        # RTLD_NOLOAD: the library that torch has loaded, never another one.
        library = ctypes.CDLL("libgomp.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        pause = library.omp_pause_resource_all
    except (AttributeError, OSError):
        logger.debug("libgomp is not loaded; no workers to release")
        return
    pause(_OMP_PAUSE_SOFT)
