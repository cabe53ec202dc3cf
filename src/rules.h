/* Stage 2, rule evaluation: features to a set of candidate actions.

   A rule's bit is its row in the table of docs/semantics.md, "Rules". FORCING_RULES force their
   action, in order; the others propose theirs. Every rule that fires is recorded. Rules of users
   have masks of their own; those of them that force come first. */

#ifndef CELLIUM_RULES_H
#define CELLIUM_RULES_H

#include "lanes.h"

enum {
    OUTPUT_LOOP, CONTEXT_EXHAUSTED, ROUND_LIMIT, FAILURE_WALL, TRUE_STAGNATION, BAD_CYCLE,
    CONTEXT_HIGH, CONTEXT_CRITICAL, FAILURE_CHAIN, PROLONGED_STAGNATION, TOOL_CYCLE,
    TOOL_REPETITION, MILD_STAGNATION, MODERATE_STAGNATION, SLOW_PROGRESS, PROGRESSING,
    REDIRECTS_IGNORED, COMPRESSION_FAILED, TRANSIENT_FAILURE, TRANSIENT_PERSISTS, REPEATED_ROUND,
    REPEATED_CALL, REPEATED_RESULT, REPEATED_ERROR, NO_INFORMATION, LITTLE_INFORMATION,
    MOSTLY_FAILING, REPEATED_TEXT, IDLE, LOOP_SUSPECTED
};

#define BIT(rule) (1u << (rule))

/* Bit masks of rules: those that force; those that keep PROGRESSING quiet; those that look for
   repetition and stagnation. */
#define FORCING_RULES ((BIT(CONTEXT_HIGH) - 1) | BIT(REDIRECTS_IGNORED))
/* Those whose redirects, be they ignored, are no reason to stop. */
#define MILD_RULES (BIT(COMPRESSION_FAILED) | BIT(LITTLE_INFORMATION) | BIT(IDLE))
#define LOOP_RULES (BIT(PROLONGED_STAGNATION) | BIT(TOOL_CYCLE) | BIT(TOOL_REPETITION))
#define DETECTING_RULES                                                                            \
    (LOOP_RULES | BIT(OUTPUT_LOOP) | BIT(TRUE_STAGNATION) | BIT(BAD_CYCLE) | BIT(REPEATED_ROUND)   \
     | BIT(REPEATED_CALL) | BIT(REPEATED_RESULT) | BIT(REPEATED_ERROR) | BIT(NO_INFORMATION)       \
     | BIT(LITTLE_INFORMATION) | BIT(REPEATED_TEXT) | BIT(IDLE) | BIT(LOOP_SUSPECTED))

/* Whether a count reaches a threshold; both are below 2^31. */
CELLIUM_INLINE uint32_t reaches(uint32_t count, uint32_t threshold)
{
    return (int32_t)count >= (int32_t)threshold;
}

/* Whether texts tell of a loop: in a round that brought nothing or little, or had no calls. */
CELLIUM_INLINE uint32_t texts_count(const FeatureLanes *restrict f, int i)
{
    uint32_t old = (f->information[i] == NOTHING) | (f->information[i] == LITTLE);
    return (old | (f->idle_rounds[i] != 0)) & (f->own_limit[i] == 0);
}

/* The rules of context, limits and texts. */
CELLIUM_INLINE void fire_limits(
    const FeatureLanes *restrict f, const Policy *restrict p, uint32_t *restrict fired,
    int first, int end)
{
    uint32_t compresses = p->action_rules[COMPRESS] >> CONTEXT_CRITICAL & 1;
    for (int i = first; i < end; i++) {
        uint32_t known = f->context_known[i], ready = f->compress_ready[i];
        uint32_t loud = texts_count(f, i), any = p->output_loop_idle_only == 0;
        double ratio = f->context_ratio[i];
        fired[i] = ((loud | any) & (f->output_repeats[i] >= p->output_loop_repeats)) << OUTPUT_LOOP
            | reaches(f->exhausted_rounds[i], p->context_exhausted_rounds) << CONTEXT_EXHAUSTED
            | (uint32_t)(f->rounds_left[i] == 0) << ROUND_LIMIT
            | (known & ready & (ratio >= p->context_high_saturation)) << CONTEXT_HIGH
            | (known & (ready | (compresses ^ 1)) & (ratio >= p->context_critical_saturation))
                << CONTEXT_CRITICAL
            | f->compression_failed[i] << COMPRESSION_FAILED
            | (reaches(f->idle_rounds[i], p->idle_rounds)
               | reaches(f->blank_rounds[i], p->idle_blank)) << IDLE
            | (loud & reaches(f->text_repeats[i], p->repeated_text_texts)) << REPEATED_TEXT;
    }
}

