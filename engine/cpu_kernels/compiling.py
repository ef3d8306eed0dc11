"""Compiles the CPU kernels for this machine's CPU, once, and loads them."""

import ctypes
import hashlib
import logging
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from engine.platform.host import cxx_compiler

logger = logging.getLogger(__name__)

_SOURCES = (
    *("vectors.h", "linear.h", "rounded.h", "math.h", "keys_ahead.h", "attention.h"),
    *("decoder_structs.h", "attention_queue.h", "decoder.h"),
    *("draft_chain.h", "draft_round.h", "draft_context.h", "kernels.cpp"),
)
_FLAGS = ("-std=c++17", "-O3", "-fopenmp", "-fPIC", "-shared")
_FOLDER = Path(__file__).parent
# The limit for a compiler that hangs. On a busy machine half a minute's work takes many minutes,
# and a server without kernels would be slow for as long as it runs.
_MOST_SECONDS = 1800
_POINTER, _COUNT = ctypes.c_void_p, ctypes.c_int64
# Matrices' dtypes, and the suffixes of their functions' names.
_SUFFIXES = {torch.float32: "", torch.bfloat16: "_bfloat16", torch.int8: "_int8"}
# The dtypes of a target's matrices, and of its keys and values.
_DECODERS = {
    (torch.float32, torch.float32): "",
    (torch.bfloat16, torch.bfloat16): "_bfloat16",
    (torch.int8, torch.float32): "_int8",
    (torch.int8, torch.bfloat16): "_int8_bfloat16",
}

_ByDType = Mapping[torch.dtype, Any]


class CpuKernelsUnavailable(Exception):
    """The kernels cannot be used here; the message is the reason. PyTorch runs in their place."""


@dataclass(frozen=True, slots=True)
class KernelLibrary:
    """The compiled functions, by the dtype of matrices; see kernels.cpp for their arguments."""

    linear: _ByDType
    decode: Mapping[tuple[torch.dtype, torch.dtype], Any]  # and keys and values
    draft_round: _ByDType
    draft_context: _ByDType
    state_size: Any
    has_head_dim: Any
    path: Path


def load_kernels(cache_dir: Path) -> KernelLibrary:
    """Load the kernels; compile them into cache_dir at the first call on this machine.

    Raises CpuKernelsUnavailable with the reason.
    """
    compiler = cxx_compiler()
    if compiler is None:
        raise CpuKernelsUnavailable("no C++ compiler found; install g++ or clang++")
    flags = [*_FLAGS, "-mcpu=native" if platform.machine() == "aarch64" else "-march=native"]
    library = cache_dir / "cpu_kernels" / f"kernels-{_fingerprint(compiler, flags)}.so"
    if not library.exists():
        logger.info("compiling CPU kernels for this machine, once, into %s", library.parent)
        start = time.perf_counter()
        _compile(compiler, flags, library)
        logger.info("compiling CPU kernels: done in %.0f s", time.perf_counter() - start)
    return _load(library)


def _fingerprint(compiler: str, flags: list[str]) -> str:
    """Hash sources, compiler, flags and CPU: different machines may use one cache."""
    version = _run([compiler, "--version"]).splitlines()[0]
    digest = hashlib.sha256("\0".join([version, *flags, _cpu()]).encode())
    for name in _SOURCES:
        digest.update((_FOLDER / name).read_bytes())
    return digest.hexdigest()[:16]


def _cpu() -> str:
    """Return the CPU features that `-march=native` depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "".join(sorted({line for line in lines if line.startswith(("flags", "Features"))}))


def _compile(compiler: str, flags: list[str], library: Path) -> None:
    """Compile to a temporary name, then rename, so that no process loads half a file."""
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(suffix=".so", dir=library.parent)
        os.close(handle)
    except OSError as error:
        raise CpuKernelsUnavailable(f"cannot write to {library.parent}: {error}") from error
    try:
        _run([compiler, *flags, "-o", temporary, str(_FOLDER / "kernels.cpp")])
        os.replace(temporary, library)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_MOST_SECONDS, check=False
        )
    except OSError as error:
        raise CpuKernelsUnavailable(f"{command[0]} does not run: {error}") from error
    except subprocess.TimeoutExpired as error:
        reason = f"{command[0]} is not done after {_MOST_SECONDS:g} seconds"
        raise CpuKernelsUnavailable(reason) from error
    if done.returncode != 0:
        output = " ".join(done.stderr.split())[:300]
        raise CpuKernelsUnavailable(f"{command[0]} fails: {output}")
    return done.stdout


def _load(library: Path) -> KernelLibrary:
    try:
        loaded = ctypes.CDLL(str(library))
    except OSError as error:
        raise CpuKernelsUnavailable(f"cannot load {library}: {error}") from error
    return KernelLibrary(
        linear=_functions(loaded, "linear", [_POINTER] * 5 + [_COUNT] * 4, None),
        decode={
            dtypes: _function(loaded, "decode" + suffix, [_POINTER] * 2, None)
            for dtypes, suffix in _DECODERS.items()
        },
        draft_round=_functions(loaded, "draft_round", [_POINTER] * 2, _COUNT),
        draft_context=_functions(loaded, "draft_context", [_POINTER], _COUNT),
        state_size=_function(loaded, "state_size", [_COUNT], _COUNT),
        has_head_dim=_function(loaded, "has_head_dim", [_COUNT], _COUNT),
        path=library,
    )


def _functions(
    loaded: ctypes.CDLL, name: str, arguments: list[type], result: type | None
) -> dict[torch.dtype, Any]:
    return {
        dtype: _function(loaded, name + suffix, arguments, result)
        for dtype, suffix in _SUFFIXES.items()
    }


def _function(loaded: ctypes.CDLL, name: str, arguments: list[type], result: type | None) -> Any:
    function = getattr(loaded, f"dspark_{name}")
    function.argtypes, function.restype = arguments, result
    return function
