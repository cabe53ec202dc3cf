/* What a round brought, what that adds up to, and how far the ladder of interventions was climbed.
   Formulas: docs/semantics.md, "What a round brought" and "The ladder". */

#ifndef CELLIUM_EVIDENCE_H
#define CELLIUM_EVIDENCE_H

#include "sketch.h"
#include "window.h"

#define CYCLE_LONGEST ROUND_HASHES

CELLIUM_INLINE uint32_t one_more(uint32_t count)
{
    return at_most_word(count + 1, 255);
}

CELLIUM_INLINE uint32_t larger_word(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

CELLIUM_INLINE uint32_t one_less(uint32_t count)
{
    return larger_word(count, 1) - 1;
}

CELLIUM_INLINE uint32_t bits_set_of_12(uint32_t bits)
{
    uint32_t pairs = bits - (bits >> 1 & 0x555);
    uint32_t fours = (pairs & 0x333) + (pairs >> 2 & 0x333);
    return (fours + (fours >> 4) + (fours >> 8)) & 0xF;
}

/* --- Each call --- */

/* A round begins: nothing is judged yet. */
CELLIUM_INLINE void begin_judging(
    RecordLanes *restrict at, FeatureLanes *restrict to, int first, int end)
{
    for (int i = first; i < end; i++) {
        to->information[i] = NOT_JUDGED;
        to->call_repeats[i] = to->result_repeats[i] = 0;
        at->round_sum[i] = 0;
        at->new_call[i] = 0;
        to->slight[i] = 1;
        to->own_limit[i] = NO_LIMIT;
    }
}

/* Repeats that the policy grants a tool; 0 = the tool has no limit of its own. */
static inline uint32_t limit_of_tool(const Policy *policy, uint32_t tool)
{
    for (int k = 0; k < policy->limited_tool_count; k++)
        if (policy->limited_tools[k] == tool)
            return policy->tool_limits[k];
    return 0;
}

CELLIUM_INLINE void find_limits(
    RecordLanes *restrict at, const Policy *restrict policy, int first, int end)
{
    for (int i = first; i < end; i++)
        at->call_limit[i] = 0;
    for (int i = first; policy->limited_tool_count && i < end; i++)
        at->call_limit[i] = limit_of_tool(policy, at->tool[i]);
}

/* A hash whose sums tell sets of calls apart: those that calls are kept by are sums themselves. */
CELLIUM_INLINE uint32_t scattered(uint32_t hash)
{
    hash = (hash ^ hash >> 15) * 0x9E3779B1u;
    return (hash ^ hash >> 13) * 0x85EBCA77u;
}

/* The call that push_call took in. */
CELLIUM_INLINE void judge_call(
    RecordLanes *restrict at, const Policy *restrict policy, FeatureLanes *restrict to,
    int first, int end)
{
    uint32_t longest = policy->slight_result;
    find_limits(at, policy, first, end);
    for (int i = first; i < end; i++) {
        uint32_t flags = at->call_flags[i], own = at->call_limit[i] != 0;
        uint32_t failed = flags & CALL_ERROR;
        uint32_t empty = (flags & CALL_EMPTY) / CALL_EMPTY;
        uint32_t transient = failed & (flags & CALL_TRANSIENT) / CALL_TRANSIENT;
        uint32_t acknowledged = (flags & CALL_ACKNOWLEDGED) / CALL_ACKNOWLEDGED;
        uint32_t slight = (failed ^ 1) & at->sized & (at->call_size[i] <= longest);
        uint32_t known = choose(slight, LITTLE, NOTHING);
        uint32_t brought = choose(acknowledged, ACKNOWLEDGEMENT, known);
        brought = choose(at->answered & (at->equal_result[i] != 0), brought, NEWS);
        brought = choose(empty, choose(acknowledged, ACKNOWLEDGEMENT, LITTLE), brought);
        brought = choose(at->equal_call[i] != 0, known, brought);
        brought = choose(failed, NOTHING, brought);
        brought = choose(transient | (own & (brought != NEWS)), NOT_JUDGED, brought);
        uint32_t results = bits_set_of_12(at->equal_result[i]) + 1;
        results &= -((brought == NOTHING) & (failed ^ 1));
        to->information[i] = larger_word(to->information[i], brought);
        to->slight[i] &= slight;
        to->own_limit[i] = at_most_word(to->own_limit[i], at->call_limit[i]);
        to->call_repeats[i] = larger_word(
            to->call_repeats[i], bits_set_of_12(at->equal_call[i]) + 1);
        to->result_repeats[i] = larger_word(to->result_repeats[i], results);
        at->round_sum[i] += scattered(at->call[i]);
        at->new_call[i] |= (at->equal_signature[i] == 0) & (brought >= ACKNOWLEDGEMENT);
        at->twins[i] &= ~(0xFu & -own);
    }
}

/* --- Each round --- */

/* Of a round of many calls, the first ones may have left the window before it came again. So such a
   round is looked for among the last rounds too, and brings nothing if it is there. */
CELLIUM_INLINE void settle_judging(
    RecordLanes *restrict at, FeatureLanes *restrict to, int first, int end)
{
    for (int i = first; i < end; i++) {
        _Bool some = at->round_calls[i] != 0;
        _Bool again = (at->known_round[i] != 0) & (to->information[i] >= ACKNOWLEDGEMENT)
            & (at->round_calls[i] > 1);
        to->own_limit[i] = pick(some, to->own_limit[i], 0);
        to->slight[i] = pick(some, to->slight[i], 0);
        uint32_t old = pick(to->slight[i] != 0, LITTLE, NOTHING);
        to->information[i] = pick(again, old, to->information[i]);
        at->new_call[i] = pick(again, 0, at->new_call[i]);
    }
}

CELLIUM_INLINE void count_information(FeatureLanes *restrict to, int first, int end)
{
    for (int i = first; i < end; i++) {
        uint32_t brought = to->information[i];
        uint32_t none = to->no_information[i], little = to->little_information[i];
        none = pick(brought == NOTHING, one_more(none), none);
        none = pick(brought == ACKNOWLEDGEMENT, one_less(none), none);
        little = pick((brought == NOTHING) | (brought == LITTLE), one_more(little), little);
        little = pick(brought == ACKNOWLEDGEMENT, one_less(little), little);
        to->no_information[i] = pick(brought == NEWS, 0, none);
        to->little_information[i] = pick(brought == NEWS, 0, little);
    }
}

CELLIUM_INLINE void count_errors(
    RecordLanes *restrict at, const Policy *restrict policy, FeatureLanes *restrict to,
    int first, int end)
{
    int32_t longest = at->sized ? (int32_t)policy->slight_error : -1;
    for (int i = first; i < end; i++) {
        _Bool some = at->round_calls[i] != 0;
        _Bool failed = some & (at->round_errors[i] == at->round_calls[i]);
        _Bool transient = some & (at->round_transient[i] == at->round_calls[i]);
        uint32_t repeats = to->error_repeats[i];
        _Bool telling = (int32_t)at_most_word(at->call_size[i], 0x7FFFFFFF) > longest;
        uint32_t error = at->error[i] & 0xFFFF;
        _Bool same = telling & (repeats != 0) & (error == at->counted_error[i]);
        _Bool passed_over = !some | transient | (to->own_limit[i] != 0);
        uint32_t counted = pick(failed, pick(same, one_more(repeats), 1), 0);
        uint32_t waits = pick(transient, one_more(to->transient_rounds[i]), 0);
        to->error_repeats[i] = pick(passed_over, repeats, counted);
        at->counted_error[i] = pick(passed_over | !failed, at->counted_error[i], error);
        to->transient_rounds[i] = pick(some, waits, to->transient_rounds[i]);
    }
}

/* Of each period from 2 to CYCLE_LONGEST, whether the newest rounds equal those one period before
   them: as many bits as it has rounds, or four. Bits of longer periods are higher. */
#define ROUNDS_OF_PERIOD(period) ((period) == 2 ? 4 : (period))
#define PLACE_OF_PERIOD(period) ((period) == 2 ? 0 : (period) * ((period) - 1) / 2 + 1)
#define BITS_OF_PERIOD(period) (((1u << ROUNDS_OF_PERIOD(period)) - 1) << PLACE_OF_PERIOD(period))
/* Above them, 10 bits more of the hash of the newest round: runs of rounds are told by 26 bits. */
#define ALL_PERIODS 0x3FFFFFu
/* What stays when all are shifted: no bit moves into the next period's. */
#define PERIODS_KEPT (ALL_PERIODS & ~(1u | 1u << 4 | 1u << 7 | 1u << 11 | 1u << 16))

CELLIUM_INLINE uint32_t hash_of_round(const uint32_t *restrict hashes, uint32_t age)
{
    return hashes[age / 2 * LANES] >> 16 * (age % 2) & 0xFFFF;
}

/* The round among those before it. One that failed transiently ends what went on before: waiting
   and trying again is no cycle. */
CELLIUM_INLINE void push_round(
    RecordLanes *restrict at, FeatureLanes *restrict to, int first, int end)
{
    for (int i = first; i < end; i++) {
        uint32_t *hashes = &at->round_hashes[0][i];
        _Bool some = at->round_calls[i] != 0;
        _Bool transient = some & (at->round_transient[i] == at->round_calls[i]);
        uint32_t hash = at->round_sum[i] * 0x9E3779B1u;
        uint32_t more = hash << 22;
        hash >>= 16;
        hash += hash == 0;
        uint32_t periods = at->round_periods[i] << 1 & PERIODS_KEPT;
        uint32_t known = 0;
        for (uint32_t period = 2; period <= CYCLE_LONGEST; period++) {
            uint32_t equal = hash == hash_of_round(hashes, period - 1);
            periods |= equal << PLACE_OF_PERIOD(period);
            /* Two in a row: one alone may be a chance of 16 bits. */
            known |= (periods >> PLACE_OF_PERIOD(period) & 3) == 3;
        }
        _Bool same = (hash == hash_of_round(hashes, 0))
            & (more == (at->round_periods[i] & ~ALL_PERIODS));
        uint32_t repeats = pick(same, one_more(to->round_repeats[i]), 1);
        at->known_round[i] = known | same;
        at->round_periods[i] = pick(some, periods | more, at->round_periods[i]);
        to->round_repeats[i] = pick(some, repeats, to->round_repeats[i]);
        uint32_t one = at->round_hashes[0][i], two = at->round_hashes[1][i];
        at->round_hashes[0][i] = pick(some, one << 16 | hash, one);
        at->round_hashes[1][i] = pick(some, two << 16 | one >> 16, two);
        at->round_hashes[2][i] = pick(
            some, at->round_hashes[2][i] << 16 | two >> 16, at->round_hashes[2][i]);
        at->round_periods[i] = pick(transient, 0, at->round_periods[i]);
        to->round_repeats[i] = pick(transient, 0, to->round_repeats[i]);
        for (int k = 0; k < ROUND_HASHES / 2; k++)
            at->round_hashes[k][i] = pick(transient, 0, at->round_hashes[k][i]);
    }
}

/* The shortest cycle that the newest rounds run through, not all of them equal; else 0. */
CELLIUM_INLINE uint32_t cycle_of_rounds(uint32_t periods, uint32_t repeats)
{
    uint32_t cycle = 0;
    for (uint32_t period = CYCLE_LONGEST; period >= 2; period--) {
        uint32_t all = BITS_OF_PERIOD(period);
        cycle = pick(((periods & all) == all) & (repeats < period), period, cycle);
    }
    return cycle;
}

CELLIUM_INLINE void count_texts(
    RecordLanes *restrict at, const Policy *restrict policy, FeatureLanes *restrict to,
    int first, int end)
{
    uint32_t least = policy->near_duplicate;
    for (int i = first; i < end; i++) {
        _Bool idle = at->round_calls[i] == 0, blank = idle & (at->text[i] == 0);
        to->idle_rounds[i] = pick(idle, one_more(to->idle_rounds[i]), 0);
        to->blank_rounds[i] = pick(blank, one_more(to->blank_rounds[i]), 0);
    }
    for (int i = first; i < end; i++) {
        uint32_t first_new = at->new_sketch[0][i], last_new = at->new_sketch[1][i];
        uint32_t first_old = at->sketch[0][i], last_old = at->sketch[1][i];
        _Bool told = (first_new | last_new) != 0, comparable = (first_old | last_old) != 0;
        _Bool near = comparable & (alike(first_new, last_new, first_old, last_old) >= least);
        uint32_t repeats = pick(near, one_more(to->text_repeats[i]), 0);
        repeats = pick(told, repeats, to->text_repeats[i]);
        to->text_repeats[i] = pick(to->information[i] == NEWS, 0, repeats);
        at->sketch[0][i] = pick(told, first_new, first_old);
        at->sketch[1][i] = pick(told, last_new, last_old);
    }
}

/* --- The ladder --- */

CELLIUM_INLINE void count_compression(
    RecordLanes *restrict at, const Policy *restrict policy, FeatureLanes *restrict to,
    int first, int end)
{
    double full = policy->context_exhausted_saturation;
    double critical = policy->context_critical_saturation;
    uint32_t cooldown = policy->compress_cooldown, tries = policy->compress_tries;
    for (int i = first; i < end; i++) {
        double tokens = at->context_tokens[i], before = real_of(at->compressed_tokens[i]);
        double ratio = to->context_ratio[i];
        _Bool known = to->context_known[i] != 0;
        _Bool helped = (tokens >= 0.0) & (tokens < 0.9 * before);
        _Bool exhausted = known & (ratio >= full);
        at->compress_tries[i] = pick(helped, 0, at->compress_tries[i]);
        at->compressed_tokens[i] = pick(helped, 0, at->compressed_tokens[i]);
        to->exhausted_rounds[i] = pick(exhausted, one_more(to->exhausted_rounds[i]), 0);
        at->compress_wait[i] = one_more(at->compress_wait[i]);
        _Bool waited = at->compress_wait[i] >= cooldown;
        _Bool hopeful = at->compress_tries[i] < tries;
        to->compress_ready[i] = waited & hopeful;
        to->compression_failed[i] = known & (ratio >= critical) & waited & !hopeful;
    }
}

CELLIUM_INLINE void count_redirects(
    RecordLanes *restrict at, FeatureLanes *restrict to, int first, int end)
{
    for (int i = first; i < end; i++) {
        _Bool some = at->round_calls[i] != 0;
        uint32_t heeds = at->new_call[i], flags = at->flags[i];
        _Bool heeded = (heeds != 0) & ((flags & SESSION_HEEDING) != 0);
        to->unheeded_redirects[i] = pick(heeded, 0, to->unheeded_redirects[i]);
        uint32_t noted = (flags & ~(uint32_t)SESSION_HEEDING) | heeds * SESSION_HEEDING;
        at->flags[i] = pick(some, noted, flags);
        to->recent_failures[i] = bits_set_of_12(at->error_bits[i] & at->in_window[i]);
    }
}

/* All of it, once calls and errors are counted and the context is described. */
CELLIUM_INLINE void weigh_evidence(
    RecordLanes *restrict at, const Policy *restrict policy, FeatureLanes *restrict to,
    int first, int end)
{
    push_round(at, to, first, end);
    settle_judging(at, to, first, end);
    count_information(to, first, end);
    count_errors(at, policy, to, first, end);
    count_texts(at, policy, to, first, end);
    count_compression(at, policy, to, first, end);
    count_redirects(at, to, first, end);
}

CELLIUM_INLINE void describe_rounds(
    const RecordLanes *restrict at, const Policy *restrict policy, FeatureLanes *restrict to,
    int first, int end)
{
    uint32_t rounds = policy->count_round_cycles != 0;
    for (int i = first; rounds && i < end; i++) {
        uint32_t brought = to->information[i];
        _Bool old = (brought == NOTHING) | (brought == LITTLE);
        uint32_t cycle = cycle_of_rounds(at->round_periods[i], to->round_repeats[i]);
        to->cycle[i] = pick(old, cycle, 0);
    }
}

#endif
