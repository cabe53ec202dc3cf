# cython: language_level=3
"""Loops over the formulas of rules.h."""

from cellium_fast._records cimport Batch as BatchObject
from cellium_fast._spans cimport stage
from records cimport Batch
cimport rules
from variants cimport fastest_variant, require_variant

# In the order of their bits.
RULES = (
    "output_loop", "context_exhausted", "round_limit", "failure_wall", "true_stagnation",
    "bad_cycle", "context_high", "context_critical", "failure_chain", "prolonged_stagnation",
    "tool_cycle", "tool_repetition", "mild_stagnation", "moderate_stagnation", "slow_progress",
    "progressing", "redirects_ignored", "compression_failed", "transient_failure",
    "transient_persists", "repeated_round", "repeated_call", "repeated_result", "repeated_error",
    "no_information", "little_information", "mostly_failing", "repeated_text", "idle",
    "loop_suspected",
)
FORCING = rules.FORCING_RULES       # mask
LOOP_RULES = rules.DETECTING_RULES  # mask of those that `loop_detection` switches off


cdef int evaluate_rows(const Batch* batch, Py_ssize_t start, Py_ssize_t stop) noexcept nogil:
    rules.evaluate_with(fastest_variant(), batch, start, stop)
    return 0


evaluate = stage(evaluate_rows, "rules.evaluate")


def evaluate_with(int variant, BatchObject columns not None, Py_ssize_t start, Py_ssize_t stop):
    """`evaluate` by one variant of stages 1 and 2, where it takes the fastest."""
    require_variant(variant)
    with nogil:
        rules.evaluate_with(variant, &columns.batch, start, stop)