/* The rules of failures and of cycles and runs of calls. */
CELLIUM_INLINE void fire_calls(
    const FeatureLanes *restrict f, const Policy *restrict p, uint32_t *restrict fired,
    int first, int end)
{
    uint32_t patient = p->rules_enabled >> TRANSIENT_FAILURE & 1;
    for (int i = first; i < end; i++) {
        double trend = f->progress_trend[i], stuck = (double)(int32_t)f->stuck_iterations[i];
        double failures = (double)(int32_t)f->failures_in_row[i];
        uint32_t cycle = f->cycle[i] != 0;
        uint32_t wall = (trend < p->failure_wall_trend) | (stuck >= p->failure_wall_stuck);
        uint32_t bad = (trend < 0.0) | (stuck >= p->bad_cycle_stuck);
        uint32_t transient = f->transient_rounds[i];
        uint32_t waits = patient & (transient != 0) & (f->idle_rounds[i] == 0);
        uint32_t repeats = (f->own_limit[i] == 0) & (waits ^ 1)
            & (f->repetition_score[i] > p->tool_repetition_repetition);
        uint32_t persists = reaches(transient, p->transient_failure_patience);
        fired[i] |= (wall & (failures >= p->failure_wall_failures)) << FAILURE_WALL
            | (uint32_t)(failures >= p->failure_chain_failures) << FAILURE_CHAIN
            | (cycle & bad & (f->result_quality[i] < p->bad_cycle_quality)) << BAD_CYCLE
            | cycle << TOOL_CYCLE
            | repeats << TOOL_REPETITION
            | ((transient != 0) & (persists ^ 1)) << TRANSIENT_FAILURE
            | reaches(transient, p->transient_persists_rounds) << TRANSIENT_PERSISTS;
    }
}

/* The rules of progress. */
CELLIUM_INLINE void fire_progress(
    const FeatureLanes *restrict f, const Policy *restrict p, uint32_t *restrict fired,
    int first, int end)
{
    for (int i = first; i < end; i++) {
        double trend = f->progress_trend[i], stuck = (double)(int32_t)f->stuck_iterations[i];
        uint32_t moving = f->plateau[i] ^ 1, known = f->context_known[i];
        uint32_t paused = (stuck >= p->true_stagnation_pause_from)
            & (stuck < p->true_stagnation_pause_to);
        uint32_t falling = (trend < p->true_stagnation_trend)
            & (f->trend_confidence[i] > p->true_stagnation_confidence);
        uint32_t slow = (trend > 0.0) & (trend < p->slow_progress_trend)
            & (f->progress_score[i] <= p->slow_progress_progress);
        uint32_t full = known & f->compress_ready[i]
            & (f->context_ratio[i] >= p->moderate_stagnation_saturation);
        uint32_t prolonged = moving & (f->own_limit[i] == 0)
            & (stuck >= p->prolonged_stagnation_stuck);
        fired[i] |=
            ((stuck >= p->true_stagnation_stuck) & ~paused & moving & falling) << TRUE_STAGNATION
            | prolonged << PROLONGED_STAGNATION
            | ((stuck >= p->mild_stagnation_stuck) & (f->making_progress[i] ^ 1)) << MILD_STAGNATION
            | (full & (stuck >= p->moderate_stagnation_stuck)) << MODERATE_STAGNATION
            | (slow & (stuck >= p->slow_progress_stuck)) << SLOW_PROGRESS;
    }
}

