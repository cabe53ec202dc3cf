# Stage 2, rule evaluation; its formulas are in rules.h.
# cython: preliminary_late_includes_cy28=True

from libc.stdint cimport uint8_t, uint32_t
from records cimport Batch, Features, Policy

cdef extern from "stages.h" nogil:
    # Masks of rules: those that force their action; those for repetition and stagnation.
    const uint32_t FORCING_RULES
    const uint32_t DETECTING_RULES
    # Those whose redirects are not counted as unheeded.
    const uint32_t MILD_RULES
    # The candidate set; of users' rules, `user` fired; `rules` gets the others that did.
    uint8_t evaluate(
        const Features* features, const Policy* policy, uint32_t user, uint32_t* rules
    )
    # The sessions [start, stop) of a batch, by one of the variants of variants.h.
    void evaluate_with(int variant, const Batch* batch, Py_ssize_t start, Py_ssize_t stop)
