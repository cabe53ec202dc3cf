# Functions of users, called in the place where a built-in formula has its say.
# Semantics: docs/semantics.md, "User code".

from libc.math cimport NAN, isnan
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from records cimport (
    ARMS, FIRST, RETURNS_FLAG, RETURNS_WHOLE, USER_BIAS, USER_REWARD,
    Features, Policy, Round, RoundOutcome, Session, UserCode, UserFailure,
    several,
)
cimport feedback

ctypedef int (*OfFeatures)(
    void* returned, void** error, const Features* features
) noexcept nogil
ctypedef int (*OfOutcome)(
    void* returned, void** error, const Features* features, const RoundOutcome* outcome
) noexcept nogil

# What a function returns, as its kind says.
ctypedef union Returned:
    uint8_t flag
    int64_t whole
    double number
    uint64_t bytes


# Whose functions are called, and where it is noted if one fails.
ctypedef struct Caller:
    const UserCode* code
    UserFailure* failure        # NULL = nobody asks
    int policy


# One call: of which row of the batch, with what.
ctypedef struct Call:
    Py_ssize_t row
    const Features* features
    const RoundOutcome* outcome     # of a reward; else NULL
    int place
    int status                      # 0 = it returned something
    Returned returned


cdef inline int note_failure(const Caller* caller, const Call* call) noexcept nogil:
    # Of several failures the first row's first one is kept, however rows are cut into chunks.
    # Returns the code of the failure, which is not 0.
    cdef UserFailure* kept = caller.failure
    if kept != NULL and (kept.row < 0 or call.row < kept.row):
        kept.row = call.row
        kept.policy = caller.policy
        kept.place = call.place
        kept.status = call.status
        kept.returned = call.returned.bytes
        kept.features = call.features[0]
        if call.outcome != NULL:
            kept.outcome = call.outcome[0]
    return 1 + call.place


cdef inline void make_call(size_t address, Call* call) noexcept nogil:
    cdef void* error = NULL
    call.returned.bytes = <uint64_t>-1      # what none may return, should it not come to that
    if call.outcome == NULL:
        call.status = (<OfFeatures>address)(&call.returned, &error, call.features)
    else:
        call.status = (<OfOutcome>address)(&call.returned, &error, call.features, call.outcome)


cdef inline int call_rule(
    const Caller* caller, int place, const Features* features, size_t features_mask,
    uint32_t* fired, size_t fired_mask, Py_ssize_t start, Py_ssize_t stop,
) noexcept nogil:
    # One rule of a policy, for rows in a row: its bit in `fired`. 0, or the code of a failure.
    # Row i of an array is at i & its mask.
    cdef size_t address = caller.code.address[place]
    cdef bint flag = caller.code.kind[place] == RETURNS_FLAG
    cdef uint64_t value
    cdef int failure = 0
    cdef Call call
    call.outcome = NULL
    call.place = place
    for call.row in range(start, stop):
        call.features = &features[<size_t>call.row & features_mask]
        make_call(address, &call)
        value = call.returned.flag if flag else call.returned.bytes
        if call.status == 0 and value <= 1:
            fired[<size_t>call.row & fired_mask] |= <uint32_t>value << place
        else:
            failure = note_failure(caller, &call)
    return failure


cdef inline int call_for_number(
    const Caller* caller, Call* call, double lowest, double* number
) noexcept nogil:
    # A number in [lowest, 1], or else NaN and the code of the failure.
    cdef int kind = caller.code.kind[call.place]
    make_call(caller.code.address[call.place], call)
    if kind == RETURNS_FLAG:
        number[0] = call.returned.flag
    elif kind == RETURNS_WHOLE:
        number[0] = <double>call.returned.whole
    else:
        number[0] = call.returned.number
    if call.status == 0 and lowest <= number[0] <= 1.0:
        return 0
    number[0] = NAN
    return note_failure(caller, call)


cdef inline int call_reward(
    const Caller* caller, Py_ssize_t row, Session* session, const Policy* policy,
    const Round* round, const Features* features, double* reward,
) noexcept nogil:
    # What a round is worth to the user, unless it tells its reward itself; NaN = nothing said.
    cdef RoundOutcome outcome
    cdef Call call
    cdef int failure
    reward[0] = NAN
    if not isnan(round.reward):
        return 0
    outcome.reward = feedback.reward(session, policy, round)
    outcome.success = feedback.succeeded(round)
    outcome.told = round.success
    outcome.calls = round.calls
    outcome.decision_stuck = session.decision_stuck
    call.row = row
    call.features = features
    call.outcome = &outcome
    call.place = USER_REWARD
    failure = call_for_number(caller, &call, 0.0, reward)
    if failure == 0:
        feedback.keep_reward(session, reward[0])
    return failure


cdef inline int call_biases(
    const Caller* caller, Py_ssize_t row, const Policy* policy, uint8_t candidates,
    const Features* features, double* bias,
) noexcept nogil:
    # What is added to the draws of candidates that are compared; NaN = what the policy says.
    cdef bint compared = several(candidates) and policy.tie_break != FIRST
    cdef int failure = 0
    cdef int action, code
    cdef Call call
    call.row = row
    call.features = features
    call.outcome = NULL
    for action in range(ARMS):
        bias[action] = NAN
        call.place = USER_BIAS + action
        if compared and candidates >> action & 1 and caller.code.address[call.place]:
            code = call_for_number(caller, &call, -1.0, &bias[action])
            failure = failure if failure else code
    return failure
