from typing import Final

import numpy as np
from numpy.typing import NDArray

from cellium_fast._records import Batch
from cellium_fast._spans import Stage

learn: Final[Stage]
def apply_increments(batches: list[Batch], pools: int) -> None: ...
def nstep_returns(
    rewards: NDArray[np.float64],
    n: int,
    gamma: float,
    lengths: NDArray[np.int64],
    out: NDArray[np.float64],
) -> None: ...
def decay(
    values: NDArray[np.float64],
    factor: float,
    targets: NDArray[np.float64],
    times: NDArray[np.int64],
) -> None: ...
