/* Stage 1, feature extraction: what a round says. Formulas: docs/semantics.md, "Features". */

#ifndef CELLIUM_EXTRACTION_H
#define CELLIUM_EXTRACTION_H

#include <math.h>

#include "evidence.h"

CELLIUM_INLINE double ema(double value, double state, double alpha)
{
    return alpha * value + (1.0 - alpha) * state;
}

/* A float32 holds seven digits: read it as the decimal that the caller wrote, so that a given 0.7
   meets the threshold 0.7. */
CELLIUM_INLINE double decimal(float value)
{
    return nearest((double)value * 1e7) / 1e7;
}

/* -1 = unknown */
CELLIUM_INLINE double ratio_of(double tokens, double limit)
{
    double ratio = tokens / limit;
    return either((limit <= 0.0) | (tokens < 0.0), -1.0, ratio);
}

CELLIUM_INLINE double context_ratio(const Session *session)
{
    return ratio_of((double)session->context_tokens, (double)session->context_limit);
}

CELLIUM_INLINE int32_t rounds_left(uint32_t round, uint32_t limit)
{
    uint32_t left = at_most_word(limit - at_most_word(round, limit), 0x7FFFFFFF);
    return (int32_t)choose(limit == 0, 0xFFFFFFFF, left);
}

CELLIUM_INLINE void push_outputs(RecordLanes *restrict at, int first, int end)
{
    for (int i = first; i < end; i++) {
        uint32_t some = at->text[i] != 0, earlier = at->output_run[i] != 0;
        uint32_t repeated = earlier & (at->text[i] == at->output[i]);
        uint32_t run = choose(repeated, at_most_word(at->output_run[i] + 1, RUN_WINDOW), 1);
        at->flags[i] |= SESSION_OUTPUTS & -(some & earlier);
        at->output_run[i] = choose(some, run, at->output_run[i]);
        at->output[i] = choose(some, at->text[i], at->output[i]);
    }
}

/* Relative growth from one size to a later one, [0, 1], 0.5 = none. */
CELLIUM_INLINE double growth(uint32_t from, uint32_t to)
{
    double first = real_of(from), last = real_of(to);
    return clip((last - first) / at_least(first, 1.0), -1.0, 1.0) / 2.0 + 0.5;
}

CELLIUM_INLINE double quality(double error_rate, double empty_rate, double grown)
{
    return 0.4 * (1.0 - error_rate) + 0.3 * (1.0 - empty_rate) + 0.3 * grown;
}

/* Share of the last calls whose bit is set, from bits of them alone; k * (1 / n) is the same double
   as k / n for whole k <= n <= 4. */
CELLIUM_INLINE double share(uint32_t bits, double reciprocal)
{
    return (double)(int32_t)bits_set_of_4(bits) * reciprocal;
}

/* Of the number of the last calls, at most `most`; 1 with none. */
CELLIUM_INLINE double reciprocal_of_recent(uint32_t count, uint32_t most)
{
    uint32_t recent = at_most_word(count, most);
    return 1.0 / (double)(int32_t)(recent + (recent == 0));
}

/* The oldest of the last `most` sizes, as far as there are any; most <= SIZES is a constant. */
CELLIUM_INLINE uint32_t oldest_size(
    const RecordLanes *restrict at, int i, uint32_t count, uint32_t most)
{
    uint32_t size = at->size[0][i];
    for (uint32_t k = 1; k < most; k++)
        size = choose(count > k, at->size[k][i], size);
    return size;
}

/* Quality of the last `most` calls, at most RECENT. */
CELLIUM_INLINE double recent_quality(
    const RecordLanes *restrict at, int i, uint32_t most, double reciprocal)
{
    uint32_t calls = at->in_window[i] & ((1u << most) - 1);
    uint32_t oldest = oldest_size(at, i, at->window_count[i], most);
    return quality(
        share(at->error_bits[i] & calls, reciprocal), share(at->empty_bits[i] & calls, reciprocal),
        growth(oldest, at->size[0][i]));
}

