# Stage 5, learning: n-step returns of the pending decisions, the Beta update, decay.
# n-step returns: Sutton and Barto, "Reinforcement Learning", 2nd ed., section 7.1.
# Formulas: docs/semantics.md, "Learning".

from libc.stdint cimport int64_t, uint64_t
from records cimport (
    ARMS, MAX_STEPS, NOT_LEARNING, SESSION_PRIVATE,
    Increment, Policy, Pool, Prior, Session,
    nearest,
)
from feedback cimport kept_reward, pending, push_reward, rewards_kept


cdef inline double weighted_return(
    const double* rewards, int count, double gamma
) noexcept nogil:
    # sum(gamma**k * rewards[k]) / sum(gamma**k), oldest reward first; count > 0
    cdef double total = 0.0, weights = 0.0, weight = 1.0
    cdef int k
    for k in range(count):
        total += weight * rewards[k]
        weights += weight
        weight *= gamma
    return total / weights


cdef inline double recent_return(
    const Session* session, int count, double gamma
) noexcept nogil:
    # Return over the last `count` rewards.
    cdef double rewards[MAX_STEPS]
    cdef int k
    for k in range(count):
        rewards[k] = kept_reward(session, count - 1 - k)
    return weighted_return(rewards, count, gamma)


cdef inline double decayed(double value, double factor, double target) noexcept nogil:
    # A factor of 1 leaves every bit.
    return value if factor == 1.0 else target + factor * (value - target)


cdef inline void decay_pool(Pool* pool) noexcept nogil:
    cdef int i
    for i in range(ARMS):
        pool.alpha[i] = decayed(pool.alpha[i], pool.prior.decay, pool.prior.target_alpha)
        pool.beta[i] = decayed(pool.beta[i], pool.prior.decay, pool.prior.target_beta)


cdef inline void decay_private(Session* session, const Prior* prior) noexcept nogil:
    cdef int i
    for i in range(ARMS):
        session.alpha[i] = <float>decayed(session.alpha[i], prior.decay, prior.target_alpha)
        session.beta[i] = <float>decayed(session.beta[i], prior.decay, prior.target_beta)


# What a return adds to an arm.
ctypedef struct Gain:
    double alpha
    double beta


cdef inline Gain gain_of(const Policy* policy, double returned) noexcept nogil:
    cdef Gain gain
    gain.alpha = returned
    gain.beta = 1.0 - returned
    if policy.threshold_update:
        # Rewards are kept to 2**-31: what comes out as one half is one half.
        if returned > 0.5 + 1e-8:
            gain.beta = 0.0
        else:
            gain.alpha = 0.0
    return gain


cdef inline void learn_privately(
    Session* session, const Prior* prior, int action, Gain gain
) noexcept nogil:
    session.alpha[action] += <float>gain.alpha
    session.beta[action] += <float>gain.beta
    if session.updates[action] < 0xFF:
        session.updates[action] += 1
    if prior.decay_every:
        session.updates_since_decay += 1
        if session.updates_since_decay >= prior.decay_every:
            session.updates_since_decay = 0
            decay_private(session, prior)


cdef inline void learn_in_pool(Increment* increment, Gain gain) noexcept nogil:
    increment.alpha += <int64_t>nearest(gain.alpha * 4294967296.0)
    increment.beta += <int64_t>nearest(gain.beta * 4294967296.0)
    increment.updates += 1


cdef inline void credit(
    Session* session, const Policy* policy, Increment* increments, int age, int rewards,
    double gamma,
) noexcept nogil:
    # Give the return over the last `rewards` rewards to the decision taken `age` places before
    # the newest one.
    cdef int action = pending(session, age)
    cdef Gain gain
    if action == NOT_LEARNING:
        return
    gain = gain_of(policy, recent_return(session, rewards, gamma))
    if session.flags & SESSION_PRIVATE:
        learn_privately(session, &policy.prior, action, gain)
    else:
        learn_in_pool(&increments[session.pool * ARMS + action], gain)


cdef inline void learn(
    Session* session, const Policy* policy, Increment* increments
) noexcept nogil:
    # The newest reward is in: credit the decision whose return it completes.
    cdef int n = policy.n_step
    cdef int kept = rewards_kept(session)
    if policy.backward_credit:
        credit(session, policy, increments, 0, min(n, kept), 1.0)
    elif kept >= n:
        credit(session, policy, increments, n - 1, n, policy.gamma)


cdef inline void finish(
    Session* session, const Policy* policy, Increment* increments, int outcome
) noexcept nogil:
    # Credit what is pending with the rewards that exist and the outcome (1, 0; -1 = not told).
    cdef int known = 0 if outcome < 0 else 1
    cdef int kept = min(<int>MAX_STEPS, rewards_kept(session) + known)
    cdef int n = policy.n_step
    cdef int age, rewards
    if known:
        push_reward(session, outcome)
    if policy.backward_credit:
        if known:
            credit(session, policy, increments, 0, min(n, kept), 1.0)
        return
    for age in range(n - 1, -1, -1):
        # Decision `age` has seen `age` rewards, and the outcome as one more.
        rewards = age + known
        if rewards and rewards <= kept:
            credit(session, policy, increments, age, rewards, policy.gamma)


cdef inline uint64_t add_saturating(uint64_t count, uint64_t more) noexcept nogil:
    return count + min(more, <uint64_t>0xFFFFFFFFFFFFFFFF - count)


cdef inline void apply_increments(Pool* pool, Increment* increments) noexcept nogil:
    # Add what one call learned, and clear it.
    cdef int i
    for i in range(ARMS):
        pool.alpha[i] += increments[i].alpha / 4294967296.0
        pool.beta[i] += increments[i].beta / 4294967296.0
        pool.updates[i] = add_saturating(pool.updates[i], <uint64_t>increments[i].updates)
        increments[i].alpha = 0
        increments[i].beta = 0
        increments[i].updates = 0


cdef inline void close_sessions(Pool* pool, uint64_t count) noexcept nogil:
    cdef uint64_t before = pool.closed
    pool.closed = add_saturating(before, count)
    if pool.prior.decay_every:
        for _ in range(pool.closed // pool.prior.decay_every - before // pool.prior.decay_every):
            decay_pool(pool)
