# Stage 1, feature extraction; its formulas are in extraction.h.
# cython: preliminary_late_includes_cy28=True

from records cimport Batch, Features, Policy, Round, Session

cdef extern from "extraction.h" nogil:
    double ema(double value, double state, double alpha)
    double decimal(float value)
    double context_ratio(const Session* session)    # -1 = unknown

cdef extern from "stages.h" nogil:
    const int LANES                 # sessions worked on at a time
    const int FEATURE_LANES_BYTES   # memory for the features of as many
    # What a session is before a round is taken in: its context and its rounds.
    void describe_context(const Session* session, Features* features)
    # Take a round in; `features` gets what it says.
    void extract(Session* session, const Policy* policy, const Round* round, Features* features)
    # The sessions [start, stop) of a batch, by one of the variants of variants.h.
    void extract_with(int variant, const Batch* batch, Py_ssize_t start, Py_ssize_t stop)
