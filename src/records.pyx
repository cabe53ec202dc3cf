# cython: language_level=3
"""The packed records as NumPy dtypes, and the table of addresses that kernels read.

The dtypes are taken from the C structs of records.pxd by viewing one record as an array, so they
cannot drift from what the kernels read.
"""

from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer,
)
from libc.stdint cimport int8_t, int64_t, uint8_t, uint32_t, uint64_t

from collections import namedtuple

import numpy as np

cimport records

ACTIONS = ("continue", "retry", "redirect", "compress", "terminate")
MAX_STEPS = records.MAX_STEPS
MAX_FREQUENT_TOOLS = records.MAX_FREQUENT_TOOLS
MAX_LIMITED_TOOLS = records.MAX_LIMITED_TOOLS
NO_LIMIT = records.NO_LIMIT
WINDOW = records.WINDOW
RUN_WINDOW = records.RUN_WINDOW
CALL_ERROR = records.CALL_ERROR
CALL_EMPTY = records.CALL_EMPTY
CALL_TRANSIENT = records.CALL_TRANSIENT
CALL_ACKNOWLEDGED = records.CALL_ACKNOWLEDGED
HISTORY = records.HISTORY
ROUND_HASHES = records.ROUND_HASHES
RULES = records.RULES
USER_REWARD = records.USER_REWARD
USER_BIAS = records.USER_BIAS
HAS_RULES = records.HAS_RULES
HAS_REWARD = records.HAS_REWARD
HAS_BIAS = records.HAS_BIAS
HAS_FALLIBLE = records.HAS_FALLIBLE
MAX_USER_RULES = records.MAX_USER_RULES
NOT_LEARNING = records.NOT_LEARNING
SESSION_OPEN = records.SESSION_OPEN
SESSION_DONE = records.SESSION_DONE
SESSION_PRIVATE = records.SESSION_PRIVATE
SESSION_FLAGS = (
    records.SESSION_OPEN | records.SESSION_DONE | records.SESSION_PRIVATE
    | records.SESSION_OUTPUTS | records.SESSION_HEEDING
)
EVENT_USER_MESSAGE = records.EVENT_USER_MESSAGE
EVENT_COMPACTION = records.EVENT_COMPACTION
INFORMATION = ("not judged", "nothing", "little", "acknowledgement", "news")
TIE_BREAKS = ("thompson", "greedy", "first")


cdef dtype_with_flags(dtype, flags):
    # C has one type for small numbers and for flags; users see the flags as booleans.
    formats = [np.dtype(bool) if name in flags else dtype.fields[name][0] for name in dtype.names]
    offsets = [dtype.fields[name][1] for name in dtype.names]
    return np.dtype({
        "names": dtype.names, "formats": formats, "offsets": offsets, "itemsize": dtype.itemsize,
    })


cdef make_dtypes():
    cdef records.Session session
    cdef records.Policy policy
    cdef records.Pool pool
    cdef records.Increment increment
    cdef records.Choice choice
    cdef records.Trial trial
    cdef records.Features features
    cdef records.UserCode user_code
    cdef records.RoundOutcome round_outcome
    return (
        np.asarray(<records.Session[:1]> &session).dtype,
        np.asarray(<records.Policy[:1]> &policy).dtype,
        np.asarray(<records.Pool[:1]> &pool).dtype,
        np.asarray(<records.Increment[:1]> &increment).dtype,
        np.asarray(<records.Choice[:1]> &choice).dtype,
        np.asarray(<records.Trial[:1]> &trial).dtype,
        dtype_with_flags(
            np.asarray(<records.Features[:1]> &features).dtype,
            {
                "slight", "compress_ready", "compression_failed", "context_known", "plateau",
                "making_progress",
            },
        ),
        np.asarray(<records.UserCode[:1]> &user_code).dtype,
        np.asarray(<records.RoundOutcome[:1]> &round_outcome).dtype,
    )


(
    SESSION, POLICY, POOL, INCREMENT, CHOICE, TRIAL, FEATURES, USER_CODE, ROUND_OUTCOME,
) = make_dtypes()


UserFailure = namedtuple(
    "UserFailure", ("row", "policy", "place", "status", "returned", "features", "outcome"),
    module=__name__,
)


cdef object failure_object(const records.UserFailure* failure):
    return UserFailure(
        failure.row, failure.policy, failure.place, failure.status,
        (<char*> &failure.returned)[:sizeof(uint64_t)],
        (<char*> &failure.features)[:sizeof(records.Features)],
        (<char*> &failure.outcome)[:sizeof(records.RoundOutcome)],
    )


def mix(uint64_t value):
    """Mix a 64-bit hash down to the 32 bits a record keeps; 0 only from 0."""
    return records.mix(value)


def address_of(array):
    """Where the bytes of a C-contiguous array begin."""
    cdef Py_buffer view
    PyObject_GetBuffer(array, &view, PyBUF_SIMPLE)
    address = <size_t> view.buf
    PyBuffer_Release(&view)
    return address