/* The new score of each lane, if it is not given. */
CELLIUM_INLINE double computed_progress(
    const RecordLanes *restrict at, int i, int newest_only)
{
    uint32_t calls = at->in_window[i] & RECENT_BITS, unproductive = at->unproductive[i];
    double reciprocal = reciprocal_of_recent(at->window_count[i], RECENT);
    double repeated = repetition(run_of(at->same[i], calls, newest_only), at->frequent_recent[i]);
    double tools = share(~at->repeated_tools[i] & calls, reciprocal);
    double score = clip(
        0.3 * recent_quality(at, i, RECENT, reciprocal)
            + 0.3 * (1.0 - share(unproductive, reciprocal))
            + 0.15 * (1.0 - share(at->empty_bits[i] & calls, reciprocal))
            + 0.15 * at_least(tools - repeated / 2.0, 0.0)
            + either(unproductive & 1, 0.0, 0.1)
            - 0.1 * repeated,
        0.0, 1.0);
    return either(calls & 1, score, 0.0);
}

CELLIUM_INLINE uint32_t stuck_after(
    const RecordLanes *restrict at, int i, double difference)
{
    uint32_t some = at->in_window[i] & 1, unproductive = at->unproductive[i];
    uint32_t stuck = at->stuck[i], good = some & ~unproductive;
    double recent = recent_quality(at, i, 3, reciprocal_of_recent(at->window_count[i], 3));
    uint32_t three_same = (at->window_count[i] >= 3) & ((at->same_signature[i] & 3) == 3);
    uint32_t rises = some & (
        (difference < -0.03) | ((unproductive & 3) == 3)
        | ((difference < 0.05) & ~good & (recent < 0.6) & three_same));
    uint32_t frees = (difference > 0.08) | (good & (recent >= 0.6));
    uint32_t eased = stuck - ((stuck > 0) & (difference > 0.0));
    return choose(rises, at_most_word(stuck + 1, 0xFFFF), eased & (frees - 1));
}

/* What the round changes: progress, trend, stuck. */
CELLIUM_INLINE void judge(
    RecordLanes *restrict at, const Policy *restrict policy, int newest_only, int first, int end)
{
    double alpha = policy->ema_alpha;
    for (int i = first; i < end; i++) {
        double given = at->given_progress[i];
        double progress = computed_progress(at, i, newest_only);
        progress = either(given == given, given, progress);
        at->difference[i] = progress - at->progress[i];
        at->progress[i] = progress;
    }
    for (int i = first; i < end; i++) {
        at->trend[i] = ema(at->difference[i], at->trend[i], alpha);
        at->stuck[i] = stuck_after(at, i, at->difference[i]);
    }
}

/* R^2 of the least-squares line through `count` equally spaced values, the newest one first.
   Differences from the newest value, and their products, are exact in double. */
static inline double r_squared(float newest, const float *earlier, int count)
{
    double total = 0.0, squares = 0.0, moments = 0.0;
    if (count < 3)
        return 0.0;
    for (int i = 1; i < count; i++) {
        double y = (double)earlier[i - 1] - newest;
        total += y;
        squares += y * y;
        moments += i * y;
    }
    double along = count * (count * count - 1.0) / 12.0;
    double across = squares - total * total / count;
    double covariance = moments - (count - 1) / 2.0 * total;
    /* Scores are kept in single precision: what is below its rounding is no variance. */
    if (across < 1e-12)
        return 0.0;
    return at_most(covariance * covariance / (along * across), 1.0);
}

CELLIUM_INLINE double trend_confidence(const Session *session)
{
    return r_squared((float)session->progress, session->history, session->history_count);
}

