/* Stage 2, rule evaluation: features to a set of candidate actions.

   A rule's bit is its row in the table of docs/semantics.md, "Rules". Bits below FIRST_PROPOSING
   force their action, in order; the others propose theirs. Every rule that fires is recorded. */

#ifndef CELLIUM_RULES_H
#define CELLIUM_RULES_H

#include "lanes.h"

enum {
    OUTPUT_LOOP, CONTEXT_EXHAUSTED, ROUND_LIMIT, FAILURE_WALL, TRUE_STAGNATION, BAD_CYCLE,
    CONTEXT_HIGH, CONTEXT_CRITICAL, FAILURE_CHAIN, PROLONGED_STAGNATION, TOOL_CYCLE,
    TOOL_REPETITION, MILD_STAGNATION, MODERATE_STAGNATION, SLOW_PROGRESS, PROGRESSING,
    FIRST_PROPOSING = CONTEXT_HIGH
};

#define FORCING_RULES ((1u << FIRST_PROPOSING) - 1)
#define LOOP_RULES (1u << PROLONGED_STAGNATION | 1u << TOOL_CYCLE | 1u << TOOL_REPETITION)

/* The rules that fired in each lane, all but the last one. */
CELLIUM_INLINE void fire(
    const FeatureLanes *restrict f, const Policy *restrict policy, uint32_t *restrict fired,
    int first, int end)
{
    const Policy p = *policy;
    for (int i = first; i < end; i++) {
        uint32_t known = f->context_known[i];
        double ratio = f->context_ratio[i];
        fired[i] = (uint32_t)(f->output_repeats[i] >= p.output_loop_repeats) << OUTPUT_LOOP
            | (uint32_t)(f->rounds_left[i] == 0) << ROUND_LIMIT
            | (uint32_t)(f->repetition_score[i] > p.tool_repetition_repetition) << TOOL_REPETITION
            | (known & (ratio >= p.context_exhausted_saturation)) << CONTEXT_EXHAUSTED
            | (known & (ratio >= p.context_high_saturation)) << CONTEXT_HIGH
            | (known & (ratio >= p.context_critical_saturation)) << CONTEXT_CRITICAL;
    }
    for (int i = first; i < end; i++) {
        double trend = f->progress_trend[i], stuck = (double)(int32_t)f->stuck_iterations[i];
        double failures = (double)(int32_t)f->failures_in_row[i];
        uint32_t cycle = f->cycle[i] != 0;
        uint32_t wall = (trend < p.failure_wall_trend) | (stuck >= p.failure_wall_stuck);
        uint32_t bad = (trend < 0.0) | (stuck >= p.bad_cycle_stuck);
        fired[i] |= (wall & (failures >= p.failure_wall_failures)) << FAILURE_WALL
            | (uint32_t)(failures >= p.failure_chain_failures) << FAILURE_CHAIN
            | (cycle & bad & (f->result_quality[i] < p.bad_cycle_quality)) << BAD_CYCLE
            | cycle << TOOL_CYCLE;
    }
    for (int i = first; i < end; i++) {
        double trend = f->progress_trend[i], stuck = (double)(int32_t)f->stuck_iterations[i];
        uint32_t moving = f->plateau[i] ^ 1, known = f->context_known[i];
        uint32_t paused = (stuck >= p.true_stagnation_pause_from)
            & (stuck < p.true_stagnation_pause_to);
        uint32_t falling = (trend < p.true_stagnation_trend)
            & (f->trend_confidence[i] > p.true_stagnation_confidence);
        uint32_t slow = (trend > 0.0) & (trend < p.slow_progress_trend)
            & (f->progress_score[i] <= p.slow_progress_progress);
        uint32_t full = known & (f->context_ratio[i] >= p.moderate_stagnation_saturation);
        fired[i] |=
            ((stuck >= p.true_stagnation_stuck) & ~paused & moving & falling) << TRUE_STAGNATION
            | (moving & (stuck >= p.prolonged_stagnation_stuck)) << PROLONGED_STAGNATION
            | ((stuck >= p.mild_stagnation_stuck) & (f->making_progress[i] ^ 1)) << MILD_STAGNATION
            | (full & (stuck >= p.moderate_stagnation_stuck)) << MODERATE_STAGNATION
            | (slow & (stuck >= p.slow_progress_stuck)) << SLOW_PROGRESS;
        fired[i] &= p.rules_enabled;
    }
}

