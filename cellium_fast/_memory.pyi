from typing import Any

import numpy as np
from numpy.typing import NDArray

from cellium_fast._records import Batch

class SlotTable:
    base: Batch
    used: int
    free_count: int
    opened: int
    open_count: int

    @property
    def free(self) -> NDArray[np.int64]: ...
    @property
    def watched(self) -> NDArray[np.bool_]: ...
    def hold_free(self, free: NDArray[Any]) -> None: ...
    def hold_watched(self, watched: NDArray[Any]) -> None: ...
