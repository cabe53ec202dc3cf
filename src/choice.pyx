# cython: language_level=3
"""Loops over the formulas of choice.pxd. The draws of many openings are made at once."""

from libc.stdint cimport uint16_t, uint32_t, uint64_t
from beta_lanes cimport sample_beta_many
from cellium_fast._spans cimport stage
from philox cimport Counter
from records cimport PURPOSE_POLICY, Batch, Choice
cimport choice

from cellium_fast._records import address_of

cdef enum:
    MOST = 128      # draws in work at a time

MOST_LEARNED = choice.MOST_LEARNED


# Draws in work, side by side, and of the session that the last one is for, the highest so far.
ctypedef struct Draws:
    int count
    double alpha[MOST]
    double beta[MOST]
    Counter counter[MOST]
    double highest


def choose(choices, uint64_t key, uint64_t first, uint16_t[::1] out):
    """Fill `out` with the rows of the policies chosen for sessions to be opened.

    Each gets the policy whose draw is highest, the first one of equal ones. `choices` has a record
    for each policy, CHOICE; the uids of the sessions are first, first + 1, ...
    """
    cdef size_t address = address_of(choices)
    cdef const Choice* known = <const Choice*> address
    cdef uint32_t policies = <uint32_t> len(choices)
    cdef uint32_t row
    cdef Py_ssize_t i
    cdef Draws draws
    draws.count = 0
    with nogil:
        for i in range(out.shape[0]):
            for row in range(policies):
                need_draw(&draws, &known[row], first + <uint64_t> i, row)
                if draws.count == MOST:
                    take_highest(&draws, key, first, &out[0])
        take_highest(&draws, key, first, &out[0])


cdef inline void need_draw(
    Draws* draws, const Choice* known, uint64_t uid, uint32_t row
) noexcept nogil:
    cdef int k = draws.count
    draws.alpha[k] = choice.alpha_of(known)
    draws.beta[k] = choice.beta_of(known)
    draws.counter[k].uid = uid
    draws.counter[k].round = row
    draws.counter[k].purpose = PURPOSE_POLICY
    draws.count += 1


cdef void take_highest(Draws* draws, uint64_t key, uint64_t first, uint16_t* out) noexcept nogil:
    # Make the draws, in place of their alphas, and have none in work.
    cdef Counter counter
    cdef int k
    sample_beta_many(draws.alpha, draws.beta, draws.counter, key, draws.count, draws.alpha)
    for k in range(draws.count):
        counter = draws.counter[k]
        if counter.round == 0 or draws.alpha[k] > draws.highest:
            draws.highest = draws.alpha[k]
            out[counter.uid - first] = <uint16_t> counter.round
    draws.count = 0


def shapes(choices):
    """alpha and beta of each policy's posterior, from records CHOICE: a list of pairs."""
    cdef size_t address = address_of(choices)
    cdef const Choice* known = <const Choice*> address
    return [(choice.alpha_of(&known[i]), choice.beta_of(&known[i])) for i in range(len(choices))]


cdef int note_rewards_rows(
    const Batch* batch, Py_ssize_t start, Py_ssize_t stop
) noexcept nogil:
    # The newest rewards count for what the sessions were opened under.
    cdef Py_ssize_t i
    if batch.trials:
        for i in range(start, stop):
            choice.note_reward(batch, batch.slots[i])
    return 0


note_rewards = stage(note_rewards_rows, "choice.note_rewards")
