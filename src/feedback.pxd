# Stage 4, execute and feedback: what a decision leaves behind, and what the round that followed
# it is worth. Formulas: docs/semantics.md, "Feedback".

from libc.math cimport isnan
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t
from libc.string cimport memset
from records cimport (
    ARMS, CALL_ERROR, COMPRESS, CONTINUE, EVENT_USER_MESSAGE, MAX_STEPS, NOT_LEARNING, REDIRECT,
    REWARD_UNITS, RULES, SESSION_DONE, SESSION_HEEDING, SESSION_OUTPUTS,
    TERMINATE,
    Policy, Round, Session,
    clip, lowest_bit, nearest, several, shift_words,
)
from features cimport context_ratio, decimal
from rules cimport MILD_RULES
cimport window


cdef inline void clear_evidence(Session* session) noexcept nogil:
    session.no_information = 0
    session.little_information = 0
    session.error_repeats = 0
    session.transient_rounds = 0
    session.idle_rounds = 0
    session.blank_rounds = 0
    session.text_repeats = 0
    session.unheeded_redirects = 0
    session.round_repeats = 0
    session.round_periods = 0
    memset(session.round_hashes, 0, sizeof(session.round_hashes))
    session.sketch = 0
    session.advice = 0
    session.advice_age = 0


cdef inline void user_message(Session* session) noexcept nogil:
    # A real user message opens a new task: evidence starts anew, totals and learning stay.
    window.clear(session)
    session.stuck = 0
    session.trend = 0.0
    session.progress = 0.0
    session.history_count = 1
    session.output = 0
    session.output_run = 0
    clear_evidence(session)
    session.flags &= ~<uint8_t>(SESSION_DONE | SESSION_HEEDING | SESSION_OUTPUTS)


cdef inline void begin_round(
    Session* session, const Policy* policy, const Round* round
) noexcept nogil:
    if round.event == EVENT_USER_MESSAGE:
        user_message(session)
    if session.round < 0xFFFFFFFFu:
        session.round += 1
    if round.context_limit >= 0:
        session.context_limit = round.context_limit
    if round.context_tokens >= policy.zero_tokens_unknown:
        session.context_tokens = round.context_tokens


cdef inline bint succeeded(const Round* round) noexcept nogil:
    if round.success >= 0:
        return round.success != 0
    return round.calls == 0 or not round.flags or not round.flags[round.calls - 1] & CALL_ERROR


cdef inline double success_reward(const Session* session, const Policy* policy) noexcept nogil:
    cdef double ratio = context_ratio(session)
    cdef double reward = 1.0
    if session.round_limit:
        reward -= policy.round_cost * session.round / session.round_limit
    if ratio > policy.saturation_from:
        reward -= (
            policy.saturation_cost * (ratio - policy.saturation_from)
            / (1.0 - policy.saturation_from)
        )
    return reward


cdef inline double reward(
    const Session* session, const Policy* policy, const Round* round
) noexcept nogil:
    # In [0, 1]; of this round, as the outcome of the session's newest decision.
    if not isnan(round.reward):
        return decimal(round.reward)
    if succeeded(round):
        return clip(success_reward(session, policy), 0.0, 1.0)
    return policy.failure_reward * (1.0 - min(session.decision_stuck / 5.0, 1.0))


cdef inline void keep_reward(Session* session, double reward) noexcept nogil:
    # In the place of the newest one.
    session.reward[0] = <uint32_t>nearest(reward * REWARD_UNITS)


cdef inline void push_reward(Session* session, double reward) noexcept nogil:
    shift_words(session.reward, MAX_STEPS)
    keep_reward(session, reward)


cdef inline int rewards_kept(const Session* session) noexcept nogil:
    return min(<uint32_t>MAX_STEPS, session.round)


cdef inline double kept_reward(const Session* session, int age) noexcept nogil:
    return session.reward[age] / REWARD_UNITS


cdef inline double evaluate(
    Session* session, const Policy* policy, const Round* round
) noexcept nogil:
    # Open the round and keep its reward, which is returned.
    cdef double value
    begin_round(session, policy, round)
    value = reward(session, policy, round)
    push_reward(session, value)
    return value


cdef inline void push_pending(Session* session, int action) noexcept nogil:
    session.pending = <uint16_t>(session.pending << 4 | action)


cdef inline int pending(const Session* session, int age) noexcept nogil:
    # The action of the decision taken `age` places before the newest one, or NOT_LEARNING.
    return session.pending >> 4 * age & 15


cdef inline int giving_rule(
    const Policy* policy, int action, uint32_t fired, uint32_t user
) noexcept nogil:
    # The rule behind an action, a user's k-th one as RULES + k; -1 = none. Users' rules that force
    # come first, then built-in rules that stand alone, then the other built-in ones.
    cdef uint32_t giving = fired & policy.action_rules[action]
    cdef uint32_t of_users = user & policy.user_action_rules[action]
    if of_users & policy.user_forcing:
        return RULES + lowest_bit(of_users & policy.user_forcing)
    if giving:
        return lowest_bit(giving & policy.rules_alone if giving & policy.rules_alone else giving)
    return RULES + lowest_bit(of_users) if of_users else -1


cdef inline int advice_of(
    const Policy* policy, int action, uint32_t fired, uint32_t user
) noexcept nogil:
    # Which advice an action is, given by which rule; 0 = none, at most 255.
    return 1 + action + ARMS * (giving_rule(policy, action, fired, user) + 1)


cdef inline uint8_t note_advice(
    Session* session, const Policy* policy, int action, uint32_t fired, uint32_t user
) noexcept nogil:
    # For how many decisions this advice was given already. It is kept for as long as it would not
    # be given again, in case the next decisions say nothing and then the same.
    cdef int age = session.advice_age + 1
    cdef uint8_t advice
    if age > 255:
        age -= policy.repeat_interval
    if action == CONTINUE:
        if age >= policy.repeat_interval:
            session.advice = 0
            age = 0
        session.advice_age = <uint8_t>age
        return 0
    advice = <uint8_t>advice_of(policy, action, fired, user)
    session.advice_age = <uint8_t>age if advice == session.advice else 0
    session.advice = advice
    return session.advice_age


cdef inline uint32_t tokens_kept(int64_t tokens) noexcept nogil:
    return <uint32_t>min(max(tokens, <int64_t>0), <int64_t>0xFFFFFFFFu)


cdef inline uint8_t execute(
    Session* session, const Policy* policy, int action, uint8_t candidates, uint32_t fired,
    uint32_t user,
) noexcept nogil:
    # Of the built-in rules, `fired` did; of the user's own, `user`.
    cdef bint learns = policy.learn_from_all or several(candidates)
    push_pending(session, action if learns else NOT_LEARNING)
    session.decision_stuck = session.stuck
    if action == REDIRECT:
        session.stuck = 0
        if (
            fired & policy.action_rules[REDIRECT] & ~MILD_RULES
            or user & policy.user_action_rules[REDIRECT]
        ):
            session.unheeded_redirects += session.unheeded_redirects < 255
    elif action == COMPRESS:
        session.compress_wait = 0
        session.compress_tries += session.compress_tries < 255
        session.compressed_tokens = tokens_kept(session.context_tokens)
    elif action == TERMINATE:
        session.flags |= SESSION_DONE
    return note_advice(session, policy, action, fired, user)