/* The rates of the whole session, growth over the sizes kept. */
CELLIUM_INLINE void describe_results(
    const RecordLanes *restrict at, FeatureLanes *restrict to, int first, int end)
{
    for (int i = first; i < end; i++) {
        double calls = real_of(at->calls[i]), most = at_least(calls, 1.0);
        uint32_t oldest = oldest_size(at, i, at->window_count[i], SIZES);
        double grown = growth(oldest, at->size[0][i]);
        to->error_rate[i] = real_of(at->errors[i]) / most;
        to->empty_rate[i] = real_of(at->empties[i]) / most;
        to->result_quality[i] = either(
            at->calls[i] != 0, quality(to->error_rate[i], to->empty_rate[i], grown), 0.0);
    }
}

CELLIUM_INLINE void describe_window(
    const RecordLanes *restrict at, const Policy *restrict policy, int newest_only,
    FeatureLanes *restrict to, int first, int end)
{
    uint32_t rounds = policy->count_failed_rounds != 0;
    for (int i = first; i < end; i++) {
        uint32_t calls = at->in_window[i] & RUN_BITS;
        Run run = run_of(at->same[i], calls, newest_only);
        uint32_t failed_calls = newest_run(at->error_bits[i] & calls) - 1;
        uint32_t transient = (at->round_calls[i] != 0)
            & (at->round_transient[i] == at->round_calls[i]);
        to->run_length[i] = run.length;
        to->newest_of_run[i] = run.newest;
        to->repetition_score[i] = repetition(run, at->frequent_run[i]);
        to->cycle[i] = cycle_length(at->same[i], at->window_count[i]);
        to->failures_in_row[i] = choose(
            rounds, choose(transient, 0, at->failed_rounds[i]), failed_calls);
        to->output_repeats[i] = at->output_run[i] & -((at->flags[i] & SESSION_OUTPUTS) != 0);
    }
}

/* Plateaus, and how sure the trend is where a rule or `wanted` asks for it: with a level trend, and
   where true_stagnation may fire. Elsewhere it is -1. */
CELLIUM_INLINE void describe_trend(
    const RecordLanes *restrict at, const Policy *restrict policy, int wanted,
    FeatureLanes *restrict to, int first, int end)
{
    double stuck_from = policy->true_stagnation_stuck, trend_below = policy->true_stagnation_trend;
    uint32_t asked[LANES], any = 0;
    for (int i = first; i < end; i++) {
        double trend = at->trend[i], difference = at->difference[i];
        double stuck = (double)(int32_t)at->stuck[i];
        uint32_t level = (fabs(trend) < 0.03) & (fabs(difference) < 0.05) & (stuck > 0.0)
            & (stuck < 5.0) & (to->result_quality[i] >= 0.55) & (to->error_rate[i] < 0.5);
        to->progress_score[i] = at->progress[i];
        to->progress_trend[i] = trend;
        to->progress_trend_raw[i] = difference;
        to->stuck_iterations[i] = at->stuck[i];
        to->trend_confidence[i] = -1.0;
        to->plateau[i] = level;
        asked[i] = level | (uint32_t)wanted | ((stuck >= stuck_from) & (trend < trend_below));
        any |= asked[i];
    }
    for (int i = first; any && i < end; i++)
        if (asked[i])
            to->trend_confidence[i] = trend_confidence(at->session[i]);
    for (int i = first; i < end; i++) {
        to->plateau[i] &= to->trend_confidence[i] < 0.6;
        to->making_progress[i] =
            (at->trend[i] > 0.03) | (at->progress[i] >= 0.7) | to->plateau[i];
    }
}

CELLIUM_INLINE void describe_limits(
    const RecordLanes *restrict at, FeatureLanes *restrict to, int first, int end)
{
    for (int i = first; i < end; i++) {
        double ratio = ratio_of(at->context_tokens[i], at->context_limit[i]);
        to->context_known[i] = ratio >= 0.0;
        to->context_ratio[i] = at_least(ratio, 0.0);
        to->rounds_left[i] = rounds_left(at->round[i], at->round_limit[i]);
    }
}

#endif
