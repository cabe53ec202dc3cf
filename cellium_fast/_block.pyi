from types import TracebackType
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from cellium_fast._memory import SlotTable
from cellium_fast._records import Batch, UserFailure
from cellium_fast._spans import Stage, Turn

WRONG_COLUMNS: Final[dict[int, str]]
NOT_OPEN: Final[int]
BUSY: Final[int]
WRONG_ROWS: Final[int]

class BlockBase:
    def set_turn(self, turn: Turn) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...
    def set_up(
        self,
        *,
        memory: SlotTable,
        batch: Batch,
        stages: tuple[Stage, ...],
        size: int,
        chunk: int,
        offsets: NDArray[np.int64] | None,
        checked_offsets: NDArray[np.int64] | None,
        call_capacity: int,
        moved: tuple[NDArray[Any], ...],
        kept: NDArray[np.void] | None,
    ) -> None: ...
    @property
    def address(self) -> int: ...
    @property
    def is_open(self) -> bool: ...
    @property
    def failure(self) -> UserFailure | None: ...
    @property
    def wrong_at(self) -> int: ...
    def __len__(self) -> int: ...
    def run(self, start: int, stop: int) -> int: ...
    def close_rows(
        self,
        batch: Batch,
        slots: NDArray[np.int64],
        outcomes: NDArray[np.int8],
        handles: dict[int, Any],
        kept: NDArray[np.int64],
    ) -> None: ...
