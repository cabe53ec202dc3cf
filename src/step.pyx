# cython: language_level=3
"""Loops over the formulas of step.pxd: finding sessions and their ids; and the scalar path.

The scalar path takes one `Round` of one session to a `Decision` in one call, `Handle.step`.
"""

from collections import namedtuple

import numpy as np
from cpython.object cimport PyObject, PyTypeObject
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcpy, memset
from records cimport (
    ARMS, HAS_FALLIBLE, SESSION_DONE,
    Batch, Features, Increment, Round, Session, UserFailure,
    prefetch,
)
from cellium_fast._records cimport failure_object
cimport learning
cimport step

from cellium_fast._ingest import Packer
from cellium_fast._records import FEATURES as FEATURES_DTYPE
from cellium_fast._records import address_of

cdef enum:
    AHEAD = 16      # records fetched before they are looked at

ID_OK = step.ID_OK
ID_UNKNOWN = step.ID_UNKNOWN
ID_CLOSED = step.ID_CLOSED
ID_REPEATED = step.ID_REPEATED

cdef tuple NO_ARGUMENTS = ()
cdef dict NO_NAMES = {}


cdef make_outcome_dtype():
    cdef Outcome outcome
    return np.asarray(<Outcome[:1]> &outcome).dtype


OUTCOME = make_outcome_dtype()

FeatureRecord = namedtuple("FeatureRecord", FEATURES_DTYPE.names, module=__name__)


def ids_of(size_t batch_address, const int64_t[::1] slots, bint opening, int64_t[::1] ids):
    """Fill `ids` with the ids of the open sessions in these slots.

    With `opening`, of those to be opened there next, once the ones that are still open are closed.
    """
    cdef const Batch* batch = <const Batch*> batch_address
    cdef const Session* session
    cdef Py_ssize_t i
    with nogil:
        for i in range(slots.shape[0]):
            session = &batch.sessions[slots[i]]
            ids[i] = (
                step.next_id(session, slots[i]) if opening else step.id_of(session, slots[i])
            )


def find_slots(
    size_t batch_address, int64_t used, const int64_t[::1] ids, int64_t[::1] slots,
):
    """Fill `slots` with the rows of `ids`; returns (problem, i, rising).

    The problem is ID_OK, with i the number of ids, if every id names an open session; else what is
    wrong with ids[i], the first one. `rising` says that each slot up to there is above the one
    before it, so that none stands twice.
    """
    cdef const Batch* batch = <const Batch*> batch_address
    cdef int problem = step.ID_OK
    cdef Py_ssize_t i = 0, where
    cdef int64_t id
    cdef bint rising = True
    with nogil:
        for i in range(ids.shape[0]):
            if i + AHEAD < ids.shape[0]:
                prefetch(&batch.sessions[step.slot_of(ids[i + AHEAD])].generation, 1)
            id = ids[i]     # once: what was checked is what is used
            problem = step.check_id(batch.sessions, used, id)
            if problem != step.ID_OK:
                break
            slots[i] = step.slot_of(id)
            rising &= i == 0 or slots[i] > slots[i - 1]
        where = i if problem != step.ID_OK else ids.shape[0]
    return problem, where, rising


def first_repeated(const int64_t[::1] slots, Py_ssize_t count, uint8_t[::1] seen):
    """Place of the first slot that stands before it too; `count` if none of so many does.

    `seen` has a bit a slot, all zero.
    """
    cdef Py_ssize_t i = 0
    cdef uint8_t bit
    cdef bint found = False
    with nogil:
        for i in range(count):
            bit = <uint8_t> (1 << (slots[i] & 7))
            found = seen[slots[i] >> 3] & bit
            if found:
                break
            seen[slots[i] >> 3] |= bit
    return i if found else count


def check_id(size_t batch_address, int64_t used, int64_t id):
    """What `find_slots` says of one id."""
    return step.check_id((<const Batch*> batch_address).sessions, used, id)


def slot_of(int64_t id):
    """Row of the session that has, or had, this id."""
    return step.slot_of(id)


