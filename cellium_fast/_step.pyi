from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cellium_fast._journal_reader import Entries
from cellium_fast._spans import Turn
from cellium_fast.decision import Decision, Setting
from cellium_fast.memory import Memory
from cellium_fast.names import Names
from cellium_fast.rounds import Round

ID_OK: Final[int]
ID_UNKNOWN: Final[int]
ID_CLOSED: Final[int]
ID_REPEATED: Final[int]
FEATURES_DTYPE: Final[np.dtype[np.void]]
OUTCOME: Final[np.dtype[np.void]]

class FeatureRecord(NamedTuple):
    progress_score: float
    progress_trend: float
    progress_trend_raw: float
    trend_confidence: float
    context_saturation: float
    context_ratio: float
    repetition_score: float
    error_rate: float
    empty_rate: float
    result_quality: float
    round: int
    rounds_left: int
    stuck_iterations: int
    run_tool: int
    error_result: int
    recent_tools: tuple[int, int, int]
    run_length: int
    cycle: int
    output_repeats: int
    failures_in_row: int
    information: int
    own_limit: int
    no_information: int
    little_information: int
    round_repeats: int
    call_repeats: int
    result_repeats: int
    recent_failures: int
    error_repeats: int
    transient_rounds: int
    text_repeats: int
    idle_rounds: int
    blank_rounds: int
    unheeded_redirects: int
    exhausted_rounds: int
    compress_wait: int
    compress_tries: int
    slight: bool
    compress_ready: bool
    compression_failed: bool
    context_known: bool
    plateau: bool
    making_progress: bool

class DecisionRecord:
    @property
    def action(self) -> int: ...
    @property
    def candidates(self) -> int: ...
    @property
    def rules(self) -> int: ...
    @property
    def user_rules(self) -> int: ...
    @property
    def propensity(self) -> float: ...
    @property
    def tiebreak(self) -> bool: ...
    @property
    def reward(self) -> float: ...
    @property
    def advice_age(self) -> int: ...
    @property
    def context_ratio(self) -> float: ...
    @property
    def draws(self) -> list[float]: ...
    @property
    def bias(self) -> list[float]: ...
    @property
    def features(self) -> FeatureRecord: ...
    def packed(self) -> bytes: ...

class DecisionBase:
    @property
    def setting(self) -> Setting: ...

class Stepper:
    journal: Any

    def set_fleet(
        self,
        *,
        memory: Memory,
        names: Names,
        lock: Turn,
        increments: NDArray[Any],
        decision: type[Decision],
    ) -> None: ...

class Handle:
    _evicted: bool

    def step(self, round: Round) -> Decision: ...
    def _replay(self, packed: Entries, used: frozenset[str] | None) -> None: ...
    @property
    def done(self) -> bool: ...

def ids_of(
    batch_address: int, slots: NDArray[np.int64], opening: bool, ids: NDArray[np.int64]
) -> None: ...
def find_slots(
    batch_address: int, used: int, ids: NDArray[np.int64], slots: NDArray[np.int64]
) -> tuple[int, int, bool]: ...
def first_repeated(slots: NDArray[np.int64], count: int, seen: NDArray[np.uint8]) -> int: ...
def slot_of(id: int) -> int: ...
def check_id(batch_address: int, used: int, id: int) -> int: ...
def feature_record(packed: bytes) -> FeatureRecord: ...
def record_of(batch_address: int, i: int) -> DecisionRecord: ...
def unpacked(packed: bytes | NDArray[np.uint8]) -> DecisionRecord: ...
