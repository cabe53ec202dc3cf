from typing import Final

import numpy as np
from numpy.typing import NDArray

LANES: Final[int]
LANES_BYTES: Final[int]

def variants() -> list[int]: ...
def extract(batch_address: int, start: int, stop: int, variant: int = -1) -> None: ...
def ema(
    values: NDArray[np.float64],
    state: NDArray[np.float64],
    alpha: NDArray[np.float64],
    out: NDArray[np.float64],
) -> None: ...
