# cython: language_level=3
"""Loops over the formulas of features.pxd."""

from records cimport Batch, Round, Session, features_of, read_round
cimport features


def extract(size_t batch_address, Py_ssize_t start, Py_ssize_t stop):
    """Stage 1 for the sessions [start, stop) of a batch."""
    cdef const Batch* batch = <const Batch*> batch_address
    cdef Session* session
    cdef Round round
    cdef Py_ssize_t i
    with nogil:
        for i in range(start, stop):
            session = &batch.sessions[batch.slots[i]]
            round = read_round(batch, i)
            features.extract(
                session, &batch.policies[session.policy], &round, batch.features_wanted,
                features_of(batch, i),
            )


def ema(
    const double[::1] values, const double[::1] state, const double[::1] alpha, double[::1] out
):
    """alpha * value + (1 - alpha) * state for each row."""
    cdef Py_ssize_t i
    with nogil:
        for i in range(values.shape[0]):
            out[i] = features.ema(values[i], state[i], alpha[i])
