# cython: language_level=3
"""Loops over the formulas of bandit.pxd."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from records cimport ARMS, Batch, Session, several
from philox cimport Counter
from bandit cimport Arm
cimport bandit


def tie_break(size_t batch_address, Py_ssize_t start, Py_ssize_t stop):
    """Stage 3 for the sessions [start, stop) of a batch."""
    cdef const Batch* batch = <const Batch*> batch_address
    cdef const Session* session
    cdef uint8_t candidates
    cdef Py_ssize_t i
    with nogil:
        for i in range(start, stop):
            session = &batch.sessions[batch.slots[i]]
            candidates = batch.candidates[i]
            batch.tiebreak[i] = several(candidates)
            batch.action[i] = <uint8_t> bandit.choose(
                session, &batch.features[i], &batch.policies[session.policy], batch.pools,
                batch.key, candidates, &batch.draws[i * ARMS], &batch.bias[i * ARMS],
            )


def thompson(
    const double[:, ::1] alpha, const double[:, ::1] beta, const uint8_t[::1] candidates,
    const double[:, ::1] bias, uint64_t key, const uint64_t[::1] ids, const uint32_t[::1] rounds,
    uint8_t[::1] out,
):
    """The winning arm of each row."""
    cdef Py_ssize_t i
    cdef int k
    cdef Arm arms[ARMS]
    cdef double draws[ARMS]
    cdef Counter counter
    with nogil:
        for i in range(alpha.shape[0]):
            counter.uid = ids[i]
            counter.round = rounds[i]
            counter.purpose = 0
            for k in range(ARMS):
                arms[k].alpha = alpha[i, k]
                arms[k].beta = beta[i, k]
            out[i] = <uint8_t> bandit.thompson(
                candidates[i], arms, key, counter, &bias[i, 0], draws
            )