/* The actions of the rules [from, to) among those that fired. */
CELLIUM_INLINE uint32_t actions_of(
    const uint8_t *actions, uint32_t fired, int from, int to)
{
    uint32_t proposed = 0;
    for (int rule = from; rule < to; rule++)
        proposed |= actions[rule] & -(fired >> rule & 1);
    return proposed;
}

/* Compress, beside the actions of a loop where the context is filled enough. */
CELLIUM_INLINE uint32_t compress_beside(
    const FeatureLanes *restrict f, const Policy *restrict p, uint32_t fired, int i)
{
    uint32_t cycle = fired >> TOOL_CYCLE & (f->context_ratio[i] >= p->tool_cycle_compress_from);
    uint32_t repetition = fired >> TOOL_REPETITION
        & (f->context_ratio[i] >= p->tool_repetition_compress_from);
    return ((cycle | repetition) & f->context_known[i]) << COMPRESS;
}

CELLIUM_INLINE uint32_t is_progressing(
    const FeatureLanes *restrict f, const Policy *restrict p, uint32_t fired, uint32_t proposed,
    int i)
{
    uint32_t yields = (p->progressing_yields != 0) & ((fired & LOOP_RULES) != 0);
    uint32_t moves = f->making_progress[i]
        | ((f->progress_score[i] > p->progressing_progress) & (f->stuck_iterations[i] == 0));
    return (proposed == 0) | (moves & ~yields);
}

/* What the proposing rules among those that fired propose. */
CELLIUM_INLINE uint32_t proposals(
    const FeatureLanes *restrict f, const Policy *restrict p, uint32_t fired, int i)
{
    return actions_of(p->rule_actions, fired, FIRST_PROPOSING, PROGRESSING)
        | compress_beside(f, p, fired, i);
}

/* The candidate sets; `fired` gets the rules that fired. */
CELLIUM_INLINE void propose(
    const FeatureLanes *restrict f, const Policy *restrict policy, uint32_t *restrict fired,
    uint32_t *restrict candidates, int first, int end)
{
    const Policy p = *policy;
    uint32_t any = 0;
    for (int i = first; i < end; i++) {
        uint32_t proposed = proposals(f, &p, fired[i], i);
        uint32_t progressing = p.rules_enabled >> PROGRESSING
            & is_progressing(f, &p, fired[i], proposed, i);
        any |= fired[i];
        fired[i] |= progressing << PROGRESSING;
        proposed |= p.rule_actions[PROGRESSING] & -progressing;
        /* With the last rule switched off nothing may be proposed: go on. */
        candidates[i] = choose(proposed == 0, 1 << CONTINUE, proposed);
    }
    if (any & p.rules_alone)
        for (int i = first; i < end; i++) {
            uint32_t alone = proposals(f, &p, fired[i] & p.rules_alone, i);
            candidates[i] = choose(alone != 0, alone, candidates[i]);
        }
    if (any & FORCING_RULES)
        for (int i = first; i < end; i++) {
            uint32_t forcing = fired[i] & FORCING_RULES, lowest = forcing & -forcing;
            uint32_t forced = actions_of(p.rule_actions, lowest, 0, FIRST_PROPOSING);
            candidates[i] = choose(forcing != 0, forced, candidates[i]);
        }
}

CELLIUM_INLINE void evaluate_rules(
    const FeatureLanes *restrict f, const Policy *restrict policy, uint32_t *restrict fired,
    uint32_t *restrict candidates, int first, int end)
{
    fire(f, policy, fired, first, end);
    propose(f, policy, fired, candidates, first, end);
}

#endif
