import numpy as np
from numpy.typing import NDArray

def random_words(counters: NDArray[np.uint32], key: int, out: NDArray[np.uint32]) -> None: ...
def words_of_agents(
    uids: NDArray[np.int64],
    rounds: NDArray[np.int64],
    key: int,
    purpose: int,
    out: NDArray[np.uint32],
) -> None: ...
def first_no_shape(values: NDArray[np.float64]) -> int: ...
def sample_beta(
    alpha: NDArray[np.float64],
    beta: NDArray[np.float64],
    key: int,
    first: int,
    out: NDArray[np.float64],
) -> None: ...
def beta_variants() -> list[int]: ...
def sample_beta_with(
    variant: int,
    alpha: NDArray[np.float64],
    beta: NDArray[np.float64],
    key: int,
    first: int,
    out: NDArray[np.float64],
) -> None: ...
def sample_beta_singly(
    alpha: NDArray[np.float64],
    beta: NDArray[np.float64],
    key: int,
    first: int,
    out: NDArray[np.float64],
) -> None: ...
def elementary(
    x: NDArray[np.float64],
) -> tuple[list[float], list[float], list[float], list[float]]: ...
