from collections.abc import Iterable
from typing import Any

def pack_names(
    tools: dict[int, str], errors: dict[int, str], used: Iterable[str] = ()
) -> bytes: ...
def unpack_names(packed: Any) -> tuple[dict[int, str], dict[int, str], frozenset[str]]: ...
