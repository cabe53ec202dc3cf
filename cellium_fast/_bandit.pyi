from typing import Final

import numpy as np
from numpy.typing import NDArray

from cellium_fast._spans import Stage

tie_break: Final[Stage]
def thompson(
    alpha: NDArray[np.float64],
    beta: NDArray[np.float64],
    candidates: NDArray[np.uint8],
    bias: NDArray[np.float64],
    key: int,
    ids: NDArray[np.uint64],
    rounds: NDArray[np.uint32],
    out: NDArray[np.uint8],
) -> None: ...
