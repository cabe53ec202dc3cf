# Code compiled more than once: 0 = for any machine, 1 = for AVX2, 2 = for AVX-512.

cdef extern from "variants.h" nogil:
    enum:
        VARIANTS

    bint has_variant(int variant)
    int fastest_variant()


cdef inline int variant_for(int wanted) except -1:
    # The fastest variant, for -1, or the one wanted.
    if wanted == -1:
        return fastest_variant()
    if not 0 <= wanted < VARIANTS or not has_variant(wanted):
        raise ValueError(f"this processor cannot run variant {wanted}")
    return wanted
