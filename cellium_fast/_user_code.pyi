from typing import Final

from cellium_fast._spans import Stage

reward: Final[Stage]
rules: Final[Stage]
bias: Final[Stage]
