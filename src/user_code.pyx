# cython: language_level=3
"""Loops over the formulas of user_code.pxd: nothing to do where users have no functions."""

from libc.math cimport isnan
from cellium_fast._spans cimport stage
from records cimport (
    HAS_BIAS, HAS_REWARD, HAS_RULES,
    Batch, Round, Session,
    features_of, read_round, user_bias_of, user_rules_of,
)
from user_code cimport Caller
cimport user_code


cdef inline Caller caller_of(const Batch* batch, int policy) noexcept nogil:
    cdef Caller caller
    caller.code = &batch.user_code[policy]
    caller.failure = batch.user_failure
    caller.policy = policy
    return caller


cdef int reward_rows(const Batch* batch, Py_ssize_t start, Py_ssize_t stop) noexcept nogil:
    cdef int failure = 0
    cdef int code
    cdef Session* session
    cdef Caller caller
    cdef Round round
    cdef double reward
    cdef Py_ssize_t i
    if not batch.user_parts & HAS_REWARD:
        return 0
    for i in range(start, stop):
        session = &batch.sessions[batch.slots[i]]
        caller = caller_of(batch, session.policy)
        if not caller.code.parts & HAS_REWARD:
            continue
        round = read_round(batch, i)
        code = user_code.call_reward(
            &caller, i, session, &batch.policies[session.policy], &round, features_of(batch, i),
            &reward,
        )
        failure = failure if failure else code
        if batch.reward and not isnan(reward):
            batch.reward[i] = <float> reward
    return failure


cdef int rules_rows(const Batch* batch, Py_ssize_t start, Py_ssize_t stop) noexcept nogil:
    # Sessions under the same policy mostly lie together: each rule goes through all of them.
    cdef int failure = 0
    cdef int policy, place, code
    cdef Caller caller
    cdef Py_ssize_t last, i
    if batch.user_rules:
        for i in range(start, stop):    # a chunk's rows may go round its memory
            user_rules_of(batch, i)[0] = 0
    if not batch.user_parts & HAS_RULES:
        return 0
    while start < stop:
        policy = batch.sessions[batch.slots[start]].policy
        last = start + 1
        while last < stop and batch.sessions[batch.slots[last]].policy == policy:
            last += 1
        caller = caller_of(batch, policy)
        for place in range(caller.code.rule_count):
            code = user_code.call_rule(
                &caller, place, batch.features, batch.features_mask, batch.user_rules,
                batch.user_rules_mask, start, last,
            )
            failure = failure if failure else code
        start = last
    return failure


cdef int bias_rows(const Batch* batch, Py_ssize_t start, Py_ssize_t stop) noexcept nogil:
    cdef int failure = 0
    cdef int policy, code
    cdef Caller caller
    cdef Py_ssize_t i
    if not batch.user_parts & HAS_BIAS:
        return 0
    for i in range(start, stop):
        policy = batch.sessions[batch.slots[i]].policy
        caller = caller_of(batch, policy)
        code = user_code.call_biases(
            &caller, i, &batch.policies[policy], batch.candidates[i], features_of(batch, i),
            user_bias_of(batch, i),
        )
        failure = failure if failure else code
    return failure


reward = stage(reward_rows, "user_code.reward")
rules = stage(rules_rows, "user_code.rules")
bias = stage(bias_rows, "user_code.bias")
