from collections.abc import Callable, Sequence
from typing import TypeVar, TypeVarTuple

from cellium_fast._records import Batch

_Arguments = TypeVarTuple("_Arguments")
_Result = TypeVar("_Result")

class Turn:
    @property
    def helpers(self) -> set[int]: ...
    def acquire(self) -> None: ...
    def release(self) -> None: ...
    def run(
        self, function: Callable[[*_Arguments], _Result], *arguments: *_Arguments
    ) -> _Result: ...

class Span:
    def __init__(
        self,
        stages: tuple[Callable[[Batch, int, int], object], ...],
        batch: Batch,
        start: int,
        stop: int,
        chunk: int,
    ) -> None: ...
    @property
    def batch(self) -> Batch: ...
    def __call__(self) -> None: ...

def run_spans(spans: Sequence[Callable[[], object]], helpers: set[int]) -> None: ...
