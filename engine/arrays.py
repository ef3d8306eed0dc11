"""Names the array types that host code passes between rooms."""

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
