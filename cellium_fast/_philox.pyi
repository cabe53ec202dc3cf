import numpy as np
from numpy.typing import NDArray

def random_words(counters: NDArray[np.uint32], key: int, out: NDArray[np.uint32]) -> None: ...
def sample_beta(
    alpha: NDArray[np.float64],
    beta: NDArray[np.float64],
    key: int,
    first: int,
    out: NDArray[np.float64],
) -> None: ...
