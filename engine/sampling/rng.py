"""Computes counter-based random numbers: their key is their place of use, so order is free."""

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Purpose(IntEnum):
    """The decision at a draft position that a uniform is for. The values are part of the key."""

    DRAFT = 0  # draws the draft token
    ACCEPT = 1  # accepts or rejects it
    BONUS = 2  # draws the bonus token if the round ends at this position


class RoundKey(NamedTuple):
    """Identifies one round of one sequence."""

    seed: int
    choice: int
    anchor_position: int


def round_uniforms(keys: Sequence[RoundKey], *, num_positions: int) -> npt.NDArray[np.float64]:
    """Compute uniforms in [0, 1) for a round of R sequences: [R, num_positions, len(Purpose)].

    Philox (Salmon et al., SC 2011) is keyed by (seed, choice) and counted by the anchor's
    position; row k serves draft position k whatever the block size is. The anchor is in the
    counter so that a discarded draft is never drawn again from the same number.

    One generator is set to every key in turn: making one takes three times as long, and a GPU
    is idle until the numbers exist.
    """
    uniforms = np.empty((len(keys), num_positions, len(Purpose)))
    bits = np.random.Philox(key=0)
    generator, fresh = np.random.Generator(bits), bits.state
    for key, row in zip(keys, uniforms, strict=True):
        fresh["state"] = {
            "key": np.array([key.seed % 2**64, key.choice], dtype=np.uint64),
            "counter": np.array([0, 0, key.anchor_position, 0], dtype=np.uint64),
        }
        bits.state = fresh
        generator.random(out=row)
    return uniforms
