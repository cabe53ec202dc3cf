# cython: language_level=3
"""Loops over the formulas of bandit.pxd."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy
from records cimport ARMS, Batch, Session, features_of, lowest_bit, several
from philox cimport Counter
from bandit cimport Arm
cimport bandit


def tie_break(size_t batch_address, Py_ssize_t start, Py_ssize_t stop):
    """Stage 3 for the sessions [start, stop) of a batch."""
    cdef const Batch* batch = <const Batch*> batch_address
    cdef const Session* session
    cdef uint8_t candidates
    cdef double draws[ARMS]
    cdef double bias[ARMS]
    cdef Py_ssize_t i
    with nogil:
        for i in range(start, stop):
            candidates = batch.candidates[i]
            if batch.tiebreak:
                batch.tiebreak[i] = several(candidates)
            if not several(candidates) and not batch.draws:
                batch.action[i] = <uint8_t> lowest_bit(candidates)
                continue
            session = &batch.sessions[batch.slots[i]]
            batch.action[i] = <uint8_t> bandit.choose(
                session, features_of(batch, i), &batch.policies[session.policy], batch.pools,
                batch.key, candidates, draws, bias,
            )
            if batch.draws:
                memcpy(&batch.draws[i * ARMS], draws, sizeof(draws))
            if batch.bias:
                memcpy(&batch.bias[i * ARMS], bias, sizeof(bias))


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
