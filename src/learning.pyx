# cython: language_level=3
"""Loops over the formulas of learning.pxd."""

from libc.stdint cimport int64_t
from cellium_fast._records cimport Batch as BatchObject
from cellium_fast._spans cimport stage
from records cimport ARMS, Batch, Increment, Session
cimport learning


cdef int learn_rows(const Batch* batch, Py_ssize_t start, Py_ssize_t stop) noexcept nogil:
    # Rewards in, credits out.
    cdef Session* session
    cdef Py_ssize_t i
    for i in range(start, stop):
        session = &batch.sessions[batch.slots[i]]
        learning.learn(session, &batch.policies[session.policy], batch.increments)
    return 0


learn = stage(learn_rows, "learning.learn")


def apply_increments(list batches not None, Py_ssize_t pools):
    """Add to the pools what the batches, spans of one, learned; the first one's is cleared."""
    cdef const Batch* batch = NULL
    cdef Increment* learned = NULL
    cdef BatchObject columns
    cdef Py_ssize_t pool
    for columns in batches:
        if batch == NULL:
            batch = &columns.batch
            learned = batch.increments
        else:
            add(learned, columns.batch.increments, pools * ARMS)
    for pool in range(pools):
        learning.apply_increments(&batch.pools[pool], learned + pool * ARMS)


cdef void add(Increment* total, const Increment* more, Py_ssize_t count) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(count):
        total[i].alpha += more[i].alpha
        total[i].beta += more[i].beta
        total[i].updates += more[i].updates


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
