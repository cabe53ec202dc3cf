from typing import Final

import numpy as np
from numpy.typing import NDArray

from cellium_fast._spans import Stage

MOST_LEARNED: Final[int]
note_rewards: Final[Stage]

def shapes(choices: NDArray[np.void]) -> list[tuple[float, float]]: ...
def choose(
    choices: NDArray[np.void], key: int, first: int, out: NDArray[np.uint16]
) -> None: ...
