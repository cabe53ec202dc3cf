# Which policy a session is opened under, if the fleet is to choose: Thompson sampling among the
# fleet's policies, by what became of the sessions of a pool that each was chosen for.
# Thompson, "On the likelihood that one unknown probability exceeds another", Biometrika 25, 1933.
# Formulas: docs/semantics.md, "Choice of a policy".

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memset
from records cimport REWARD_UNITS, Batch, Choice, Session, Trial

cdef extern from *:
    """
    #define CELLIUM_MOST_LEARNED UINT64_C(0xFFFFFFFF)
    """
    const uint64_t MOST_LEARNED "CELLIUM_MOST_LEARNED"      # the sum of outcomes fits into 63 bits


cdef inline double alpha_of(const Choice* choice) noexcept nogil:
    return 1.0 + choice.won / REWARD_UNITS


cdef inline double beta_of(const Choice* choice) noexcept nogil:
    return 1.0 + (choice.learned * <uint64_t>REWARD_UNITS - choice.won) / REWARD_UNITS


cdef inline void note_reward(const Batch* batch, int64_t slot) noexcept nogil:
    # The session's newest reward is that of the round just opened.
    cdef Trial* trial
    if not batch.trials:
        return
    trial = &batch.trials[slot]
    if trial.chosen and trial.rounds < 0xFFFFFFFFu:
        trial.reward += batch.sessions[slot].reward[0]
        trial.rounds += 1


cdef inline void take_back(const Batch* batch, int64_t slot, const Session* before) noexcept nogil:
    # As if the newest round had not been; `before` is the session's record from before it.
    cdef Trial* trial
    if not batch.trials:
        return
    trial = &batch.trials[slot]
    if trial.chosen and before.round < 0xFFFFFFFFu:
        trial.reward -= batch.sessions[slot].reward[0]
        trial.rounds -= 1


cdef inline uint64_t mean_reward(const Trial* trial) noexcept nogil:
    # In units of 2**-31; of one round or more.
    return (trial.reward + trial.rounds // 2) // trial.rounds


cdef inline void learn(Choice* choice, const Trial* trial, int outcome) noexcept nogil:
    # The outcome as `close` was told it: 1, 0, or -1 = not told.
    if choice.learned == MOST_LEARNED or (outcome < 0 and not trial.rounds):
        return
    choice.learned += 1
    choice.won += outcome * <uint64_t>REWARD_UNITS if outcome >= 0 else mean_reward(trial)


cdef inline void begin(Trial* trial, Choice* choices, int policy) noexcept nogil:
    # `choices` are those of the session's pool, here and below.
    trial.chosen = policy + 1
    choices[policy].opened += 1


cdef inline void end(Trial* trial, Choice* choices, int outcome) noexcept nogil:
    if trial.chosen:
        learn(&choices[trial.chosen - 1], trial, outcome)
    memset(trial, 0, sizeof(Trial))


cdef inline void leave(Trial* trial, int policy) noexcept nogil:
    # The session goes on under this policy.
    if trial.chosen != <uint32_t>policy + 1:
        memset(trial, 0, sizeof(Trial))
