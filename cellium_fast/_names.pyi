from collections.abc import Mapping
from typing import Final

CAPACITY: Final[int]

class NameTable:
    _tools: dict[int, str]
    _errors: dict[int, str]
    _capacity: int
    forgotten: int

    def __init__(self, capacity: int = 10_000) -> None: ...
    def missing(
        self, tools: Mapping[int, str], errors: Mapping[int, str]
    ) -> tuple[dict[int, str], dict[int, str]]: ...
    def add(self, tools: dict[int, str], errors: dict[int, str]) -> None: ...
