# cython: language_level=3
"""Loops over the formulas of step.pxd: opening, checking and closing sessions, one scalar step."""

from collections import namedtuple

from libc.math cimport NAN
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from records cimport ARMS, CONTINUE, Batch, Features, Increment, Round, Session
from step cimport Outcome
cimport features
cimport learning
cimport step

from cellium_fast._records import FEATURES as FEATURES_DTYPE

ID_OK = step.ID_OK
ID_UNKNOWN = step.ID_UNKNOWN
ID_CLOSED = step.ID_CLOSED
ID_REPEATED = step.ID_REPEATED

FeatureRecord = namedtuple("FeatureRecord", FEATURES_DTYPE.names, module=__name__)


def open_sessions(
    size_t batch_address, const int64_t[::1] slots, uint64_t first_uid, uint16_t policy,
    uint16_t pool, bint private, const int64_t[::1] context_limit,
    const uint32_t[::1] round_limit, int64_t[::1] ids,
):
    """Open one session in each slot; `ids` gets their ids."""
    cdef const Batch* batch = <const Batch*> batch_address
    cdef Session* session
    cdef Py_ssize_t i
    with nogil:
        for i in range(slots.shape[0]):
            session = &batch.sessions[slots[i]]
            step.open_session(
                session, batch.policies, first_uid + <uint64_t> i, policy, pool, private,
                context_limit[i], round_limit[i],
            )
            ids[i] = step.id_of(session, slots[i])


def find_slots(
    size_t batch_address, int64_t used, const int64_t[::1] ids, int64_t[::1] slots,
    uint8_t[::1] seen,
):
    """Fill `slots` with the rows of `ids`; returns (problem, i), of the first id with one.

    The problem is ID_OK if every id names an open session, none twice. `seen` has a bit a slot,
    all zero before and after.
    """
    cdef const Batch* batch = <const Batch*> batch_address
    cdef int problem = step.ID_OK
    cdef Py_ssize_t i = 0, where, repeated
    cdef bint rising = True
    with nogil:
        for i in range(ids.shape[0]):
            problem = step.check_id(batch.sessions, used, ids[i])
            if problem != step.ID_OK:
                break
            slots[i] = step.slot_of(ids[i])
            rising &= i == 0 or slots[i] > slots[i - 1]
        where = i if problem != step.ID_OK else ids.shape[0]
        repeated = where if rising else first_repeated(slots, where, seen)
    if repeated < where:
        return step.ID_REPEATED, repeated
    return problem, where


cdef Py_ssize_t first_repeated(
    const int64_t[::1] slots, Py_ssize_t count, uint8_t[::1] seen
) noexcept nogil:
    # Place of the first slot that stands before too; `count` if there is none.
    cdef Py_ssize_t i, found = count
    cdef uint8_t bit
    for i in range(count):
        bit = <uint8_t> (1 << (slots[i] & 7))
        if seen[slots[i] >> 3] & bit:
            found = i
            break
        seen[slots[i] >> 3] |= bit
    for i in range(found):
        seen[slots[i] >> 3] = 0
    return found


def check_id(size_t batch_address, int64_t used, int64_t id):
    """What `find_slots` says of one id."""
    return step.check_id((<const Batch*> batch_address).sessions, used, id)


def slot_of(int64_t id):
    """Row of the session that has, or had, this id."""
    return step.slot_of(id)


def close_sessions(size_t batch_address, Py_ssize_t count):
    """Free the first `count` sessions of a batch."""
    cdef const Batch* batch = <const Batch*> batch_address
    cdef Py_ssize_t i
    with nogil:
        for i in range(count):
            step.close_session(&batch.sessions[batch.slots[i]])


cdef class DecisionRecord:
    """One decision, packed; `cellium_fast.Decision` gives its fields to users."""

    cdef Outcome outcome

    @property
    def action(self):
        return self.outcome.action

    @property
    def candidates(self):
        return self.outcome.candidates

    @property
    def rules(self):
        return self.outcome.rules

    @property
    def tiebreak(self):
        return self.outcome.tiebreak != 0

    @property
    def reward(self):
        return self.outcome.reward

    @property
    def context_ratio(self):
        return self.outcome.features.context_ratio

    @property
    def draws(self):
        return [self.outcome.draws[k] for k in range(ARMS)]

    @property
    def bias(self):
        return [self.outcome.bias[k] for k in range(ARMS)]

    @property
    def features(self):
        """Every feature by name; the names and their types come from the record's dtype."""
        cdef bytes packed = (<char*> &self.outcome.features)[:sizeof(Features)]
        return FeatureRecord._make(_feature_row(packed))


def _feature_row(bytes packed):
    import numpy as np

    row = np.frombuffer(packed, FEATURES_DTYPE)[0].item()
    return [tuple(part.tolist()) if isinstance(part, np.ndarray) else part for part in row]


def step_one(size_t batch_address, int64_t slot, size_t round_address, size_t increments):
    """One session through all five stages; its pool learns at once."""
    cdef const Batch* batch = <const Batch*> batch_address
    cdef Session* session = &batch.sessions[slot]
    cdef DecisionRecord record = DecisionRecord.__new__(DecisionRecord)
    step.step(
        batch, slot, <const Round*> round_address, <Increment*> increments, &record.outcome
    )
    learning.apply_increments(
        &batch.pools[session.pool], <Increment*> increments + session.pool * ARMS
    )
    return record


def opening(size_t batch_address, int64_t slot):
    """Decision 0 of a session: continue, before its first round."""
    cdef const Batch* batch = <const Batch*> batch_address
    cdef DecisionRecord record = DecisionRecord.__new__(DecisionRecord)
    cdef int k
    memset(&record.outcome, 0, sizeof(Outcome))
    features.describe_context(&batch.sessions[slot], &record.outcome.features)
    record.outcome.action = CONTINUE
    record.outcome.candidates = 1 << CONTINUE
    record.outcome.reward = NAN
    for k in range(ARMS):
        record.outcome.draws[k] = NAN
        record.outcome.bias[k] = NAN
    return record


def record_of(size_t batch_address, Py_ssize_t i):
    """The i-th decision of a batch that was stepped."""
    cdef const Batch* batch = <const Batch*> batch_address
    cdef DecisionRecord record = DecisionRecord.__new__(DecisionRecord)
    record.outcome.features = batch.features[i]
    memcpy(record.outcome.draws, &batch.draws[i * ARMS], ARMS * sizeof(double))
    memcpy(record.outcome.bias, &batch.bias[i * ARMS], ARMS * sizeof(double))
    record.outcome.rules = batch.rules[i]
    record.outcome.reward = batch.reward[i]
    record.outcome.action = batch.action[i]
    record.outcome.candidates = batch.candidates[i]
    record.outcome.tiebreak = batch.tiebreak[i]
    return record
