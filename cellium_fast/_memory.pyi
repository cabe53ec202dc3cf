from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cellium_fast._records import Batch

LAST_GENERATION: Final[int]

class SlotTable:
    base: Batch
    used: int
    free_count: int
    opened: int
    open_count: int
    calls: int
    evicted: int

    @property
    def free(self) -> NDArray[np.int64]: ...
    @property
    def watched(self) -> NDArray[np.bool_]: ...
    @property
    def last_use(self) -> NDArray[np.uint64] | None: ...
    @property
    def queue(self) -> NDArray[np.int64] | None: ...
    def hold_free(self, free: NDArray[Any]) -> None: ...
    def hold_watched(self, watched: NDArray[Any]) -> None: ...
    def hold_last_use(self, last_use: NDArray[Any]) -> None: ...
    def hold_queue(self, queue: NDArray[Any]) -> None: ...
    def unused_longest(self, slots: NDArray[np.int64]) -> int: ...
