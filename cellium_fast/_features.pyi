from typing import Final

import numpy as np
from numpy.typing import NDArray

from cellium_fast._records import Batch
from cellium_fast._spans import Stage

LANES: Final[int]
LANES_BYTES: Final[int]

def variants() -> list[int]: ...
extract: Final[Stage]
def extract_with(variant: int, columns: Batch, start: int, stop: int) -> None: ...
def ema(
    values: NDArray[np.float64],
    state: NDArray[np.float64],
    alpha: NDArray[np.float64],
    out: NDArray[np.float64],
) -> None: ...
