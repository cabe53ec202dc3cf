/* Records to lanes and back. */

#ifndef CELLIUM_GATHER_H
#define CELLIUM_GATHER_H

#include <stddef.h>

#include "lanes.h"

/* Word k of those that records and lanes have in the same order; in a record it may hold several
   fields. */
CELLIUM_INLINE void *word_of(Session *session, int k)
{
    return (char *)session + offsetof(Session, sketch) + (size_t)k * sizeof(uint32_t);
}

CELLIUM_INLINE uint32_t *columns_of(RecordLanes *at)
{
    return (uint32_t *)((char *)at + offsetof(RecordLanes, sketch));
}

_Static_assert(
    offsetof(Session, pool) + sizeof(((Session *)0)->pool)
        == offsetof(Session, sketch) + RECORD_WORDS * sizeof(uint32_t),
    "the words of a record");
_Static_assert(
    offsetof(RecordLanes, stuck)
        == offsetof(RecordLanes, sketch) + RECORD_WORDS * LANES * sizeof(uint32_t),
    "the words of the lanes");

_Static_assert(LANES == 8, "transpose_in and transpose_out");

CELLIUM_INLINE void gather_words(RecordLanes *restrict at, int wide, int first, int end)
{
    if (end - first == LANES) {
        for (int k = 0; k < RECORD_WORDS; k += 4) {
            const void *from[LANES];
            for (int i = 0; i < LANES; i++)
                from[i] = word_of(at->session[i], k);
            transpose_in(wide, from, columns_of(at) + k * LANES);
        }
        return;
    }
    for (int i = first; i < end; i++)
        for (int k = 0; k < RECORD_WORDS; k++)
            memcpy(columns_of(at) + k * LANES + i, word_of(at->session[i], k), sizeof(uint32_t));
}

CELLIUM_INLINE void scatter_words(RecordLanes *restrict at, int wide, int first, int end)
{
    if (end - first == LANES) {
        for (int k = 0; k < RECORD_WORDS; k += 4) {
            void *to[LANES];
            for (int i = 0; i < LANES; i++)
                to[i] = word_of(at->session[i], k);
            transpose_out(wide, columns_of(at) + k * LANES, to);
        }
        return;
    }
    for (int i = first; i < end; i++)
        for (int k = 0; k < RECORD_WORDS; k++)
            memcpy(word_of(at->session[i], k), columns_of(at) + k * LANES + i, sizeof(uint32_t));
}

CELLIUM_INLINE void gather(
    RecordLanes *restrict at, FeatureLanes *restrict to, int wide, int first, int end)
{
    gather_words(at, wide, first, end);
    for (int i = first; i < end; i++) {
        const Session *session = at->session[i];
        at->context_tokens[i] = (double)session->context_tokens;
        at->context_limit[i] = (double)session->context_limit;
        at->progress[i] = session->progress;
        at->trend[i] = session->trend;
    }
    for (int i = first; i < end; i++) {
        at->stuck[i] = half_of(at->packed[0][i], 0);
        at->twins[i] = half_of(at->packed[0][i], 1);
        at->error_bits[i] = half_of(at->packed[1][i], 0);
        at->empty_bits[i] = half_of(at->packed[1][i], 1);
        at->window_count[i] = byte_of(at->packed[2][i], 0);
        at->history_count[i] = byte_of(at->packed[2][i], 1);
        at->output_run[i] = byte_of(at->packed[2][i], 2);
        at->failed_rounds[i] = byte_of(at->packed[2][i], 3);
        at->flags[i] = byte_of(at->packed[3][i], 0);
        at->repeated_tools[i] = byte_of(at->packed[3][i], 1);
        at->policy[i] = half_of(at->packed[3][i], 1);
        at->counted_error[i] = half_of(at->error_and_pool[i], 0);
        at->in_window[i] = (1u << at->window_count[i]) - 1;
    }
    for (int i = first; i < end; i++) {
        to->no_information[i] = byte_of(at->packed[4][i], 0);
        to->little_information[i] = byte_of(at->packed[4][i], 1);
        to->error_repeats[i] = byte_of(at->packed[4][i], 2);
        to->transient_rounds[i] = byte_of(at->packed[4][i], 3);
        to->idle_rounds[i] = byte_of(at->packed[5][i], 0);
        to->blank_rounds[i] = byte_of(at->packed[5][i], 1);
        to->text_repeats[i] = byte_of(at->packed[5][i], 2);
        to->unheeded_redirects[i] = byte_of(at->packed[5][i], 3);
        to->exhausted_rounds[i] = byte_of(at->packed[6][i], 0);
        at->compress_wait[i] = byte_of(at->packed[6][i], 1);
        at->compress_tries[i] = byte_of(at->packed[6][i], 2);
        to->round_repeats[i] = byte_of(at->packed[6][i], 3);
    }
}

CELLIUM_INLINE void gather_sizes(RecordLanes *restrict at, int wide, int first, int end)
{
    for (int i = first; i < end; i++)
        at->size[0][i] = at->session[i]->size[0];
    if (end - first == LANES) {
        const void *from[LANES];
        for (int i = 0; i < LANES; i++)
            from[i] = at->session[i]->size + 1;
        transpose_in(wide, from, at->size[1]);
        return;
    }
    for (int i = first; i < end; i++)
        for (int k = 1; k < SIZES; k++)
            at->size[k][i] = at->session[i]->size[k];
}

/* The score that a record holds moves into its history. */
CELLIUM_INLINE void scatter(
    RecordLanes *restrict at, const FeatureLanes *restrict to, int wide, int first, int end)
{
    for (int i = first; i < end; i++) {
        uint32_t scores = at_most_word(at->history_count[i] + 1, HISTORY);
        at->packed[0][i] = of_halves(at->stuck[i], at->twins[i]);
        at->packed[1][i] = of_halves(at->error_bits[i], at->empty_bits[i]);
        at->packed[2][i] = of_bytes(
            at->window_count[i], scores, at->output_run[i], at->failed_rounds[i]);
        at->packed[3][i] = of_bytes(at->flags[i], at->repeated_tools[i], 0, 0)
            | of_halves(0, at->policy[i]);
        at->error_and_pool[i] = of_halves(
            at->counted_error[i], half_of(at->error_and_pool[i], 1));
        at->packed[4][i] = of_bytes(
            to->no_information[i], to->little_information[i], to->error_repeats[i],
            to->transient_rounds[i]);
        at->packed[5][i] = of_bytes(
            to->idle_rounds[i], to->blank_rounds[i], to->text_repeats[i],
            to->unheeded_redirects[i]);
        at->packed[6][i] = of_bytes(
            to->exhausted_rounds[i], at->compress_wait[i], at->compress_tries[i],
            to->round_repeats[i]);
    }
    for (int i = first; i < end; i++) {
        Session *session = at->session[i];
        shift_words(session->history, HISTORY - 1);
        session->history[0] = (float)session->progress;
        session->progress = at->progress[i];
        session->trend = at->trend[i];
    }
    scatter_words(at, wide, first, end);
}

#endif