/* The rules of what rounds brought. */
CELLIUM_INLINE void fire_evidence(
    const FeatureLanes *restrict f, const Policy *restrict p, uint32_t *restrict fired,
    int first, int end)
{
    for (int i = first; i < end; i++) {
        uint32_t nothing = f->information[i] == NOTHING;
        uint32_t old = nothing | (f->information[i] == LITTLE);
        uint32_t limit = f->own_limit[i], barren = f->no_information[i];
        uint32_t repeats = choose(
            f->slight[i], p->repeated_round_slight_repeats, p->repeated_round_repeats);
        repeats = choose(limit != 0, limit, repeats);
        uint32_t again = ((f->information[i] != NOT_JUDGED) | (limit != 0)) & (limit != NO_LIMIT);
        fired[i] |= (again & reaches(f->round_repeats[i], repeats)) << REPEATED_ROUND
            | ((old & reaches(f->call_repeats[i], p->repeated_call_calls)
                & reaches(barren, p->repeated_call_rounds))
               | (nothing & reaches(f->call_repeats[i], p->repeated_call_interleaved)))
                << REPEATED_CALL
            | (old & reaches(f->result_repeats[i], p->repeated_result_results)
               & reaches(barren, p->repeated_result_rounds)) << REPEATED_RESULT
            | (nothing & reaches(f->error_repeats[i], p->repeated_error_errors)) << REPEATED_ERROR
            | (nothing & reaches(barren, p->no_information_rounds)) << NO_INFORMATION
            | (old & reaches(f->little_information[i], p->little_information_rounds))
                << LITTLE_INFORMATION
            | (nothing & reaches(f->recent_failures[i], p->mostly_failing_failures)
               & reaches(barren, p->mostly_failing_rounds)) << MOSTLY_FAILING;
    }
}

/* The first signs of a loop. */
CELLIUM_INLINE void suspect(
    const FeatureLanes *restrict f, const Policy *restrict p, uint32_t *restrict fired,
    int first, int end)
{
    for (int i = first; i < end; i++) {
        uint32_t nothing = f->information[i] == NOTHING;
        uint32_t old = nothing | (f->information[i] == LITTLE);
        uint32_t again = reaches(f->round_repeats[i], p->loop_suspected_rounds)
            | reaches(f->error_repeats[i], p->loop_suspected_errors)
            | reaches(f->failures_in_row[i], p->loop_suspected_failures);
        uint32_t signs = (nothing & again)
            | (old & reaches(f->no_information[i], p->loop_suspected_no_information))
            | (texts_count(f, i) & reaches(f->text_repeats[i], p->loop_suspected_texts))
            | reaches(f->idle_rounds[i], p->loop_suspected_idle)
            | reaches(f->blank_rounds[i], p->loop_suspected_blank);
        fired[i] |= signs << LOOP_SUSPECTED;
    }
}

/* The rules that fired in each lane, all but those that look at what the others propose: of these
   the conditions that they have besides hold. */
CELLIUM_INLINE void fire(
    const FeatureLanes *restrict f, const Policy *restrict policy, uint32_t *restrict fired,
    int first, int end)
{
    const Policy p = *policy;
    fire_limits(f, &p, fired, first, end);
    fire_calls(f, &p, fired, first, end);
    fire_progress(f, &p, fired, first, end);
    fire_evidence(f, &p, fired, first, end);
    suspect(f, &p, fired, first, end);
    for (int i = first; i < end; i++) {
        uint32_t never = p.rules_after_redirect & -(uint32_t)(f->unheeded_redirects[i] == 0);
        uint32_t ignored = reaches(f->unheeded_redirects[i], p.redirects_ignored_redirects);
        fired[i] |= ignored << REDIRECTS_IGNORED;
        fired[i] &= p.rules_enabled & ~never;
    }
}

/* The actions of some rules, of which `having` says which have each action. */
CELLIUM_INLINE uint32_t actions_in(const uint32_t *restrict having, uint32_t rules)
{
    uint32_t actions = 0;
    for (int action = 0; action < ARMS; action++)
        actions |= (uint32_t)((rules & having[action]) != 0) << action;
    return actions;
}

CELLIUM_INLINE uint32_t actions_of(const Policy *restrict p, uint32_t rules)
{
    return actions_in(p->action_rules, rules);
}