cdef class DecisionRecord:
    """One decision, packed; `cellium_fast.Decision` gives its fields to users."""

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
    def user_rules(self):
        return self.outcome.user_rules

    @property
    def propensity(self):
        return self.outcome.propensity

    @property
    def tiebreak(self):
        return self.outcome.tiebreak != 0

    @property
    def reward(self):
        return self.outcome.reward

    @property
    def advice_age(self):
        return self.outcome.advice_age

    @property
    def context_ratio(self):
        return self.outcome.features.context_ratio

    @property
    def draws(self):
        return [self.outcome.draws[k] for k in range(ARMS)]

    @property
    def bias(self):
        return [self.outcome.bias[k] for k in range(ARMS)]

    def packed(self):
        """All of it as bytes: a record of the dtype OUTCOME."""
        return (<char*> &self.outcome)[:sizeof(Outcome)]

    @property
    def features(self):
        """Every feature by name; the names and their types come from the record's dtype."""
        cdef bytes packed = (<char*> &self.outcome.features)[:sizeof(Features)]
        return feature_record(packed)


def feature_record(bytes packed):
    """The features in the bytes of a record of the dtype FEATURES_DTYPE, as Python's numbers."""
    row = np.frombuffer(packed, FEATURES_DTYPE)[0].item()
    return FeatureRecord._make(
        tuple(part.tolist()) if isinstance(part, np.ndarray) else part for part in row
    )


def record_of(size_t batch_address, Py_ssize_t i):
    """The i-th decision of a batch that was stepped, with all columns."""
    cdef DecisionRecord record = DecisionRecord.__new__(DecisionRecord)
    step.read_outcome(<const Batch*> batch_address, i, &record.outcome)
    return record


def unpacked(const uint8_t[::1] packed):
    """The decision whose `packed` this is; its fields must make sense, and are not checked."""
    cdef DecisionRecord record = DecisionRecord.__new__(DecisionRecord)
    if packed.shape[0] != sizeof(Outcome):
        raise ValueError(f"wanted {sizeof(Outcome)} bytes, got {packed.shape[0]}")
    memcpy(&record.outcome, &packed[0], sizeof(Outcome))
    return record


cdef class DecisionBase:
    """What a `cellium_fast.Decision` holds: the packed decision, and what puts it into words."""

    @property
    def setting(self):
        """Policy, names and tools behind this decision, for those who put it into words."""
        return self._setting


cdef class Stepper:
    """Steps the sessions of a fleet one at a time."""

    def set_fleet(self, *, memory, names, lock, increments, decision):
        """What it works on: the fleet's own things, and its class of decisions."""
        cdef size_t address = address_of(increments)
        self.memory = memory
        self.names = names
        self.turn = lock
        self.acquire = lock.acquire
        self.release = lock.release
        self.kept = increments
        self.increments = <Increment*> address
        self.decision = decision

    cdef const Batch* batch_of(self, int64_t id, bint evicted) except NULL:
        # Where the sessions are, if this one is open. No Python code may run between this and its
        # use: the sessions move when there are more.
        cdef const Batch* batch = &self.memory.base.batch
        if step.check_id(batch.sessions, self.memory.used, id) != step.ID_OK:
            self.memory.slot_of(id, evicted)    # says what is wrong
        return batch

    cdef DecisionBase new_decision(self, setting):
        # One that is still to be taken: the class of decisions, without the time of a call.
        cdef PyTypeObject* kind = <PyTypeObject*> self.decision
        cdef DecisionBase decision = kind.tp_new(self.decision, <PyObject*> NO_ARGUMENTS, NULL)
        decision._record = DecisionRecord.__new__(DecisionRecord)
        decision._setting = setting
        return decision


cdef object used_of(unused, calls):
    # Those of the session's unused tools that were called, by the session's own names: code of a
    # caller's text class must not run under the lock.
    called = {call.tool for call in calls}
    return frozenset([tool for tool in unused if tool in called])


cdef object error_of(policy, failure):
    # What to raise of a failed call; a fleet without functions of users needs none of it.
    from cellium_fast.user_calls import error_of
    return error_of(policy, failure)


