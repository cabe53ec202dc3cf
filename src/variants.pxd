# Code compiled more than once: 0 = for any machine, 1 = for AVX2, 2 = for AVX-512.

cdef extern from "variants.h" nogil:
    enum:
        VARIANTS

    bint has_variant(int variant)
    int fastest_variant()


cdef inline int require_variant(int variant) except -1:
    if not 0 <= variant < VARIANTS or not has_variant(variant):
        raise ValueError(f"this processor cannot run variant {variant}")
    return 0
