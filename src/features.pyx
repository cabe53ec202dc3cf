# cython: language_level=3
"""Loops over the formulas of extraction.h."""

from cellium_fast._records cimport Batch as BatchObject
cimport features
from variants cimport VARIANTS, has_variant, variant_for

LANES_BYTES = features.FEATURE_LANES_BYTES
LANES = features.LANES


def variants():
    """Numbers of the variants of `extract` that this processor can run; 0 is plain code."""
    return [variant for variant in range(VARIANTS) if has_variant(variant)]


def extract(BatchObject columns not None, Py_ssize_t start, Py_ssize_t stop, int variant=-1):
    """Stage 1 for the sessions [start, stop) of a batch, by the fastest variant or by one of
    `variants`."""
    variant = variant_for(variant)
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
