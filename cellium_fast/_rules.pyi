from typing import Final

RULES: Final[tuple[str, ...]]
FORCING: Final[int]
LOOP_RULES: Final[int]

def evaluate(batch_address: int, start: int, stop: int, variant: int = -1) -> None: ...
