"""Compiles the kernels for this very CPU, once, and loads them."""

import ctypes
import hashlib
import logging
import os
import platform
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.machine import cxx_compiler

logger = logging.getLogger(__name__)

_SOURCES = (
    *("vectors.h", "linear.h", "math.h", "attention.h", "decoder.h"),
    *("draft_chain.h", "draft_round.h", "draft_context.h", "kernels.cpp"),
)
_FLAGS = ("-std=c++17", "-O3", "-fopenmp", "-fPIC", "-shared")
_FOLDER = Path(__file__).parent


class NativeUnavailable(Exception):
    """The kernels cannot be had here; the message says why. PyTorch does the work then."""


@dataclass(frozen=True, slots=True)
class Kernels:
    """The compiled functions; see kernels.cpp for what they take."""

    linear: Any
    decode: Any
    decode_bfloat16: Any
    state_size: Any
    draft_round: Any
    draft_context: Any
    has_head_dim: Any
    library: Path


def load_kernels(cache_dir: Path) -> Kernels:
    """Compile into cache_dir if this machine has not yet, and load.

    Raises NativeUnavailable with the reason.
    """
    compiler = cxx_compiler()
    if compiler is None:
        raise NativeUnavailable("no C++ compiler found; install g++ or clang++")
    flags = [*_FLAGS, "-mcpu=native" if platform.machine() == "aarch64" else "-march=native"]
    library = cache_dir / "native" / f"kernels-{_fingerprint(compiler, flags)}.so"
    if not library.exists():
        logger.info("compiling native kernels for this CPU, once, into %s", library.parent)
        _compile(compiler, flags, library)
    return _load(library)


def _fingerprint(compiler: str, flags: list[str]) -> str:
    """Sources, compiler, flags and CPU: a cache may be shared by different machines."""
    version = _run([compiler, "--version"]).splitlines()[0]
    digest = hashlib.sha256("\0".join([version, *flags, _cpu()]).encode())
    for name in _SOURCES:
        digest.update((_FOLDER / name).read_bytes())
    return digest.hexdigest()[:16]


def _cpu() -> str:
    """What `-march=native` depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "".join(sorted({line for line in lines if line.startswith(("flags", "Features"))}))


def _compile(compiler: str, flags: list[str], library: Path) -> None:
    """Into a temporary name first, so that nobody loads half a file."""
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(suffix=".so", dir=library.parent)
        os.close(handle)
    except OSError as error:
        raise NativeUnavailable(f"cannot write to {library.parent}: {error}") from error
    try:
        _run([compiler, *flags, "-o", temporary, str(_FOLDER / "kernels.cpp")])
        os.replace(temporary, library)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NativeUnavailable(f"{command[0]} does not run: {error}") from error
    if done.returncode != 0:
        said = " ".join(done.stderr.split())[:300]
        raise NativeUnavailable(f"{command[0]} fails: {said}")
    return done.stdout


def _load(library: Path) -> Kernels:
    try:
        loaded = ctypes.CDLL(str(library))
    except OSError as error:
        raise NativeUnavailable(f"cannot load {library}: {error}") from error
    loaded.dspark_linear.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int64] * 4
    loaded.dspark_linear.restype = None
    for decode in (loaded.dspark_decode, loaded.dspark_decode_bfloat16):
        decode.argtypes = [ctypes.c_void_p] * 2
        decode.restype = None
    loaded.dspark_state_size.argtypes = [ctypes.c_int64]
    loaded.dspark_state_size.restype = ctypes.c_int64
    loaded.dspark_draft_round.argtypes = [ctypes.c_void_p] * 2
    loaded.dspark_draft_round.restype = ctypes.c_int64
    loaded.dspark_draft_context.argtypes = [ctypes.c_void_p]
    loaded.dspark_draft_context.restype = ctypes.c_int64
    loaded.dspark_has_head_dim.argtypes = [ctypes.c_int64]
    loaded.dspark_has_head_dim.restype = ctypes.c_int64
    return Kernels(
        linear=loaded.dspark_linear,
        decode=loaded.dspark_decode,
        decode_bfloat16=loaded.dspark_decode_bfloat16,
        state_size=loaded.dspark_state_size,
        draft_round=loaded.dspark_draft_round,
        draft_context=loaded.dspark_draft_context,
        has_head_dim=loaded.dspark_has_head_dim,
        library=library,
    )
