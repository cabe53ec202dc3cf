import numpy as np
from numpy.typing import NDArray

def learn(batch_address: int, start: int, stop: int, increments: int) -> None: ...
def finish(batch_address: int, outcomes: NDArray[np.int8], increments: int) -> None: ...
def apply_increments(batch_address: int, increments: int, pools: int) -> None: ...
def close_sessions(batch_address: int, count: int) -> None: ...
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
