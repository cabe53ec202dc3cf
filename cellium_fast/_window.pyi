import numpy as np
from numpy.typing import NDArray

def repetition_scores(
    signatures: NDArray[np.uint64], lengths: NDArray[np.int64], out: NDArray[np.float64]
) -> None: ...
