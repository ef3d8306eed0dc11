"""Finds the cores, memory and accelerator that this process may use. Importing it loads no torch.

A container may see all cores of its host and be allowed two. The smaller of the scheduler's
affinity mask and the control group's quota counts; likewise for memory.
"""

import importlib.metadata
import importlib.util
import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_CGROUP_ROOT = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")
_CPU_INFO = Path("/proc/cpuinfo")
_MEMORY_INFO = Path("/proc/meminfo")
_LOAD = Path("/proc/loadavg")
_COMPILERS = ("c++", "g++", "clang++")
_UNLIMITED = 1 << 60  # version 1 says "no limit" with a number near 2**63
_CPU_FEATURES = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "asimd")


@dataclass(frozen=True, slots=True)
class CgroupLimits:
    """Limits of this process's control groups; None is no limit."""

    cores: float | None
    memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class Cuda:
    """CUDA devices that torch finds; `missing` is the reason when there is none."""

    device_names: tuple[str, ...]
    memory_bytes: tuple[int, ...]
    missing: str | None


def available_cores() -> int:
    """Count the cores that this process may use, at least 1."""
    allowed = affinity_cores()
    quota = cgroup_limits().cores
    return allowed if quota is None else max(1, min(allowed, int(quota)))


def affinity_cores() -> int:
    """Count the cores in the scheduler's mask; all of them where the system has no mask."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def load_average() -> float | None:
    """Read the machine's load average over one minute; None where the system has none."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def runnable_threads(*, file: Path = _LOAD) -> int | None:
    """Count the machine's runnable threads but this one; None where the system reports none."""
    fields = _first_line(file).split()  # "3.58 2.72 1.77 6/113 9104"
    num_runnable = fields[3].partition("/")[0] if len(fields) > 3 else ""
    return max(0, int(num_runnable) - 1) if num_runnable.isdecimal() else None


def why_too_many_threads(*, num_threads: int, cores: int) -> str | None:
    """Explain that threads outnumber the cores, and what to do; None if they do not."""
    if num_threads <= cores:
        return None
    return (
        f"{num_threads} threads for {cores} usable cores: after every product all wait for the "
        f"slowest; set device.num_threads or OMP_NUM_THREADS to {cores} at most"
    )


def why_too_busy(*, load: float | None, runnable: int | None, machine_cores: int) -> str | None:
    """Explain that other processes slow this one down, and what to do; None if they do not.

    All three numbers are of the whole machine. load averages over a minute and includes work that
    has ended; runnable is a momentary count. So both must exceed the cores.
    """
    if load is None or load <= machine_cores:
        return None
    if runnable is not None and runnable <= machine_cores:
        return None
    now = "" if runnable is None else f" and {runnable} runnable threads"
    return (
        f"the load average is {load:.1f} on a machine of {machine_cores} cores{now}: other "
        "processes make every step several times slower; stop them, or set device.num_threads to "
        "the cores that are left"
    )


def cxx_compiler() -> str | None:
    """Find the path of a C++ compiler, for the CPU kernels; None without one."""
    return next(filter(None, map(shutil.which, _COMPILERS)), None)


def available_memory_bytes() -> int | None:
    """Bytes that can be allocated without swapping; None where the system reports none."""
    free = _memory_info("MemAvailable")
    limit = cgroup_limits().memory_bytes
    known = [value for value in (free, limit) if value is not None]
    return min(known) if known else None


def total_memory_bytes() -> int | None:
    """Bytes of the machine's memory; None where the system reports none."""
    return _memory_info("MemTotal")


def cgroup_limits(*, root: Path = _CGROUP_ROOT, membership: Path = _OWN_CGROUPS) -> CgroupLimits:
    """Find the tightest limits of this process's control groups and their parents."""
    cores: list[float] = []
    memory: list[int] = []
    for folder in _own_folders(root, membership):
        cores.extend(_cores_allowed(folder))
        memory.extend(_memory_allowed(folder))
    return CgroupLimits(min(cores, default=None), min(memory, default=None))


def cpu_name() -> str:
    """Read the processor's model name; else its architecture."""
    return _cpu_field("model name") or platform.processor() or platform.machine()


def cpu_features() -> tuple[str, ...]:
    """List the available instruction sets that matter for matrix products."""
    found = (_cpu_field("flags") or _cpu_field("Features") or "").split()
    return tuple(feature for feature in _CPU_FEATURES if feature in found)


def installed_version(distribution: str) -> str | None:
    """Read the version of an installed package without importing it; None without it."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def find_cuda() -> Cuda:
    """List the CUDA devices that torch finds. Loads torch."""
    if importlib.util.find_spec("torch") is None:
        return Cuda((), (), "torch is not installed")
    import torch

    if torch.version.cuda is None:
        return Cuda((), (), "this build of torch has no CUDA")
    if not torch.cuda.is_available():
        return Cuda((), (), "torch finds no CUDA device or driver")
    devices = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return Cuda(tuple(d.name for d in devices), tuple(d.total_memory for d in devices), None)


def _own_folders(root: Path, membership: Path) -> Iterator[Path]:
    """Yield the folders of this process's groups and their parents, versions 2 and 1."""
    for line in _lines(membership):
        _, controllers, path = line.split(":", 2)
        top = root if controllers == "" else root / controllers
        folder = top / path.lstrip("/")
        yield folder
        yield from (above for above in folder.parents if above == top or top in above.parents)


def _cores_allowed(folder: Path) -> Iterator[float]:
    fields = _first_line(folder / "cpu.max").split()  # version 2: "QUOTA PERIOD" or "max PERIOD"
    if len(fields) == 2 and fields[0] != "max":
        yield int(fields[0]) / int(fields[1])
    quota = _first_line(folder / "cpu.cfs_quota_us")  # version 1: -1 is no limit
    period = _first_line(folder / "cpu.cfs_period_us")
    if quota and period and int(quota) > 0:
        yield int(quota) / int(period)


def _memory_allowed(folder: Path) -> Iterator[int]:
    for name in ("memory.max", "memory.limit_in_bytes"):
        text = _first_line(folder / name)
        if text.isdigit() and int(text) < _UNLIMITED:
            yield int(text)


def _memory_info(field: str) -> int | None:
    for line in _lines(_MEMORY_INFO):
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    return None


def _cpu_field(field: str) -> str | None:
    for line in _lines(_CPU_INFO):
        name, _, value = line.partition(":")
        if name.strip() == field:
            return value.strip()
    return None


def _first_line(file: Path) -> str:
    return next(iter(_lines(file)), "")


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []
