from typing import Any

import numpy as np
from numpy.typing import NDArray

from cellium_fast._memory import SlotTable
from cellium_fast._records import Batch, UserFailure
from cellium_fast._spans import Span
from cellium_fast.decision import Decision, Setting
from cellium_fast.names import Names
from cellium_fast.policy import Policy
from cellium_fast.pool_history import PoolHistory
from cellium_fast.session import Session

def open(
    journal: Any,
    entry: object,
    memory: SlotTable,
    slots: NDArray[np.int64],
    policies: NDArray[np.uint16],
    chosen: bool,
    pool: int,
    private: bool,
    context_limit: NDArray[np.int64],
    round_limit: NDArray[np.uint32],
    handles: list[tuple[int, Session, Decision]],
    known: dict[int, Session],
    victims: tuple[Batch, NDArray[np.int64], NDArray[np.int8], list[Session]] | None,
) -> None: ...
def attach(
    journal: Any,
    entry: object,
    memory: SlotTable,
    handles: list[tuple[int, Session, Decision]],
    known: dict[int, Session],
) -> None: ...
def close(
    journal: Any,
    entry: object,
    memory: SlotTable,
    batch: Batch,
    slots: NDArray[np.int64],
    outcomes: NDArray[np.int8],
    handles: list[Session],
    known: dict[int, Session],
) -> None: ...
def step(
    journal: Any,
    entry: object,
    memory: SlotTable,
    batch: Batch,
    spans: list[Span],
    slots: NDArray[np.int64],
    helpers: set[int],
    names: Names,
    tools: dict[int, str],
    errors: dict[int, str],
    handles: list[tuple[int, Session, Decision]],
    kept: NDArray[np.void] | None,
) -> UserFailure | None: ...
def user_message(
    journal: Any,
    entry: object,
    memory: SlotTable,
    batch: Batch,
    count: int,
    handles: list[tuple[int, Session, Decision]],
) -> None: ...
def compacted(journal: Any, entry: object) -> None: ...
def set_policy(
    journal: Any,
    entry: object,
    memory: SlotTable,
    row: int,
    record: NDArray[np.void],
    code: NDArray[np.void],
    fleet: object,
    policies: dict[str, Policy],
    settings: list[Setting],
    handles: list[tuple[Session, Setting]],
) -> None: ...
def set_pool(
    journal: Any,
    entry: object,
    memory: SlotTable,
    row: int,
    record: NDArray[np.void],
    fleet: object,
    learned_from: dict[str, PoolHistory],
) -> None: ...
def use_policy(
    journal: Any,
    entry: object,
    memory: SlotTable,
    slots: NDArray[np.int64],
    row: int,
    handles: list[tuple[Session, Setting]],
) -> None: ...
