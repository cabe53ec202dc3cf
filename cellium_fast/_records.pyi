from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

ACTIONS: Final[tuple[str, ...]]
TIE_BREAKS: Final[tuple[str, ...]]
MAX_STEPS: Final[int]
MAX_FREQUENT_TOOLS: Final[int]
MAX_LIMITED_TOOLS: Final[int]
NO_LIMIT: Final[int]
WINDOW: Final[int]
INFORMATION: Final[tuple[str, ...]]
RUN_WINDOW: Final[int]
CALL_ERROR: Final[int]
CALL_EMPTY: Final[int]
CALL_TRANSIENT: Final[int]
CALL_ACKNOWLEDGED: Final[int]
HISTORY: Final[int]
ROUND_HASHES: Final[int]
RULES: Final[int]
MAX_USER_RULES: Final[int]
USER_REWARD: Final[int]
USER_BIAS: Final[int]
HAS_RULES: Final[int]
HAS_REWARD: Final[int]
HAS_BIAS: Final[int]
HAS_FALLIBLE: Final[int]
NOT_LEARNING: Final[int]
SESSION_OPEN: Final[int]
SESSION_DONE: Final[int]
SESSION_PRIVATE: Final[int]
SESSION_FLAGS: Final[int]
EVENT_USER_MESSAGE: Final[int]
EVENT_COMPACTION: Final[int]

SESSION: Final[np.dtype[np.void]]
POLICY: Final[np.dtype[np.void]]
POOL: Final[np.dtype[np.void]]
INCREMENT: Final[np.dtype[np.void]]
CHOICE: Final[np.dtype[np.void]]
TRIAL: Final[np.dtype[np.void]]
FEATURES: Final[np.dtype[np.void]]
USER_CODE: Final[np.dtype[np.void]]
ROUND_OUTCOME: Final[np.dtype[np.void]]

def mix(value: int) -> int: ...
def address_of(array: NDArray[Any]) -> int: ...

class UserFailure(NamedTuple):
    row: int
    policy: int
    place: int
    status: int
    returned: bytes
    features: bytes
    outcome: bytes

class Batch:
    @property
    def address(self) -> int: ...
    @property
    def sessions(self) -> NDArray[np.void]: ...
    @property
    def policies(self) -> NDArray[np.void]: ...
    @property
    def pools(self) -> NDArray[np.void]: ...
    @property
    def trials(self) -> NDArray[np.void] | None: ...
    @property
    def features_wanted(self) -> bool: ...
    @property
    def user_parts(self) -> int: ...
    @property
    def user_code(self) -> NDArray[np.void] | None: ...
    @property
    def failure(self) -> UserFailure | None: ...
    def set_increments(self, increments: NDArray[np.void]) -> None: ...
    def set_memory(
        self,
        *,
        sessions: NDArray[np.void],
        policies: NDArray[np.void],
        pools: NDArray[np.void],
        key: int,
        user_code: NDArray[np.void] | None = None,
    ) -> None: ...
    def hold_trials(self, trials: NDArray[np.void]) -> None: ...
    def again(self) -> Batch: ...
    def set_input(
        self,
        *,
        slots: NDArray[np.int64],
        call_offsets: NDArray[np.int64] | None = None,
        call_tool: NDArray[np.uint64] | None = None,
        call_signature: NDArray[np.uint64] | None = None,
        call_shape: NDArray[np.uint64] | None = None,
        call_result: NDArray[np.uint64] | None = None,
        call_flags: NDArray[np.uint8] | None = None,
        call_size: NDArray[np.uint32] | None = None,
        text: NDArray[np.uint64] | None = None,
        text_sketch: NDArray[np.uint64] | None = None,
        context_tokens: NDArray[np.int64] | None = None,
        context_limit: NDArray[np.int64] | None = None,
        progress: NDArray[np.float32] | None = None,
        reward: NDArray[np.float32] | None = None,
        success: NDArray[np.int8] | None = None,
        event: NDArray[np.uint8] | None = None,
    ) -> None: ...
    def set_output(
        self,
        *,
        action: NDArray[np.uint8],
        candidates: NDArray[np.uint8],
        rules: NDArray[np.uint32] | None = None,
        tiebreak: NDArray[np.bool_] | None = None,
        reward: NDArray[np.float32] | None = None,
        features: NDArray[np.void] | None = None,
        draws: NDArray[np.float64] | None = None,
        bias: NDArray[np.float64] | None = None,
        advice_age: NDArray[np.uint8] | None = None,
        user_rules: NDArray[np.uint32] | None = None,
        propensity: NDArray[np.float64] | None = None,
    ) -> None: ...
    def with_scratch(
        self,
        features: NDArray[np.void],
        lanes: NDArray[np.void],
        rules: NDArray[np.uint32],
        increments: NDArray[np.void],
        user_rules: NDArray[np.uint32] | None = None,
        user_bias: NDArray[np.float64] | None = None,
    ) -> Batch: ...
