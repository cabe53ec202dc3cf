import numpy as np
from numpy.typing import NDArray

def win_probabilities(
    alpha: NDArray[np.float64],
    beta: NDArray[np.float64],
    candidates: NDArray[np.uint8],
    bias: NDArray[np.float64],
    out: NDArray[np.float64],
) -> None: ...
def win_probabilities_with(
    variant: int,
    alpha: NDArray[np.float64],
    beta: NDArray[np.float64],
    candidates: NDArray[np.uint8],
    bias: NDArray[np.float64],
    out: NDArray[np.float64],
) -> None: ...
def gauss_integrals(values: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]: ...
