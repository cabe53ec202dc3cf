from typing import Final

from cellium_fast._records import Batch
from cellium_fast._spans import Stage

evaluate: Final[Stage]
execute: Final[Stage]
def user_message(columns: Batch, count: int) -> None: ...
