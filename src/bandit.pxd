# Stage 3, bandit tie-break: Thompson sampling with a heuristic bias among the candidates.
# Thompson, "On the likelihood that one unknown probability exceeds another", Biometrika 25, 1933.
# Formulas: docs/semantics.md, "Bandit".

from libc.math cimport NAN, isnan
from libc.stdint cimport uint8_t, uint64_t
from records cimport (
    ARMS, COMPRESS, CONTINUE, FIRST, PURPOSE_ARM, REDIRECT, RETRY, SESSION_PRIVATE, THOMPSON,
    Features, Policy, Pool, Session,
    lowest_bit, several,
)
from philox cimport Counter, sample_beta
from propensity cimport win_probabilities


# One arm as the bandit sees it.
ctypedef struct Arm:
    double alpha
    double beta
    uint64_t updates


cdef inline Arm arm_of(const Session* session, const Pool* pools, int action) noexcept nogil:
    cdef Arm arm
    if session.flags & SESSION_PRIVATE:
        arm.alpha = session.alpha[action]
        arm.beta = session.beta[action]
        arm.updates = session.updates[action]
    else:
        arm.alpha = pools[session.pool].alpha[action]
        arm.beta = pools[session.pool].beta[action]
        arm.updates = pools[session.pool].updates[action]
    return arm


cdef inline double warm_bias(const Features* f, const Policy* p, int action) noexcept nogil:
    cdef double bias = 0.0
    if action == REDIRECT:
        if f.repetition_score > 0.7:
            bias = p.bias_redirect_repetition * f.repetition_score
        if f.stuck_iterations >= 5:
            bias = max(bias, p.bias_redirect_stuck)
    elif action == RETRY:
        if 1 <= f.stuck_iterations < 5:
            bias = p.bias_retry_stuck
        if 0 < f.progress_trend < 0.3:
            bias = max(bias, p.bias_retry_slow)
    elif action == COMPRESS:
        if f.context_ratio > 0.6:
            bias = p.bias_compress_saturation
        if f.stuck_iterations >= 2:
            bias = max(bias, p.bias_compress_stuck)
    elif action == CONTINUE:
        if f.progress_score > 0.5:
            bias = p.bias_continue_progress
        if f.stuck_iterations == 0:
            bias = max(bias, p.bias_continue_unstuck)
    return bias


cdef inline double bias_of(
    const Features* f, const Policy* p, int action, uint64_t updates, const double* given
) noexcept nogil:
    # What users give stands as it is; NaN, or no `given`, is nothing.
    cdef double bias
    if given != NULL and not isnan(given[action]):
        return given[action]
    bias = warm_bias(f, p, action)
    return bias * p.cold_start_factor if updates < p.cold_start_updates else bias


cdef inline int tie_order(int place) noexcept nogil:
    # Equal scores go to the milder action.
    if place == 2:
        return COMPRESS
    if place == 3:
        return REDIRECT
    return place


cdef inline int best_arm(
    uint8_t candidates, const double* draws, const double* bias
) noexcept nogil:
    cdef int best = -1
    cdef int place, action
    for place in range(ARMS):
        action = tie_order(place)
        if candidates >> action & 1 and (
            best < 0 or draws[action] + bias[action] > draws[best] + bias[best]
        ):
            best = action
    return best


cdef inline void none_compared(double* draws, double* bias) noexcept nogil:
    cdef int action
    for action in range(ARMS):
        draws[action] = NAN
        bias[action] = NAN


cdef inline bint draws_for(const Policy* policy) noexcept nogil:
    return policy.tie_break == THOMPSON


cdef inline int choose_without_draws(
    const Session* session, const Policy* policy, const Pool* pools, const Features* features,
    uint8_t candidates, const double* given, double* draws, double* bias,
) noexcept nogil:
    # The action if nothing is drawn for it; `draws` and `bias` get a number for every candidate
    # that was compared, and NaN for every other.
    cdef Arm arm
    cdef int action
    none_compared(draws, bias)
    if not several(candidates) or policy.tie_break == FIRST:
        return lowest_bit(candidates)
    for action in range(ARMS):
        if candidates >> action & 1:
            arm = arm_of(session, pools, action)
            bias[action] = bias_of(features, policy, action, arm.updates, given)
            draws[action] = arm.alpha / (arm.alpha + arm.beta)
    return best_arm(candidates, draws, bias)


cdef inline int choose(
    const Session* session, const Features* features, const Policy* policy, const Pool* pools,
    uint64_t key, uint8_t candidates, const double* given, double* draws, double* bias,
) noexcept nogil:
    # The action; `draws` and `bias` as of `choose_without_draws`.
    cdef Arm arm
    cdef Counter counter
    cdef int action
    if not several(candidates) or not draws_for(policy):
        return choose_without_draws(
            session, policy, pools, features, candidates, given, draws, bias
        )
    none_compared(draws, bias)
    counter.uid = session.uid
    counter.round = session.round
    for action in range(ARMS):
        if candidates >> action & 1:
            arm = arm_of(session, pools, action)
            bias[action] = bias_of(features, policy, action, arm.updates, given)
            counter.purpose = PURPOSE_ARM + action
            draws[action] = sample_beta(arm.alpha, arm.beta, key, counter)
    return best_arm(candidates, draws, bias)


cdef inline double propensity_of(
    const Session* session, const Policy* policy, const Pool* pools, uint8_t candidates,
    const double* bias, int chosen,
) noexcept nogil:
    # The probability of the action that was chosen; NaN unless the policy tells it.
    cdef Arm arm
    cdef double alpha[ARMS]
    cdef double beta[ARMS]
    cdef double probability[ARMS]
    cdef int action
    if not policy.propensities:
        return NAN
    if not several(candidates) or not draws_for(policy):
        return 1.0
    for action in range(ARMS):
        if candidates >> action & 1:
            arm = arm_of(session, pools, action)
            alpha[action] = arm.alpha
            beta[action] = arm.beta
    win_probabilities(alpha, beta, bias, candidates, probability)
    return probability[chosen]
