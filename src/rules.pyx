# cython: language_level=3
"""Loops over the formulas of rules.pxd."""

from libc.stdint cimport uint32_t
from records cimport Batch, Session, features_of
cimport rules

# In the order of their bits.
RULES = (
    "output_loop", "context_exhausted", "round_limit", "failure_wall", "true_stagnation",
    "bad_cycle", "context_high", "context_critical", "failure_chain", "prolonged_stagnation",
    "tool_cycle", "tool_repetition", "mild_stagnation", "moderate_stagnation", "slow_progress",
    "progressing",
)
FIRST_PROPOSING = rules.FIRST_PROPOSING


def evaluate(size_t batch_address, Py_ssize_t start, Py_ssize_t stop):
    """Stage 2 for the sessions [start, stop) of a batch."""
    cdef const Batch* batch = <const Batch*> batch_address
    cdef const Session* session
    cdef uint32_t fired
    cdef Py_ssize_t i
    with nogil:
        for i in range(start, stop):
            session = &batch.sessions[batch.slots[i]]
            batch.candidates[i] = rules.evaluate(
                features_of(batch, i), &batch.policies[session.policy], &fired
            )
            if batch.rules:
                batch.rules[i] = fired
