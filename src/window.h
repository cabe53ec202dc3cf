/* The window of a session's last calls: pushing calls, and what runs, cycles and rates read.

   Calls are compared once, as they come in: bit histories say which call equals the one 1, 2 or 3
   before it, and each of the newest calls knows its nearest twin. Runs, cycles, rates and staleness
   are read off these with masks and shifts. */

#ifndef CELLIUM_WINDOW_H
#define CELLIUM_WINDOW_H

#include "lanes.h"

/* Of three histories of 10 bits, those that a shift does not push into the next one. */
#define LAGS_KEPT (0x3FE | 0x3FE << 10 | 0x3FE << 20)
#define RECENT_BITS 0xF
#define RUN_BITS 0x3FF
#define WINDOW_BITS 0xFFF
/* The calls that one more is compared with: arrays keep one less than the window. */
#define KEPT_BITS (WINDOW_BITS >> 1)
#define LAGS_BITS 0x7

/* Shift in whether a call equals the one 1, 2, 3 before it: bits 0, 1, 2 of `equal`. */
CELLIUM_INLINE uint32_t push_lags(uint32_t history, uint32_t equal)
{
    return (history << 1 & LAGS_KEPT) | (equal & 1) | (equal & 2) << 9 | (equal & 4) << 18;
}

/* One call of each lane into the arrays of its record, compared with those before it. What stands
   behind an array is compared as well: push_call masks it. */
CELLIUM_INLINE void push_arrays(RecordLanes *restrict at, int first, int end)
{
    for (int i = first; i < end; i++) {
        Session *session = at->session[i];
        at->equal_call[i] = equal_words_12(session->call, at->call[i]);
        at->equal_result[i] = equal_halves_16(session->result, at->result[i]);
        at->equal_signature[i] = equal_words_4(session->signature, at->signature[i]);
        at->equal_tool[i] = equal_words_4(session->tool, at->tool[i]);
        shift_words(session->signature, LAGS);
        shift_words(session->call, WINDOW - 1);
        shift_bytes(
            session->result, sizeof session->result - sizeof(uint16_t), sizeof(uint16_t));
        shift_words(session->tool, RUN_WINDOW);
        shift_words(session->size, SIZES);
        session->signature[0] = at->signature[i];
        session->call[0] = at->call[i];
        session->result[0] = (uint16_t)at->result[i];
        session->tool[0] = at->tool[i];
        session->size[0] = at->call_size[i];
    }
}

/* One call of each lane. The histories of lags may compare with a call that is not in the window:
   they are masked when they are read. */
CELLIUM_INLINE void push_call(RecordLanes *restrict at, int first, int end)
{
    push_arrays(at, first, end);
    for (int i = first; i < end; i++) {
        uint32_t failed = at->call_flags[i] & CALL_ERROR;
        uint32_t empty = (at->call_flags[i] & CALL_EMPTY) / CALL_EMPTY;
        /* The distance to the nearest call like it; the bit beyond the window turns none into 0. */
        at->same_call[i] = push_lags(at->same_call[i], at->equal_call[i]);
        at->same_signature[i] = push_lags(at->same_signature[i], at->equal_signature[i]);
        uint32_t kept = at->in_window[i] & KEPT_BITS;
        at->equal_call[i] &= kept;
        at->equal_result[i] &= kept;
        at->equal_signature[i] &= kept & LAGS_BITS;
        uint32_t equal = at->equal_call[i] | 1 << 15;
        at->twins[i] = (at->twins[i] << 4 | ((lowest_place(equal) + 1) & 15)) & 0xFFFF;
        at->repeated_tools[i] = (at->repeated_tools[i] | at->equal_tool[i]) << 1 & RECENT_BITS;
        at->error_bits[i] = (at->error_bits[i] << 1 | failed) & 0xFFFF;
        at->empty_bits[i] = (at->empty_bits[i] << 1 | empty) & 0xFFFF;
        at->error[i] = choose(failed, at->result[i], at->error[i]);
        at->window_count[i] += at->window_count[i] < WINDOW;
        at->in_window[i] = (at->in_window[i] << 1 | 1) & WINDOW_BITS;
    }
}

CELLIUM_INLINE uint32_t add_saturating(uint32_t value, uint32_t more)
{
    uint32_t total = value + more;
    return choose(total < more, 0xFFFFFFFF, total);
}

/* Counts of the session, and of rounds in a row whose calls all failed. */
CELLIUM_INLINE void count_calls(RecordLanes *restrict at, int first, int end)
{
    for (int i = first; i < end; i++) {
        uint32_t some = at->round_calls[i] != 0;
        uint32_t failed = at->round_errors[i] == at->round_calls[i];
        uint32_t counts = some & (at->round_transient[i] != at->round_calls[i]);
        uint32_t in_row = at_most_word(at->failed_rounds[i] + 1, RUN_WINDOW) & -failed;
        at->calls[i] = add_saturating(at->calls[i], at->round_calls[i]);
        at->errors[i] = add_saturating(at->errors[i], at->round_errors[i]);
        at->empties[i] = add_saturating(at->empties[i], at->round_empties[i]);
        at->failed_rounds[i] = choose(counts, in_row, at->failed_rounds[i]);
    }
}

