from typing import Final

from cellium_fast._spans import Stage

rules: Final[Stage]
