from typing import Final

from cellium_fast._records import Batch

RULES: Final[tuple[str, ...]]
FORCING: Final[int]
LOOP_RULES: Final[int]

def evaluate(columns: Batch, start: int, stop: int, variant: int = -1) -> None: ...
