"""Counter-based randomness: a number's key says where it is used, so order cannot matter."""

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Purpose(IntEnum):
    """What a uniform decides at a draft position. The values are part of the key."""

    DRAFT = 0  # draws the draft token
    ACCEPT = 1  # accepts or rejects it
    BONUS = 2  # draws the bonus token if the round ends at this position


class RoundKey(NamedTuple):
    """Which round of which sequence."""

    seed: int
    choice: int
    anchor_position: int


def round_uniforms(keys: Sequence[RoundKey], *, num_positions: int) -> npt.NDArray[np.float64]:
    """Uniforms in [0, 1) for one round of each of R sequences: [R, num_positions, len(Purpose)].

    Philox (Salmon et al., SC 2011) keyed by (seed, choice) and counted by the anchor's
    position; row k serves draft position k whatever the block size is. The anchor is in the
    counter so that a draft that was thrown away is never drawn again from the same number.

    One generator is put to every key in turn: to make one takes three times as long, and a GPU
    has nothing to do until the numbers are there.
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
