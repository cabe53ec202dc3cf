import numpy as np
from numpy.typing import NDArray

from cellium_fast._records import Batch

def tie_break(columns: Batch, start: int, stop: int) -> None: ...
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
