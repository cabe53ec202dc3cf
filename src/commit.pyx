# cython: language_level=3
"""What changes a fleet: each function here is one change, all of it or nothing.

Python has checked and prepared what a change needs. A function here first appends the change's
entry to the fleet's journal, if it has one (None otherwise): ``journal.append(entry)``. If that
raises, nothing changed. From then to its end it runs no Python code, so that no interrupt, no
exception set from another thread and nobody else's call comes in between. (A stage written in
Python is the exception, see `_spans.Span`.)

Handles come as a list of (place, handle, decision): the place in the batch of the session that a
`Session` stands for, and a `Decision` for it, which is filled in here.
"""

from cpython.object cimport PyObject_GenericSetAttr
from libc.stdint cimport int8_t, int64_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from records cimport ARMS, SESSION_PRIVATE, Increment, Policy, Pool, Session, UserCode
from cellium_fast._memory cimport SlotTable
from cellium_fast._records cimport Batch as BatchObject
from cellium_fast._step cimport DecisionBase, Handle
cimport learning
cimport step as formulas

from cellium_fast import _feedback, _learning
from cellium_fast._records import address_of
from cellium_fast._spans import run_spans

cdef object apply_increments = _learning.apply_increments
cdef object take_user_message = _feedback.user_message


cdef int write_ahead(journal, entry) except -1:
    if journal is not None:
        journal.append(entry)
    return 0


def open(
    journal, entry, SlotTable memory not None, const int64_t[::1] slots,
    const uint16_t[::1] policies, bint chosen, uint16_t pool, bint private,
    const int64_t[::1] context_limit, const uint32_t[::1] round_limit, list handles not None,
    dict known not None, victims,
):
    """Open one session in each slot, as `Memory.slots_for` gave them, under one policy each.

    If the policies were `chosen` by the fleet, the sessions are trials of them.
    `handles` of them become `known`, by their ids. Before, sessions close that have to go for
    them: `victims` is their batch, slots, outcomes (none is told) and handles; None: nobody has to.
    """
    cdef Session* sessions = memory.base.batch.sessions
    cdef Handle handle
    cdef Py_ssize_t i
    write_ahead(journal, entry)
    if victims is not None:
        batch, closed, outcomes, evicted = victims
        close_batch(memory, batch, closed, outcomes, evicted, known)
        memory.evicted += <uint64_t> len(closed)
        for handle in evicted:
            handle._evicted = True
    with nogil:
        for i in range(slots.shape[0]):
            formulas.open_session(
                &sessions[slots[i]], memory.base.batch.policies, memory.opened + <uint64_t> i,
                policies[i], pool, private, context_limit[i], round_limit[i],
            )
    if chosen:
        memory.begin_trials(slots, policies)
    memory.take(slots.shape[0])
    memory.use(slots)
    show_opening(memory, handles)
    for _, handle, _ in handles:
        memory.watch(formulas.slot_of(handle._id))
        known[handle._id] = handle


def attach(journal, entry, SlotTable memory not None, list handles not None, dict known not None):
    """`handles` of sessions that are open become `known`, by their ids."""
    cdef Handle handle
    write_ahead(journal, entry)
    show_opening(memory, handles)
    for _, handle, _ in handles:
        memory.watch(formulas.slot_of(handle._id))
        known[handle._id] = handle


def close(
    journal, entry, SlotTable memory not None, BatchObject batch not None,
    const int64_t[::1] slots, const int8_t[::1] outcomes, list handles not None,
    dict known not None,
):
    """Close the sessions of a batch: they learn from what is pending, their pools count them.

    `batch` has increments of nothing, before and after. Their handles are no longer `known`.
    """
    write_ahead(journal, entry)
    close_batch(memory, batch, slots, outcomes, handles, known)


cdef int close_batch(
    SlotTable memory, BatchObject batch, const int64_t[::1] slots, const int8_t[::1] outcomes,
    list handles, dict known,
) except -1:
    cdef Session* session
    cdef Handle handle
    cdef Py_ssize_t i
    with nogil:
        for i in range(slots.shape[0]):
            session = &batch.batch.sessions[slots[i]]
            learning.finish(
                session, &batch.batch.policies[session.policy], batch.batch.increments, outcomes[i]
            )
    apply_increments([batch], len(memory.base.pools))
    memory.end_trials(slots, outcomes)
    with nogil:
        for i in range(slots.shape[0]):
            session = &batch.batch.sessions[slots[i]]
            if not session.flags & SESSION_PRIVATE:
                learning.close_sessions(&batch.batch.pools[session.pool], 1)
            formulas.close_session(session)
    memory.give_back(slots)
    for handle in handles:
        known.pop(handle._id, None)
    return 0


