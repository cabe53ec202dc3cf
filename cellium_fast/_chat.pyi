from typing import Any

from cellium_fast.rounds import Round
from cellium_fast.traces.runs import Complaints

def read_messages(
    messages: list[Any], complaints: Complaints, any_error_start: bool
) -> tuple[list[Round], list[int]]: ...
def context_limit(fields: dict[str, Any], complaints: Complaints) -> int | None: ...
