from typing import Final

from cellium_fast._records import Batch
from cellium_fast._spans import Stage

RULES: Final[tuple[str, ...]]
FORCING: Final[int]
LOOP_RULES: Final[int]

evaluate: Final[Stage]
def evaluate_with(variant: int, columns: Batch, start: int, stop: int) -> None: ...
