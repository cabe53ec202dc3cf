# cython: language_level=3
"""Loops over the formulas of bandit.pxd. The draws of many ties are made at once."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy
from cellium_fast._spans cimport stage
from records cimport (
    ARMS, PURPOSE_ARM, Batch, Policy, Session, features_of, lowest_bit, several,
    user_bias_of,
)
from philox cimport Counter
from beta_lanes cimport sample_beta_many
from bandit cimport Arm
cimport bandit

cdef enum:
    MOST = 128      # ties in work at a time


# Ties in work, and side by side the draws that they need.
ctypedef struct Ties:
    int count
    Py_ssize_t row[MOST]
    uint8_t candidates[MOST]
    double bias[MOST][ARMS]
    double draws[MOST][ARMS]
    Py_ssize_t draw_count
    double alpha[MOST * ARMS]
    double beta[MOST * ARMS]
    Counter counter[MOST * ARMS]


cdef inline void need_draw(
    Ties* ties, Arm arm, uint64_t uid, uint32_t round, int action
) noexcept nogil:
    cdef Py_ssize_t k = ties.draw_count
    ties.alpha[k] = arm.alpha
    ties.beta[k] = arm.beta
    ties.counter[k].uid = uid
    ties.counter[k].round = round
    ties.counter[k].purpose = PURPOSE_ARM + action
    ties.draw_count += 1


cdef void draw(Ties* ties, uint64_t key) noexcept nogil:
    # Make the draws, in place of their alphas, and hand them to their ties.
    cdef Py_ssize_t k = 0
    cdef int i, action
    sample_beta_many(ties.alpha, ties.beta, ties.counter, key, ties.draw_count, ties.alpha)
    for i in range(ties.count):
        for action in range(ARMS):
            if ties.candidates[i] >> action & 1:
                ties.draws[i][action] = ties.alpha[k]
                k += 1


cdef void break_ties(const Batch* batch, Ties* ties) noexcept nogil:
    # Decide the ties in work, and have none.
    cdef Py_ssize_t row
    cdef int i
    draw(ties, batch.key)
    for i in range(ties.count):
        row = ties.row[i]
        batch.action[row] = <uint8_t> bandit.best_arm(
            ties.candidates[i], ties.draws[i], ties.bias[i]
        )
        write_comparison(batch, row, ties.draws[i], ties.bias[i])
        write_propensity(batch, row, ties.bias[i])
    ties.count = 0
    ties.draw_count = 0


cdef inline void write_comparison(
    const Batch* batch, Py_ssize_t row, const double* draws, const double* bias
) noexcept nogil:
    # What a decision compared, if the caller wants it.
    if batch.draws:
        memcpy(&batch.draws[row * ARMS], draws, ARMS * sizeof(double))
    if batch.bias:
        memcpy(&batch.bias[row * ARMS], bias, ARMS * sizeof(double))


cdef inline void write_propensity(
    const Batch* batch, Py_ssize_t row, const double* bias
) noexcept nogil:
    # How probable the action of a row was, if the caller wants it.
    cdef const Session* session
    if batch.propensity:
        session = &batch.sessions[batch.slots[row]]
        batch.propensity[row] = bandit.propensity_of(
            session, &batch.policies[session.policy], batch.pools, batch.candidates[row], bias,
            batch.action[row],
        )


cdef inline void add_tie(
    const Batch* batch, const Session* session, Py_ssize_t row, Ties* ties
) noexcept nogil:
    cdef int i = ties.count
    cdef uint8_t candidates = batch.candidates[row]
    cdef const Policy* policy = &batch.policies[session.policy]
    cdef Arm arm
    cdef int action
    ties.row[i] = row
    ties.candidates[i] = candidates
    bandit.none_compared(ties.draws[i], ties.bias[i])
    for action in range(ARMS):
        if candidates >> action & 1:
            arm = bandit.arm_of(session, batch.pools, action)
            ties.bias[i][action] = bandit.bias_of(
                features_of(batch, row), policy, action, arm.updates, user_bias_of(batch, row)
            )
            need_draw(ties, arm, session.uid, session.round, action)
    ties.count += 1


cdef int tie_break_rows(const Batch* batch, Py_ssize_t start, Py_ssize_t stop) noexcept nogil:
    cdef const Session* session
    cdef uint8_t candidates
    cdef Ties ties
    cdef double draws[ARMS]
    cdef double bias[ARMS]
    cdef Py_ssize_t i
    ties.count = 0
    ties.draw_count = 0
    for i in range(start, stop):
        candidates = batch.candidates[i]
        if batch.tiebreak:
            batch.tiebreak[i] = several(candidates)
        if not several(candidates) and not batch.draws and not batch.bias:
            batch.action[i] = <uint8_t> lowest_bit(candidates)
            write_propensity(batch, i, NULL)
            continue
        session = &batch.sessions[batch.slots[i]]
        if several(candidates) and bandit.draws_for(&batch.policies[session.policy]):
            add_tie(batch, session, i, &ties)
            if ties.count == MOST:
                break_ties(batch, &ties)
            continue
        batch.action[i] = <uint8_t> bandit.choose_without_draws(
            session, &batch.policies[session.policy], batch.pools, features_of(batch, i),
            candidates, user_bias_of(batch, i), draws, bias,
        )
        write_comparison(batch, i, draws, bias)
        write_propensity(batch, i, bias)
    break_ties(batch, &ties)
    return 0


tie_break = stage(tie_break_rows, "bandit.tie_break")


def thompson(
    const double[:, ::1] alpha, const double[:, ::1] beta, const uint8_t[::1] candidates,
    const double[:, ::1] bias, uint64_t key, const uint64_t[::1] ids, const uint32_t[::1] rounds,
    uint8_t[::1] out,
):
    """The winning arm of each row."""
    cdef Py_ssize_t i
    cdef int k, action
    cdef Arm arm
    cdef Ties ties
    ties.count = 0
    ties.draw_count = 0
    with nogil:
        for i in range(alpha.shape[0]):
            ties.row[ties.count] = i
            ties.candidates[ties.count] = candidates[i]
            ties.count += 1
            for action in range(ARMS):
                if candidates[i] >> action & 1:
                    arm.alpha = alpha[i, action]
                    arm.beta = beta[i, action]
                    need_draw(&ties, arm, ids[i], rounds[i], action)
            if ties.count < MOST and i + 1 < alpha.shape[0]:
                continue
            draw(&ties, key)
            for k in range(ties.count):
                out[ties.row[k]] = <uint8_t> bandit.best_arm(
                    ties.candidates[k], ties.draws[k], &bias[ties.row[k], 0]
                )
            ties.count = 0
            ties.draw_count = 0