/* Compress, beside the actions of a loop where the context is filled enough. */
CELLIUM_INLINE uint32_t compress_beside(
    const FeatureLanes *restrict f, const Policy *restrict p, uint32_t fired, int i)
{
    uint32_t cycle = fired >> TOOL_CYCLE & (f->context_ratio[i] >= p->tool_cycle_compress_from);
    uint32_t repetition = fired >> TOOL_REPETITION
        & (f->context_ratio[i] >= p->tool_repetition_compress_from);
    return ((cycle | repetition) & f->context_known[i] & f->compress_ready[i]) << COMPRESS;
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

/* What the proposing rules among those that fired propose, all but PROGRESSING. */
CELLIUM_INLINE uint32_t proposals(
    const FeatureLanes *restrict f, const Policy *restrict p, uint32_t fired, int i)
{
    return actions_of(p, fired & ~FORCING_RULES & ~BIT(PROGRESSING))
        | compress_beside(f, p, fired, i);
}

/* What the rules that look at the others see, the actions `own` of users' rules among them: a
   suspicion gives way to more than that, and redirects were ignored where there is need for one
   more. */
CELLIUM_INLINE uint32_t settle_rungs(const Policy *restrict p, uint32_t fired, uint32_t own)
{
    uint32_t sure = fired & ~BIT(LOOP_SUSPECTED) & ~BIT(REDIRECTS_IGNORED);
    uint32_t proposing = sure & ~FORCING_RULES, alone = proposing & p->rules_alone;
    uint32_t turning = (proposing & (p->action_rules[REDIRECT] | p->action_rules[TERMINATE])) != 0;
    uint32_t more = turning | (own >> REDIRECT & 1) | (own >> TERMINATE & 1);
    uint32_t left = choose(alone != 0, alone, proposing);
    uint32_t redirects = ((left & ~MILD_RULES & p->action_rules[REDIRECT]) != 0)
        | ((alone == 0) & own >> REDIRECT);
    return fired & ~(more << LOOP_SUSPECTED) & ~((redirects ^ 1) << REDIRECTS_IGNORED);
}

/* The candidate sets; `fired` gets the rules that fired. Of users' rules, `user` fired. */
CELLIUM_INLINE void propose(
    const FeatureLanes *restrict f, const Policy *restrict policy, const uint32_t *restrict user,
    uint32_t *restrict fired, uint32_t *restrict candidates, int first, int end)
{
    const Policy p = *policy;
    uint32_t any = 0, any_user = 0, own[LANES] = {0};
    for (int i = first; i < end; i++) {
        any |= fired[i];
        any_user |= user[i];
    }
    if (any_user)
        for (int i = first; i < end; i++)
            own[i] = actions_in(p.user_action_rules, user[i] & ~p.user_forcing);
    if (any & (BIT(LOOP_SUSPECTED) | BIT(REDIRECTS_IGNORED)))
        for (int i = first; i < end; i++)
            fired[i] = settle_rungs(&p, fired[i], own[i]);
    for (int i = first; i < end; i++) {
        uint32_t proposed = proposals(f, &p, fired[i], i) | own[i];
        uint32_t progressing = p.rules_enabled >> PROGRESSING
            & is_progressing(f, &p, fired[i], proposed, i);
        fired[i] |= progressing << PROGRESSING;
        proposed |= actions_of(&p, progressing << PROGRESSING);
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
            candidates[i] = choose(forcing != 0, actions_of(&p, lowest), candidates[i]);
        }
    if (any_user & p.user_forcing)
        for (int i = first; i < end; i++) {
            uint32_t forcing = user[i] & p.user_forcing, lowest = forcing & -forcing;
            candidates[i] = choose(
                forcing != 0, actions_in(p.user_action_rules, lowest), candidates[i]);
        }
}

CELLIUM_INLINE void evaluate_rules(
    const FeatureLanes *restrict f, const Policy *restrict policy, const uint32_t *restrict user,
    uint32_t *restrict fired, uint32_t *restrict candidates, int first, int end)
{
    fire(f, policy, fired, first, end);
    propose(f, policy, user, fired, candidates, first, end);
}

#endif
