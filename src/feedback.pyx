# cython: language_level=3
"""Loops over the formulas of feedback.pxd."""

from libc.stdint cimport uint8_t
from cellium_fast._records cimport Batch as BatchObject
from cellium_fast._spans cimport stage
from records cimport Batch, Round, Session, prefetch, read_round, rules_of, user_rules_at
cimport feedback

cdef enum:
    AHEAD = 8       # records fetched before they are needed


cdef int evaluate_rows(const Batch* batch, Py_ssize_t start, Py_ssize_t stop) noexcept nogil:
    # Open the round and reward it.
    cdef Session* session
    cdef Round round
    cdef float reward
    cdef Py_ssize_t i
    for i in range(start, stop):
        if i + AHEAD < stop:
            prefetch(&batch.sessions[batch.slots[i + AHEAD]], sizeof(Session))
        session = &batch.sessions[batch.slots[i]]
        round = read_round(batch, i)
        reward = <float> feedback.evaluate(session, &batch.policies[session.policy], &round)
        if batch.reward:
            batch.reward[i] = reward
    return 0


cdef int execute_rows(const Batch* batch, Py_ssize_t start, Py_ssize_t stop) noexcept nogil:
    # Leave the decisions in the records.
    cdef Session* session
    cdef uint8_t age
    cdef Py_ssize_t i
    for i in range(start, stop):
        session = &batch.sessions[batch.slots[i]]
        age = feedback.execute(
            session, &batch.policies[session.policy], batch.action[i], batch.candidates[i],
            rules_of(batch, i)[0], user_rules_at(batch, i),
        )
        if batch.advice_age:
            batch.advice_age[i] = age
    return 0


evaluate = stage(evaluate_rows, "feedback.evaluate")
execute = stage(execute_rows, "feedback.execute")


def user_message(BatchObject columns not None, Py_ssize_t count):
    """A real user message reached the first `count` sessions of a batch."""
    cdef const Batch* batch = &columns.batch
    cdef Py_ssize_t i
    with nogil:
        for i in range(count):
            feedback.user_message(&batch.sessions[batch.slots[i]])
