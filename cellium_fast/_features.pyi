import numpy as np
from numpy.typing import NDArray

def extract(batch_address: int, start: int, stop: int) -> None: ...
def ema(
    values: NDArray[np.float64],
    state: NDArray[np.float64],
    alpha: NDArray[np.float64],
    out: NDArray[np.float64],
) -> None: ...
