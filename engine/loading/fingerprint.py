"""Which target a draft was trained for: a short name made of a sample of the target's weights."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from engine.errors import LoadError
from engine.loading.target import LoadedTarget

FIELD = "target_fingerprint"  # in a draft's config.json

_SIDE = 64  # rows and columns taken of each matrix
_SMALLEST = 2.0**-12  # anything nearer to 0 counts as 0
_DIGITS = 32


def target_fingerprint(target: LoadedTarget) -> str | None:
    """Of the embedding and the first matrix of the middle and the last layer.

    The same in float32, bfloat16 and float16 for a model that was published in bfloat16: values
    are rounded to bfloat16, and those that float16 cannot hold count as 0. None for a target
    whose matrices are not plain, as a quantised one's.
    """
    layers = target.parts.layers
    matrices = [
        target.parts.embedding.get_parameter("weight"),
        *(_first_matrix(layers[i]) for i in (len(layers) // 2, len(layers) - 1)),
    ]
    plain = [matrix for matrix in matrices if matrix is not None and _is_plain(matrix)]
    return fingerprint_of(plain) if len(plain) == len(matrices) else None


def fingerprint_of(matrices: Sequence[Tensor]) -> str:
    """A hash over evenly spaced rows and columns of each, and over their shapes."""
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
    """Raises LoadError for a draft that names another target than this one.

    A draft that names none, or a target that cannot be named, passes.
    """
    named = json.loads((folder / "config.json").read_text(encoding="utf-8")).get(FIELD)
    found = target_fingerprint(target) if named is not None else None
    if found is not None and found != named:
        raise LoadError(
            f"speculative.draft_model: {FIELD}: found {named}; accepted: {found}, which is this "
            "target's: the draft was trained for other weights (speculative.allow_other_target: "
            "true takes it all the same)"
        )


def _first_matrix(layer: nn.Module) -> Tensor | None:
    return next((p for p in layer.parameters() if p.ndim == 2), None)


def _is_plain(matrix: Tensor) -> bool:
    return type(matrix) in (Tensor, nn.Parameter) and matrix.dtype.is_floating_point
