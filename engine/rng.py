"""Counter-based randomness: a number's key says where it is used, so order cannot matter."""

from enum import IntEnum

import numpy as np
import numpy.typing as npt


class Purpose(IntEnum):
    """What a uniform decides at a draft position. The values are part of the key."""

    DRAFT = 0  # draws the draft token
    ACCEPT = 1  # accepts or rejects it
    BONUS = 2  # draws the bonus token if the round ends at this position


def round_uniforms(
    seed: int, *, choice: int, anchor_position: int, num_positions: int
) -> npt.NDArray[np.float64]:
    """Uniforms in [0, 1) for one round of one sequence: [num_positions, len(Purpose)].

    Philox (Salmon et al., SC 2011) keyed by (seed, choice) and counted by the anchor's
    position; row k serves draft position k whatever the block size is. The anchor is in the
    counter so that a draft that was thrown away is never drawn again from the same number.
    """
    bits = np.random.Philox(
        key=np.array([seed % 2**64, choice], dtype=np.uint64),
        counter=np.array([0, 0, anchor_position, 0], dtype=np.uint64),
    )
    return np.random.Generator(bits).random((num_positions, len(Purpose)))