cdef class Batch:
    """Addresses of a fleet's memory and of one step's columns, for the kernels.

    Every argument is a C-contiguous array of the dtype its column has in records.pxd, or None
    for a column that is not given. The arrays are kept alive; nothing is checked here.
    """

    def __cinit__(self):
        self.kept = []
        self.user_failure.row = -1
        self.address = <size_t> &self.batch

    @property
    def features_wanted(self):
        """Whether features are a column of their own."""
        return self.batch.features_wanted != 0

    cdef size_t where(self, array) except? 0:
        if array is None:
            return 0
        self.kept.append(array)
        return address_of(array)

    @property
    def user_parts(self):
        """Which functions of users any policy has, as HAS_... bits."""
        return self.batch.user_parts

    def set_memory(self, *, sessions, policies, pools, uint64_t key, user_code=None):
        self.sessions = sessions
        self.policies = policies
        self.pools = pools
        self.user_code = user_code
        self.policy_count = len(policies)
        self.batch.user_code = <const records.UserCode*> self.where(user_code)
        self.look_for_user_code()
        self.batch.sessions = <records.Session*> self.where(sessions)
        self.batch.policies = <const records.Policy*> self.where(policies)
        self.batch.pools = <records.Pool*> self.where(pools)
        self.batch.key = key

    cdef void look_for_user_code(self) noexcept:
        # After a change of the policies' functions.
        cdef Py_ssize_t i
        self.batch.user_parts = 0
        if self.batch.user_code:
            for i in range(self.policy_count):
                self.batch.user_parts |= self.batch.user_code[i].parts

    def hold_trials(self, trials):
        """Keep in this array, one a session, what is known of policies that were chosen."""
        cdef size_t address = address_of(trials)
        self.trials = trials
        self.batch.trials = <records.Trial*> address

    def again(self):
        """Another batch of the same memory, without columns; this one has none either."""
        cdef Batch other = Batch.__new__(Batch)
        other.batch = self.batch
        other.sessions = self.sessions
        other.policies = self.policies
        other.pools = self.pools
        other.user_code = self.user_code
        other.trials = self.trials
        return other

    def set_input(
        self, *, slots, call_offsets=None, call_tool=None, call_signature=None, call_shape=None,
        call_result=None, call_flags=None, call_size=None, text=None, text_sketch=None,
        context_tokens=None, context_limit=None, progress=None, reward=None, success=None,
        event=None,
    ):
        self.batch.slots = <const int64_t*> self.where(slots)
        self.batch.call_offsets = <const int64_t*> self.where(call_offsets)
        self.batch.call_tool = <const uint64_t*> self.where(call_tool)
        self.batch.call_signature = <const uint64_t*> self.where(call_signature)
        self.batch.call_shape = <const uint64_t*> self.where(call_shape)
        self.batch.call_result = <const uint64_t*> self.where(call_result)
        self.batch.call_flags = <const uint8_t*> self.where(call_flags)
        self.batch.call_size = <const uint32_t*> self.where(call_size)
        self.batch.text = <const uint64_t*> self.where(text)
        self.batch.text_sketch = <const uint64_t*> self.where(text_sketch)
        self.batch.context_tokens = <const int64_t*> self.where(context_tokens)
        self.batch.context_limit = <const int64_t*> self.where(context_limit)
        self.batch.progress = <const float*> self.where(progress)
        self.batch.reward_given = <const float*> self.where(reward)
        self.batch.success = <const int8_t*> self.where(success)
        self.batch.event = <const uint8_t*> self.where(event)

    def set_output(
        self, *, action, candidates, rules=None, tiebreak=None, reward=None, features=None,
        draws=None, bias=None, advice_age=None, user_rules=None, propensity=None,
    ):
        self.batch.action = <uint8_t*> self.where(action)
        self.batch.candidates = <uint8_t*> self.where(candidates)
        self.batch.rules = <uint32_t*> self.where(rules)
        self.batch.rules_mask = <size_t> -1
        self.batch.user_rules = <uint32_t*> self.where(user_rules)
        self.batch.user_rules_mask = <size_t> -1
        self.batch.advice_age = <uint8_t*> self.where(advice_age)
        self.batch.tiebreak = <uint8_t*> self.where(tiebreak)
        self.batch.reward = <float*> self.where(reward)
        self.batch.features = <records.Features*> self.where(features)
        self.batch.features_mask = <size_t> -1
        self.batch.feature_lanes = NULL
        self.batch.features_wanted = features is not None
        self.batch.draws = <double*> self.where(draws)
        self.batch.bias = <double*> self.where(bias)
        self.batch.propensity = <double*> self.where(propensity)

    def set_increments(self, increments):
        """Learn into these increments, (pools, 5), which are of nothing before a call."""
        self.batch.increments = <records.Increment*> self.where(increments)

    @property
    def failure(self):
        """What failed of users' functions, as a `UserFailure`; None if nothing did."""
        return None if self.user_failure.row < 0 else failure_object(&self.user_failure)

    def with_scratch(self, features, lanes, rules, increments, user_rules=None, user_bias=None):
        """This batch, with memory of its own for what one chunk hands on from stage to stage.

        That is features, a power of 2 rows and as many lanes, and the rules that fired, as many
        rows; and increments, for what it learns. Each thread needs its own. What the caller wants
        as a column goes there instead. Policies with rules or biases of users need rows for these
        too.
        """
        cdef Batch batch = Batch.__new__(Batch)
        batch.batch = self.batch
        batch.kept.append(self)
        batch.set_increments(increments)
        if not self.batch.features_wanted:
            batch.batch.features = <records.Features*> batch.where(features)
            batch.batch.features_mask = <size_t> (len(features) - 1)
            batch.batch.feature_lanes = <void*> batch.where(lanes)
        if not self.batch.rules:
            batch.batch.rules = <uint32_t*> batch.where(rules)
            batch.batch.rules_mask = <size_t> (len(rules) - 1)
        if user_rules is not None and not self.batch.user_rules:
            batch.batch.user_rules = <uint32_t*> batch.where(user_rules)
            batch.batch.user_rules_mask = <size_t> (len(user_rules) - 1)
        if user_bias is not None:
            batch.batch.user_bias = <double*> batch.where(user_bias)
            batch.batch.user_bias_mask = <size_t> (len(user_bias) - 1)
        batch.user_failure.row = -1
        batch.batch.user_failure = &batch.user_failure
        return batch
