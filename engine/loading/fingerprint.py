"""Identifies the target that a draft was trained for, by a hash over some of its weights."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from draft.checkpoint.reading import read_json
from engine.errors import LoadError
from engine.loading.target import LoadedTarget

FIELD = "target_fingerprint"  # in a draft's config.json

_SIDE = 64  # sampled rows and columns of each matrix
_SMALLEST = 2.0**-12  # smaller magnitudes count as 0
_DIGITS = 32


def target_fingerprint(target: LoadedTarget) -> str | None:
    """Hash the embedding and the first matrix of the middle and the last layer.

    A model published in bfloat16 has the same fingerprint in float32, bfloat16 and float16: values
    are rounded to bfloat16, and those too small for float16 count as 0. None for a target whose
    matrices are not plain tensors, such as a quantised one.
    """
    layers = target.parts.layers
    matrices = [
        target.parts.embedding.get_parameter("weight"),
        *(_first_matrix(layers[i]) for i in (len(layers) // 2, len(layers) - 1)),
    ]
    plain = [matrix for matrix in matrices if matrix is not None and _is_plain(matrix)]
    return fingerprint_of(plain) if len(plain) == len(matrices) else None


def fingerprint_of(matrices: Sequence[Tensor]) -> str:
    """Hash evenly spaced rows and columns of each matrix, and the shapes."""
    digest = hashlib.sha256()
    for matrix in matrices:
        sample = matrix.detach()
        for dim, size in enumerate(matrix.shape):
            places = torch.linspace(0, size - 1, min(size, _SIDE)).round().long()
            sample = sample.index_select(dim, places.to(matrix.device))
        values = sample.float().cpu()
        values = torch.where(values.abs() < _SMALLEST, 0.0, values)
        digest.update(repr(tuple(matrix.shape)).encode())
        digest.update(values.bfloat16().view(torch.int16).numpy().tobytes())
    return digest.hexdigest()[:_DIGITS]


def refuse_another_target(folder: Path, target: LoadedTarget) -> None:
    """Raise LoadError for a draft whose config names another target.

    A draft without a fingerprint passes, and so does a target that has none.
    """
    named = read_json(folder / "config.json").get(FIELD)
    found = target_fingerprint(target) if named is not None else None
    if found is not None and found != named:
        raise LoadError(
            f"speculative.draft_model: {FIELD}: found {named}; accepted: {found}, which is this "
            "target's: the draft was trained for other weights (speculative.allow_other_target: "
            "true loads it nevertheless)"
        )


def _first_matrix(layer: nn.Module) -> Tensor | None:
    return next((p for p in layer.parameters() if p.ndim == 2), None)


def _is_plain(matrix: Tensor) -> bool:
    return type(matrix) in (Tensor, nn.Parameter) and matrix.dtype.is_floating_point
