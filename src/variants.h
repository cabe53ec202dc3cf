/* Code that is compiled more than once: for the machine the package is built for and, where
   compiler and machine are GCC or clang and x86-64, for AVX2 and AVX-512 too. Whoever has such code
   takes the fastest variant that the processor has; all give the same bits. */

#ifndef CELLIUM_VARIANTS_H
#define CELLIUM_VARIANTS_H

enum { PLAIN, AVX2, AVX512, VARIANTS };

#if defined(__GNUC__) && defined(__x86_64__)

#define HAS_WIDE_VARIANTS

#define FOR_AVX2 __attribute__((target("avx2")))
#if defined(__clang__)
#define FOR_AVX512 __attribute__((target("avx512f,avx512dq,avx512vl")))
#else
#define FOR_AVX512 __attribute__((target("avx512f,avx512dq,avx512vl,prefer-vector-width=512")))
#endif

/* Whether this processor can run a variant. */
static inline int has_variant(int variant)
{
    __builtin_cpu_init();
    switch (variant) {
    case AVX512:
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")
            && __builtin_cpu_supports("avx512vl");
    case AVX2:
        return __builtin_cpu_supports("avx2") != 0;
    default:
        return variant == PLAIN;
    }
}

#else

static inline int has_variant(int variant)
{
    return variant == PLAIN;
}

#endif

static inline int fastest_variant(void)
{
    int variant = VARIANTS - 1;
    while (!has_variant(variant))
        variant--;
    return variant;
}

#endif
