# Stage 2, rule evaluation: features of one session to a set of candidate actions.
#
# A rule's bit is its row in the table of docs/semantics.md, "Rules". Bits below FIRST_PROPOSING
# force their action, in order; the others propose theirs. Every rule that fires is recorded.

from libc.stdint cimport uint8_t, uint32_t
from records cimport COMPRESS, CONTINUE, Features, Policy, low_bits, lowest_bit

cdef enum:
    OUTPUT_LOOP
    CONTEXT_EXHAUSTED
    ROUND_LIMIT
    FAILURE_WALL
    TRUE_STAGNATION
    BAD_CYCLE
    CONTEXT_HIGH
    CONTEXT_CRITICAL
    FAILURE_CHAIN
    PROLONGED_STAGNATION
    TOOL_CYCLE
    TOOL_REPETITION
    MILD_STAGNATION
    MODERATE_STAGNATION
    SLOW_PROGRESS
    PROGRESSING
    FIRST_PROPOSING = CONTEXT_HIGH


cdef inline uint32_t fired_if(bint condition, int rule) noexcept nogil:
    # A bint is any number: a cycle of 3 is as true as 1.
    return <uint32_t>(condition != 0) << rule


cdef inline uint32_t context_rules(const Features* f, const Policy* p) noexcept nogil:
    return (
        fired_if(f.context_ratio >= p.context_exhausted_saturation, CONTEXT_EXHAUSTED)
        | fired_if(f.context_ratio >= p.context_high_saturation, CONTEXT_HIGH)
        | fired_if(f.context_ratio >= p.context_critical_saturation, CONTEXT_CRITICAL)
    )


cdef inline uint32_t failure_rules(const Features* f, const Policy* p) noexcept nogil:
    return (
        fired_if(
            f.failures_in_row >= p.failure_wall_failures
            and (
                f.progress_trend < p.failure_wall_trend
                or f.stuck_iterations >= p.failure_wall_stuck
            ),
            FAILURE_WALL,
        )
        | fired_if(f.failures_in_row >= p.failure_chain_failures, FAILURE_CHAIN)
    )


cdef inline uint32_t cycle_rules(const Features* f, const Policy* p) noexcept nogil:
    return (
        fired_if(
            f.result_quality < p.bad_cycle_quality
            and (f.progress_trend < 0 or f.stuck_iterations >= p.bad_cycle_stuck),
            BAD_CYCLE,
        )
        | <uint32_t>1 << TOOL_CYCLE
    )


cdef inline uint32_t stagnation_rules(const Features* f, const Policy* p) noexcept nogil:
    cdef double stuck = f.stuck_iterations
    cdef bint paused = p.true_stagnation_pause_from <= stuck < p.true_stagnation_pause_to
    return (
        fired_if(
            stuck >= p.true_stagnation_stuck and not paused and not f.plateau
            and f.progress_trend < p.true_stagnation_trend
            and f.trend_confidence > p.true_stagnation_confidence,
            TRUE_STAGNATION,
        )
        | fired_if(stuck >= p.prolonged_stagnation_stuck and not f.plateau, PROLONGED_STAGNATION)
        | fired_if(stuck >= p.mild_stagnation_stuck and not f.making_progress, MILD_STAGNATION)
        | fired_if(
            stuck >= p.moderate_stagnation_stuck
            and f.context_known and f.context_ratio >= p.moderate_stagnation_saturation,
            MODERATE_STAGNATION,
        )
        | fired_if(
            0 < f.progress_trend < p.slow_progress_trend
            and f.progress_score <= p.slow_progress_progress
            and stuck >= p.slow_progress_stuck,
            SLOW_PROGRESS,
        )
    )


cdef inline uint32_t fired_rules(const Features* f, const Policy* p) noexcept nogil:
    # All but the last. Each group is worked out only if what all of it asks for is there: every
    # threshold on stuck and on failures is at least 1.
    cdef uint32_t fired = (
        fired_if(f.output_repeats >= p.output_loop_repeats, OUTPUT_LOOP)
        | fired_if(f.rounds_left == 0, ROUND_LIMIT)
        | fired_if(f.repetition_score > p.tool_repetition_repetition, TOOL_REPETITION)
    )
    if f.context_known:
        fired |= context_rules(f, p)
    if f.failures_in_row:
        fired |= failure_rules(f, p)
    if f.cycle:
        fired |= cycle_rules(f, p)
    if f.stuck_iterations:
        fired |= stagnation_rules(f, p)
    return fired & p.rules_enabled


cdef inline bint is_progressing(
    const Features* f, const Policy* p, uint32_t fired, uint8_t proposed
) noexcept nogil:
    cdef uint32_t loops = (
        1 << PROLONGED_STAGNATION | 1 << TOOL_CYCLE | 1 << TOOL_REPETITION
    )
    if proposed == 0:
        return True
    if p.progressing_yields and fired & loops:
        return False
    return f.making_progress or (
        f.progress_score > p.progressing_progress and f.stuck_iterations == 0
    )


cdef inline uint8_t actions_of(const Features* f, const Policy* p, int rule) noexcept nogil:
    # Of a proposing rule that fired.
    cdef uint8_t actions = p.rule_actions[rule]
    if f.context_known and (
        (rule == TOOL_CYCLE and f.context_ratio >= p.tool_cycle_compress_from)
        or (rule == TOOL_REPETITION and f.context_ratio >= p.tool_repetition_compress_from)
    ):
        actions |= 1 << COMPRESS
    return actions


cdef inline uint8_t evaluate(const Features* f, const Policy* p, uint32_t* rules) noexcept nogil:
    # The candidate set; `rules` gets the rules that fired.
    cdef uint32_t fired = fired_rules(f, p)
    cdef uint32_t forced = fired & low_bits(FIRST_PROPOSING)
    cdef uint32_t proposing = fired & ~low_bits(FIRST_PROPOSING)
    cdef uint8_t proposed = 0, alone = 0, actions
    cdef int rule
    while proposing:
        rule = lowest_bit(proposing)
        proposing &= proposing - 1
        actions = actions_of(f, p, rule)
        proposed |= actions
        if p.rules_alone >> rule & 1:
            alone |= actions
    if p.rules_enabled >> PROGRESSING & 1 and is_progressing(f, p, fired, proposed):
        fired |= <uint32_t>1 << PROGRESSING
        proposed |= p.rule_actions[PROGRESSING]
    rules[0] = fired
    if forced:
        return p.rule_actions[lowest_bit(forced)]
    if alone:
        return alone
    # With the last rule switched off nothing may be proposed: go on.
    return proposed if proposed else 1 << CONTINUE
