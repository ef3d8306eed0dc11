"""How the threads that compute together wait for each other. Importing this loads no torch.

They meet hundreds of times a step. libgomp, which torch brings along, lets the first to arrive spin
and then sleep, and each of its two settings is wrong here:

    by itself     spins for 7 ms and more: beside any other busy process, the one that is awaited
                  cannot run meanwhile, and a step takes tens of times as long
    throttled     sleeps at once, and waking takes as long as the work: what it does when there are
                  more threads than cores, and it counts the idle helpers of every thread that has
                  ever computed

See "Threads that wait" in docs/experiments.md for what each costs.
"""

import ctypes
import logging
import os
from collections.abc import MutableMapping

logger = logging.getLogger(__name__)

_SHORT = "3000"  # looks at a barrier before a thread sleeps: 75 to 150 microseconds
_SOFT = 1  # omp_pause_soft: what the threads have set stays


def wait_shortly(environ: MutableMapping[str, str] = os.environ) -> None:
    """Have threads spin for long enough to meet, and no longer, unless the environment has a say.

    libgomp reads it when it is loaded: before the first import of torch.
    """
    if "OMP_WAIT_POLICY" not in environ:
        environ.setdefault("GOMP_SPINCOUNT", _SHORT)


def dismiss_helpers() -> None:
    """End the helpers with which the calling thread has computed; new ones come when it does again.

    For a thread that has loaded what another one will run: the other's helpers would be too many.
    Nothing where the threads are not libgomp's.
    """
    try:
        # The one that torch has loaded, never another.
        library = ctypes.CDLL("libgomp.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        pause = library.omp_pause_resource_all
    except (AttributeError, OSError):
        logger.debug("no libgomp that could dismiss its threads")
        return
    pause(_SOFT)
