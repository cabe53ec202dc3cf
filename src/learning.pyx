# cython: language_level=3
"""Loops over the formulas of learning.pxd."""

from libc.stdint cimport int8_t, int64_t
from records cimport ARMS, SESSION_PRIVATE, Batch, Increment, Session
cimport learning


def learn(size_t batch_address, Py_ssize_t start, Py_ssize_t stop, size_t increments):
    """Stage 5 for the sessions [start, stop) of a batch: rewards in, credits out."""
    cdef const Batch* batch = <const Batch*> batch_address
    cdef Session* session
    cdef Py_ssize_t i
    with nogil:
        for i in range(start, stop):
            session = &batch.sessions[batch.slots[i]]
            learning.learn(
                session, &batch.policies[session.policy], <Increment*> increments
            )


def finish(size_t batch_address, const int8_t[::1] outcomes, size_t increments):
    """Credit what is pending in sessions that close; outcomes as in `Fleet.close`."""
    cdef const Batch* batch = <const Batch*> batch_address
    cdef Session* session
    cdef Py_ssize_t i
    with nogil:
        for i in range(outcomes.shape[0]):
            session = &batch.sessions[batch.slots[i]]
            learning.finish(
                session, &batch.policies[session.policy], <Increment*> increments, outcomes[i]
            )


def apply_increments(size_t batch_address, size_t increments, Py_ssize_t pools):
    """Add what one call learned to its pools, and clear it."""
    cdef const Batch* batch = <const Batch*> batch_address
    cdef Py_ssize_t pool
    with nogil:
        for pool in range(pools):
            learning.apply_increments(
                &batch.pools[pool], <Increment*> increments + pool * ARMS
            )


def close_sessions(size_t batch_address, Py_ssize_t count):
    """Count the first `count` sessions of a batch as closed in their pools, and decay those."""
    cdef const Batch* batch = <const Batch*> batch_address
    cdef const Session* session
    cdef Py_ssize_t i
    with nogil:
        for i in range(count):
            session = &batch.sessions[batch.slots[i]]
            if not session.flags & SESSION_PRIVATE:
                learning.close_sessions(&batch.pools[session.pool], 1)


def nstep_returns(
    const double[:, ::1] rewards, int n, double gamma, const int64_t[::1] lengths,
    double[:, ::1] out,
):
    """Return of each step over its next n rewards; see cellium_fast.kernels.nstep_returns."""
    cdef Py_ssize_t i, t
    cdef int count
    with nogil:
        for i in range(rewards.shape[0]):
            for t in range(lengths[i]):
                count = <int> min(<int64_t> n, lengths[i] - t)
                out[i, t] = learning.weighted_return(&rewards[i, t], count, gamma)


def decay(double[::1] values, double factor, const double[::1] targets, const int64_t[::1] times):
    """Move each value towards its target, `times` times, in place."""
    cdef Py_ssize_t i
    cdef double before
    with nogil:
        for i in range(values.shape[0]):
            for _ in range(times[i]):
                before = values[i]
                values[i] = learning.decayed(before, factor, targets[i])
                if values[i] == before:     # and so it would stay
                    break