cdef class Handle:
    """What a `cellium_fast.Session` does at every round."""

    def __cinit__(self, fleet, int64_t session_id, *others):
        self.stepper = fleet._stepper
        self._id = session_id

    def step(self, round):
        """One round in, one decision out.

        Raises
        ------
        SessionError
            The session is closed.
        InputError
            The round holds a value of a wrong kind; the message names it. Nothing was stepped.
        UserCodeError
            A function of the policy's raised, or returned what it may not. Nothing was stepped.

        Notes
        -----
        Whatever ends the call, Ctrl-C or the journal's disk among it, the round was taken in as a
        whole or not at all; ``decision.features.round`` says which.
        """
        cdef Stepper stepper = self.stepper
        # Packing runs methods of a user's values: not under the lock, and with a packer that no
        # one else has meanwhile.
        packer = stepper.packer
        stepper.packer = None
        if packer is None:
            packer = Packer()
        calls = packer.pack(round, stepper.names.forgotten)
        used = used_of(self._unused, calls) if self._unused else None
        stepper.acquire()
        try:
            decision = self.take(packer, used)
        finally:
            stepper.release()
        if stepper.journal is not None and stepper.turn.then is not None:
            stepper.turn.follow()
        return decision

    def _replay(self, packed, used):
        """Take a round out of a journal, packed as a `Packer` has it, and its tools first used."""
        cdef Stepper stepper = self.stepper
        packer = stepper.packer
        self.take(packed, used)
        stepper.packer = packer

    cdef DecisionBase take(self, packer, used):
        # With the lock: one session through all five stages; its pool learns at once.
        cdef Stepper stepper = self.stepper
        cdef int64_t slot = step.slot_of(self._id)
        cdef size_t address = packer.address
        cdef const Batch* batch
        cdef Session* session
        cdef Session before
        cdef Increment* learned
        cdef UserFailure failure
        cdef bint fallible
        cdef dict tools = NO_NAMES
        cdef dict errors = NO_NAMES
        failure.row = -1
        unused, setting = self._unused, self._setting
        stepper.batch_of(self._id, self._evicted)
        if used:
            unused, setting = self._after_using(used)
        if packer.has_names:
            tools, errors = stepper.names.missing(packer.new_tools, packer.new_errors)
        cdef DecisionBase decision = stepper.new_decision(setting)
        batch = stepper.batch_of(self._id, self._evicted)
        session = &batch.sessions[slot]
        learned = stepper.increments + session.pool * ARMS
        fallible = batch.user_parts and batch.user_code[session.policy].parts & HAS_FALLIBLE
        # From here on no Python code runs, but for functions of users: all of it happens, or
        # nothing. A step that may fail comes before its entry in the journal.
        if stepper.journal is not None and not fallible:
            stepper.journal.append_round(self._id, address, tools, errors, used)
        if fallible:
            before = session[0]
        step.step(
            batch, slot, <const Round*> address, stepper.increments, &decision._record.outcome,
            &failure,
        )
        if fallible:
            problem = None
            if failure.row < 0 and stepper.journal is not None:
                try:
                    stepper.journal.append_round(self._id, address, tools, errors, used)
                except BaseException as error:
                    problem = error
            if failure.row >= 0 or problem is not None:
                step.put_back_session(batch, slot, &before)
                memset(learned, 0, ARMS * sizeof(Increment))
                raise problem or error_of(setting.policy, failure_object(&failure))
        stepper.memory.use_one(slot)
        learning.apply_increments(&batch.pools[session.pool], learned)
        if tools or errors:
            stepper.names.add(tools, errors)
        if packer.has_names:
            packer.clear_names()
        stepper.packer = packer
        self._unused = unused
        self._setting = setting
        self._decision = decision
        return decision

    @property
    def done(self):
        """Whether terminate was decided (also by `Fleet.step`), and no user message came since."""
        cdef Stepper stepper = self.stepper
        stepper.acquire()
        try:
            batch = stepper.batch_of(self._id, self._evicted)
            return (batch.sessions[step.slot_of(self._id)].flags & SESSION_DONE) != 0
        finally:
            stepper.release()
