# One session through all stages, and the life of a session record: the formulas of the stages
# composed, none of its own.

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.math cimport NAN, isnan
from libc.string cimport memcpy, memset
from records cimport (
    ARMS, CONTINUE, HAS_BIAS, HAS_REWARD, HAS_RULES, SESSION_OPEN, SESSION_PRIVATE,
    Batch, Features, Increment, Policy, Round, Session, UserCode, UserFailure,
    several,
)
cimport bandit
cimport choice
cimport features
cimport feedback
cimport learning
cimport rules
cimport user_code
from user_code cimport Caller

# Why an id names no open session.
cdef enum:
    ID_OK
    ID_UNKNOWN
    ID_CLOSED
    ID_REPEATED


cdef inline int64_t id_of(const Session* session, int64_t slot) noexcept nogil:
    # A slot is used again, an id is not: it carries how often the slot was closed before.
    return <int64_t>session.generation << 32 | slot


cdef inline int64_t next_id(const Session* session, int64_t slot) noexcept nogil:
    # Of the session to be opened in this slot, once the one that may still be open is closed.
    return id_of(session, slot) + (<int64_t>1 << 32 if session.flags & SESSION_OPEN else 0)


cdef inline int64_t slot_of(int64_t id) noexcept nogil:
    return id & 0xFFFFFFFFu


cdef inline int check_id(const Session* sessions, int64_t slots, int64_t id) noexcept nogil:
    cdef int64_t slot = slot_of(id)
    cdef int64_t generation = id >> 32
    if id < 0 or slot >= slots or generation > sessions[slot].generation:
        return ID_UNKNOWN
    if generation < sessions[slot].generation:
        return ID_CLOSED
    return ID_OK if sessions[slot].flags & SESSION_OPEN else ID_UNKNOWN


cdef inline void open_session(
    Session* session, const Policy* policies, uint64_t uid, uint16_t policy, uint16_t pool,
    bint private, int64_t context_limit, uint32_t round_limit,
) noexcept nogil:
    cdef uint32_t generation = session.generation
    cdef int i
    memset(session, 0, sizeof(Session))
    session.generation = generation
    session.uid = uid
    session.policy = policy
    session.pool = pool
    session.flags = SESSION_OPEN | (SESSION_PRIVATE if private else 0)
    session.context_limit = context_limit
    session.context_tokens = -1
    session.round_limit = round_limit
    session.history_count = 1       # the opening 0.0
    session.compress_wait = 255     # never
    for i in range(ARMS):
        session.alpha[i] = <float>policies[policy].prior.alpha
        session.beta[i] = <float>policies[policy].prior.beta
    session.pending = 0xFFFF        # NOT_LEARNING everywhere
    # Decision 0: continue, the only candidate.
    feedback.execute(session, &policies[policy], CONTINUE, 1 << CONTINUE, 0, 0)


cdef inline void close_session(Session* session) noexcept nogil:
    session.flags = 0
    session.generation += 1


# What one step of one session decided.
ctypedef struct Outcome:
    Features features
    double draws[ARMS]
    double bias[ARMS]
    double propensity
    uint32_t rules
    uint32_t user_rules
    float reward
    uint8_t action
    uint8_t candidates
    uint8_t tiebreak
    uint8_t advice_age


cdef inline void describe_opening(const Session* session, Outcome* out) noexcept nogil:
    # Decision 0 of a session: continue, before its first round.
    cdef int k
    memset(out, 0, sizeof(Outcome))
    features.describe_context(session, &out.features)
    out.action = CONTINUE
    out.candidates = 1 << CONTINUE
    out.reward = NAN
    out.propensity = NAN
    for k in range(ARMS):
        out.draws[k] = NAN
        out.bias[k] = NAN


cdef inline void read_outcome(const Batch* batch, Py_ssize_t i, Outcome* out) noexcept nogil:
    # The i-th decision of a batch that was stepped, with all columns.
    out.features = batch.features[i]
    memcpy(out.draws, &batch.draws[i * ARMS], ARMS * sizeof(double))
    memcpy(out.bias, &batch.bias[i * ARMS], ARMS * sizeof(double))
    out.propensity = batch.propensity[i]
    out.rules = batch.rules[i]
    out.user_rules = batch.user_rules[i]
    out.reward = batch.reward[i]
    out.action = batch.action[i]
    out.candidates = batch.candidates[i]
    out.tiebreak = batch.tiebreak[i]
    out.advice_age = batch.advice_age[i]


cdef inline int step(
    const Batch* batch, int64_t slot, const Round* round, Increment* increments, Outcome* out,
    UserFailure* failure,
) noexcept nogil:
    # 0, or the code of the first function of the user's that failed.
    cdef Session* session = &batch.sessions[slot]
    cdef const Policy* policy = &batch.policies[session.policy]
    cdef Caller caller
    cdef int parts = 0
    cdef int codes[3]
    cdef int place, code
    cdef double given[ARMS]
    cdef double told
    if batch.user_parts:
        caller.code = &batch.user_code[session.policy]
        caller.failure = failure
        caller.policy = session.policy
        parts = caller.code.parts
    memset(codes, 0, sizeof(codes))
    out.reward = <float>feedback.evaluate(session, policy, round)
    features.extract(session, policy, round, &out.features)
    if parts & HAS_REWARD:
        codes[0] = user_code.call_reward(
            &caller, 0, session, policy, round, &out.features, &told
        )
        if not isnan(told):
            out.reward = <float>told
    learning.learn(session, policy, increments)
    choice.note_reward(batch, slot)
    out.user_rules = 0
    if parts & HAS_RULES:
        for place in range(caller.code.rule_count):
            code = user_code.call_rule(
                &caller, place, &out.features, 0, &out.user_rules, 0, 0, 1
            )
            codes[1] = codes[1] if codes[1] else code
    out.candidates = rules.evaluate(&out.features, policy, out.user_rules, &out.rules)
    out.tiebreak = several(out.candidates)
    if parts & HAS_BIAS:
        codes[2] = user_code.call_biases(
            &caller, 0, policy, out.candidates, &out.features, given
        )
    out.action = <uint8_t>bandit.choose(
        session, &out.features, policy, batch.pools, batch.key, out.candidates,
        given if parts & HAS_BIAS else NULL, out.draws, out.bias,
    )
    out.propensity = bandit.propensity_of(
        session, policy, batch.pools, out.candidates, out.bias, out.action
    )
    out.advice_age = feedback.execute(
        session, policy, out.action, out.candidates, out.rules, out.user_rules
    )
    return codes[0] if codes[0] else codes[1] if codes[1] else codes[2]


cdef inline void keep_sessions(
    const Batch* batch, Py_ssize_t count, Session* kept
) noexcept nogil:
    # Copies of the records of a batch, should a function of a user's fail.
    cdef Py_ssize_t i
    for i in range(count):
        kept[i] = batch.sessions[batch.slots[i]]


cdef inline void put_back_session(
    const Batch* batch, int64_t slot, const Session* before
) noexcept nogil:
    # As if it had not been stepped since.
    choice.take_back(batch, slot, before)
    batch.sessions[slot] = before[0]


cdef inline void put_back_sessions(
    const Batch* batch, Py_ssize_t count, const Session* kept
) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(count):
        put_back_session(batch, batch.slots[i], &kept[i])
