"""Recognises exceptions that mean that memory did not suffice."""

import torch

# Allocators report through RuntimeError: CUDA's driver, PyTorch's CPU allocator, cuBLAS.
_MESSAGES = ("out of memory", "can't allocate memory", "cublas_status_alloc_failed")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an allocation failed, on the device or on the host."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(message in text for message in _MESSAGES)
