/* Groups of sessions side by side: what stages 1 and 2 work on. A lane is one session, a column one
   field of all of them, so that compilers turn a loop over the lanes into vector code.

   Every formula stands in such a loop, over the lanes [first, end): all of a group at once, or one
   of them alone. Loops have no branches; a condition is 0 or 1. */

#ifndef CELLIUM_LANES_H
#define CELLIUM_LANES_H

#include "elementary.h"
#include "machine.h"
#include "mixing.h"

#define LANES 8

/* What a round changes in the records, and what it brings. The counters of evidence, which rules
   see as they are, stand in FeatureLanes. */
typedef struct {
    Session *session[LANES];
    double progress[LANES], trend[LANES];
    double context_tokens[LANES], context_limit[LANES];
    /* RECORD_WORDS words of a record, in its order; packed ones hold several fields each. */
    uint32_t sketch[2][LANES];
    uint32_t same_call[LANES], same_signature[LANES];
    uint32_t calls[LANES], errors[LANES], empties[LANES];
    uint32_t error[LANES], output[LANES], round_limit[LANES];
    uint32_t packed[7][LANES];
    uint32_t round_periods[LANES], compressed_tokens[LANES];
    uint32_t round_hashes[ROUND_HASHES / 2][LANES];
    uint32_t round[LANES];
    uint32_t error_and_pool[LANES];
    uint32_t stuck[LANES], twins[LANES], error_bits[LANES], empty_bits[LANES];
    uint32_t window_count[LANES], history_count[LANES], output_run[LANES], failed_rounds[LANES];
    uint32_t flags[LANES], repeated_tools[LANES], policy[LANES];
    uint32_t compress_wait[LANES], compress_tries[LANES];
    uint32_t counted_error[LANES];
    uint32_t in_window[LANES];                      /* a bit for each call in the window */
    uint32_t size[SIZES][LANES];
    /* The call that comes in, and which of the calls in the window have its hashes. */
    uint32_t signature[LANES], call[LANES], tool[LANES], result[LANES];
    uint32_t call_flags[LANES], call_size[LANES], call_limit[LANES];
    uint32_t equal_call[LANES], equal_result[LANES], equal_signature[LANES], equal_tool[LANES];
    /* The round as a whole. */
    uint32_t round_calls[LANES], round_errors[LANES], round_empties[LANES];
    uint32_t round_transient[LANES];
    uint32_t round_sum[LANES];                      /* of the hashes of its calls */
    uint32_t known_round[LANES];                    /* it is among the last ROUND_HASHES */
    uint32_t new_call[LANES];                       /* something by a call unlike the LAGS before */
    uint32_t sized, answered;                       /* whether all lanes tell sizes, results */
    uint32_t text[LANES];                           /* mixed */
    uint32_t new_sketch[2][LANES];                  /* as a record has it in memory */
    double given_progress[LANES];                   /* NaN = not given */
    /* Whether all of the last RECENT, or RUN_WINDOW, calls are of frequent tools. */
    uint32_t frequent_recent[LANES], frequent_run[LANES];
    /* What follows from these. */
    uint32_t same[LANES];                           /* same_call or same_signature */
    uint32_t unproductive[LANES];
    double difference[LANES];
} RecordLanes;

#define RECORD_WORDS 24

/* The features that rules see; names and ranges are those of Features. */
typedef struct {
    const Policy *policy;       /* of all lanes; NULL if they have several */
    double progress_score[LANES], progress_trend[LANES], progress_trend_raw[LANES];
    double trend_confidence[LANES], context_ratio[LANES], repetition_score[LANES];
    double error_rate[LANES], empty_rate[LANES], result_quality[LANES];
    int32_t rounds_left[LANES];
    uint32_t stuck_iterations[LANES];
    uint32_t run_length[LANES], newest_of_run[LANES];
    uint32_t cycle[LANES], output_repeats[LANES], failures_in_row[LANES];
    uint32_t information[LANES], slight[LANES], own_limit[LANES];
    uint32_t no_information[LANES], little_information[LANES];
    uint32_t round_repeats[LANES], call_repeats[LANES], result_repeats[LANES];
    uint32_t recent_failures[LANES], error_repeats[LANES], transient_rounds[LANES];
    uint32_t text_repeats[LANES], idle_rounds[LANES], blank_rounds[LANES];
    uint32_t unheeded_redirects[LANES], exhausted_rounds[LANES];
    uint32_t compress_ready[LANES], compression_failed[LANES];
    uint32_t context_known[LANES], plateau[LANES], making_progress[LANES];
} FeatureLanes;

CELLIUM_INLINE uint32_t choose(uint32_t condition, uint32_t yes, uint32_t no)
{
    return no ^ ((yes ^ no) & -condition);
}

CELLIUM_INLINE uint32_t pick(_Bool condition, uint32_t yes, uint32_t no)
{
    return condition ? yes : no;
}

CELLIUM_INLINE uint32_t at_most_word(uint32_t value, uint32_t high)
{
    return value < high ? value : high;
}

/* Place of the lowest bit that is set, of 24; there is one. */
CELLIUM_INLINE uint32_t lowest_place(uint32_t bits)
{
    float power = (float)(int32_t)(bits & -bits);
    uint32_t exponent;
    memcpy(&exponent, &power, sizeof exponent);
    return (exponent >> 23) - 127;
}

CELLIUM_INLINE uint32_t bits_set_of_4(uint32_t bits)
{
    uint32_t pairs = bits - (bits >> 1 & 5);
    return (pairs & 3) + (pairs >> 2);
}

#endif