/* Length of the run of equal calls that ends at the newest. Bit i: call i equals the next one. */
CELLIUM_INLINE uint32_t newest_run(uint32_t equal_next)
{
    return 1 + lowest_place(~equal_next);
}

typedef struct {
    uint32_t length, newest;    /* `newest`: position of its newest call */
} Run;

/* The longest run of at most RUN_WINDOW calls. */
CELLIUM_INLINE Run longest_run(uint32_t equal_next)
{
    /* What is left in round k marks the runs of more than k calls by their newest call. */
    uint32_t length = 1, marks = 1;
    for (int k = 1; k < RUN_WINDOW; k++) {
        uint32_t some = equal_next != 0;
        length += some;
        marks = choose(some, equal_next, marks);
        equal_next &= equal_next >> 1;
    }
    return (Run){length, lowest_place(marks)};
}

static inline uint32_t longest_run_length(uint32_t equal_next)
{
    return longest_run(equal_next).length;
}

CELLIUM_INLINE double run_score(uint32_t length)
{
    return at_least(at_most(((double)(int32_t)length - 2.0) / 4.0, 1.0), 0.0);
}

/* Of a histories of lags, as push_lags makes them: bit i = call i equals the call `lag` before it,
   for the calls of a mask. */
CELLIUM_INLINE uint32_t equal_at(uint32_t same, uint32_t calls, int lag)
{
    return same >> 10 * (lag - 1) & calls >> lag;
}

/* The run that repetition rests on among the calls of a mask, at most RUN_BITS. */
CELLIUM_INLINE Run run_of(uint32_t same, uint32_t calls, int newest_only)
{
    uint32_t equal_next = equal_at(same, calls, 1), some = calls & 1;
    Run run = newest_only ? (Run){newest_run(equal_next), 0} : longest_run(equal_next);
    return (Run){run.length & -some, run.newest};
}

CELLIUM_INLINE double repetition(Run run, uint32_t frequent)
{
    double score = run_score(run.length);
    return either(frequent, score * 0.6, score);
}

/* At most two tools among the last `count` calls, all among the policy's frequent ones. */
static inline int only_frequent_tools(const Session *session, const Policy *policy, int count)
{
    uint32_t one = session->tool[0], other = one;
    for (int i = 0; i < count; i++) {
        uint32_t tool = session->tool[i];
        int k = 0;
        while (k < policy->frequent_tool_count && policy->frequent_tools[k] != tool)
            k++;
        if (k == policy->frequent_tool_count)
            return 0;
        if (tool != one && other != one && tool != other)
            return 0;
        if (tool != one)
            other = tool;
    }
    return 1;
}

/* 2: the last four calls read A B A B, A != B; 3: the last six read A B C A B C; else 0. */
CELLIUM_INLINE uint32_t cycle_length(uint32_t same, uint32_t count)
{
    uint32_t two = (count >= 4) & (equal_at(same, 0xF, 2) == 3) & ~same;
    uint32_t three = (count >= 6) & (equal_at(same, 0x3F, 3) == 7);
    return choose(two & 1, 2, 3 * three);
}

/* Of the newest RECENT calls: those with a call like them still in the window. All at once, in the
   4 bits that each has: its distance to its twin is not 0, and with its own place added stays below
   WINDOW = 12 = 0b1100. */
CELLIUM_INLINE uint32_t stale_bits(uint32_t twins)
{
    uint32_t places = twins + 0x3210;
    uint32_t some = twins | twins >> 1 | twins >> 2 | twins >> 3;
    uint32_t stale = some & ~(places >> 3 & places >> 2) & 0x1111;
    return stale * 0x1248 >> 12 & RECENT_BITS;     /* bits 0, 4, 8, 12 side by side */
}

/* What the policy takes for equal, and for unproductive among the last RECENT calls: errors, and
   empty or stale ones. */
CELLIUM_INLINE void apply_policy(
    RecordLanes *restrict at, const Policy *restrict policy, int first, int end)
{
    uint32_t whole = policy->match_results != 0;
    uint32_t empty = -(uint32_t)(policy->empty_is_unproductive != 0);
    uint32_t stale = -(uint32_t)(policy->stale_is_unproductive != 0);
    for (int i = first; i < end; i++) {
        uint32_t bits = at->error_bits[i] | (at->empty_bits[i] & empty)
            | (stale_bits(at->twins[i]) & stale);
        at->same[i] = choose(whole, at->same_call[i], at->same_signature[i]);
        at->unproductive[i] = bits & at->in_window[i] & RECENT_BITS;
    }
}

#endif