def step(
    journal, entry, SlotTable memory not None, BatchObject batch not None, list spans not None,
    const int64_t[::1] slots, set helpers not None, names, dict tools not None,
    dict errors not None, list handles not None, kept,
):
    """Take a batch, cut into spans, through the stages; its pools learn what each span did.

    Each span has increments of its own, of nothing. They are sums of integers, so neither the
    number of spans nor their order shows in the total: the answer does not depend on it.

    Where functions of users may fail, `kept` has room for a record of each session, and the entry
    is appended when none did. Returns None, or the first failure of one: then nothing changed.
    """
    cdef Handle handle
    cdef DecisionBase decision
    cdef Py_ssize_t place
    problem = failure = None
    if kept is None:
        write_ahead(journal, entry)
    else:
        keep(batch, kept)
    try:
        run_spans(spans, helpers)
    except BaseException as error:      # an interrupt while it waited: all were stepped
        problem = error
    if kept is not None:
        failure = first_failure(spans)
        if failure is None:
            try:
                write_ahead(journal, entry)
            except BaseException:
                put_back(batch, spans, kept, len(memory.base.pools))
                raise
        else:
            put_back(batch, spans, kept, len(memory.base.pools))
            if problem is not None:
                raise problem
            return failure
    apply_increments([span.batch for span in spans], len(memory.base.pools))
    memory.use(slots)
    if tools or errors:
        names.add(tools, errors)
    for place, handle, decision in handles:
        formulas.read_outcome(&batch.batch, place, &decision._record.outcome)
        handle._decision = decision
    if problem is not None:
        raise problem
    return None


cdef object first_failure(list spans):
    # Of the row that comes first: the spans have theirs in order.
    for span in spans:
        if span.batch.failure is not None:
            return span.batch.failure
    return None


cdef int keep(BatchObject batch, kept) except -1:
    cdef size_t address = address_of(kept)
    cdef Py_ssize_t count = len(kept)
    with nogil:
        formulas.keep_sessions(&batch.batch, count, <Session*> address)
    return 0


cdef int put_back(BatchObject batch, list spans, kept, Py_ssize_t pools) except -1:
    # As if nothing had been stepped: the records, and nothing learned.
    cdef size_t address = address_of(kept)
    cdef Py_ssize_t count = len(kept)
    cdef BatchObject columns
    with nogil:
        formulas.put_back_sessions(&batch.batch, count, <const Session*> address)
    for span in spans:
        columns = span.batch
        memset(columns.batch.increments, 0, pools * ARMS * sizeof(Increment))
    return 0


def user_message(
    journal, entry, SlotTable memory not None, BatchObject batch not None, Py_ssize_t count,
    list handles not None,
):
    """A real user message reached the first `count` sessions of a batch."""
    write_ahead(journal, entry)
    take_user_message(batch, count)
    show_opening(memory, handles)


def compacted(journal, entry):
    """The context of sessions was compacted: nothing changes, but for the journal."""
    write_ahead(journal, entry)


def set_policy(
    journal, entry, SlotTable memory not None, Py_ssize_t row, record, code, fleet,
    dict policies not None, list settings not None, list handles not None,
):
    """Replace the policy of a row, and its functions by those of the record `code`.

    `handles` are pairs of a handle and its new setting. The functions live as long as `policies`.
    """
    cdef size_t source = address_of(record)
    cdef size_t code_source = address_of(code)
    cdef const Policy* place = &memory.base.batch.policies[row]
    cdef const UserCode* code_place = &memory.base.batch.user_code[row]
    cdef Handle handle
    write_ahead(journal, entry)
    memcpy(<void*> place, <void*> source, sizeof(Policy))
    memcpy(<void*> code_place, <void*> code_source, sizeof(UserCode))
    memory.base.look_for_user_code()
    PyObject_GenericSetAttr(fleet, "_policies", policies)
    PyObject_GenericSetAttr(fleet, "_settings", settings)
    for handle, setting in handles:
        handle._setting = setting


def set_pool(
    journal, entry, SlotTable memory not None, Py_ssize_t row, record, fleet,
    dict learned_from not None,
):
    """Replace what the pool of a row has learned; `learned_from` has where it is from."""
    cdef size_t source = address_of(record)
    cdef Pool* place = &memory.base.batch.pools[row]
    write_ahead(journal, entry)
    memcpy(place, <void*> source, sizeof(Pool))
    PyObject_GenericSetAttr(fleet, "_learned_from", learned_from)


def use_policy(
    journal, entry, SlotTable memory not None, const int64_t[::1] slots, uint16_t row,
    list handles not None,
):
    """Put the sessions in these slots under the policy of a row; `handles` as in `set_policy`."""
    cdef Handle handle
    cdef Py_ssize_t i
    write_ahead(journal, entry)
    for i in range(slots.shape[0]):
        memory.base.batch.sessions[slots[i]].policy = row
    memory.leave_trials(slots, row)
    for handle, setting in handles:
        handle._setting = setting


cdef int show_opening(SlotTable memory, list handles) except -1:
    # Handles show decision 0.
    cdef Handle handle
    cdef DecisionBase decision
    cdef const Session* session
    for _, handle, decision in handles:
        session = &memory.base.batch.sessions[formulas.slot_of(handle._id)]
        formulas.describe_opening(session, &decision._record.outcome)
        handle._decision = decision
    return 0
