# cython: language_level=3
"""Loops over the formulas of extraction.h."""

from cellium_fast._records cimport Batch as BatchObject
from cellium_fast._spans cimport stage
from records cimport Batch
cimport features
from variants cimport VARIANTS, fastest_variant, has_variant, require_variant

LANES_BYTES = features.FEATURE_LANES_BYTES
LANES = features.LANES


cdef int extract_rows(const Batch* batch, Py_ssize_t start, Py_ssize_t stop) noexcept nogil:
    features.extract_with(fastest_variant(), batch, start, stop)
    return 0


extract = stage(extract_rows, "features.extract")


def variants():
    """Numbers of the variants of stages 1 and 2 that this processor can run; 0 is plain code."""
    return [variant for variant in range(VARIANTS) if has_variant(variant)]


def extract_with(int variant, BatchObject columns not None, Py_ssize_t start, Py_ssize_t stop):
    """`extract` by one of `variants`, where it takes the fastest."""
    require_variant(variant)
    with nogil:
        features.extract_with(variant, &columns.batch, start, stop)


def ema(
    const double[::1] values, const double[::1] state, const double[::1] alpha, double[::1] out
):
    """alpha * value + (1 - alpha) * state for each row."""
    cdef Py_ssize_t i
    with nogil:
        for i in range(values.shape[0]):
            out[i] = features.ema(values[i], state[i], alpha[i])
