/* Records to lanes and back. */

#ifndef CELLIUM_GATHER_H
#define CELLIUM_GATHER_H

#include <stddef.h>

#include "lanes.h"

/* Word k of those that records and lanes have in the same order; in a record it may hold several
   fields. */
CELLIUM_INLINE void *word_of(Session *session, int k)
{
    return (char *)session + offsetof(Session, same_call) + (size_t)k * sizeof(uint32_t);
}

CELLIUM_INLINE uint32_t *columns_of(RecordLanes *at)
{
    return (uint32_t *)((char *)at + offsetof(RecordLanes, same_call));
}

_Static_assert(
    offsetof(Session, round_hashes) + sizeof(((Session *)0)->round_hashes)
        == offsetof(Session, same_call) + RECORD_WORDS * sizeof(uint32_t),
    "the words of a record");
_Static_assert(
    offsetof(RecordLanes, stuck)
        == offsetof(RecordLanes, same_call) + RECORD_WORDS * LANES * sizeof(uint32_t),
    "the words of the lanes");

CELLIUM_INLINE void gather_words(RecordLanes *restrict at, int first, int end)
{
    if (end - first == LANES) {
        for (int i = 0; i < LANES; i += 4)
            for (int k = 0; k < RECORD_WORDS; k += 4) {
                const void *const from[4] = {
                    word_of(at->session[i], k), word_of(at->session[i + 1], k),
                    word_of(at->session[i + 2], k), word_of(at->session[i + 3], k),
                };
                transpose(from, columns_of(at) + k * LANES + i, LANES);
            }
        return;
    }
    for (int i = first; i < end; i++)
        for (int k = 0; k < RECORD_WORDS; k++)
            memcpy(columns_of(at) + k * LANES + i, word_of(at->session[i], k), sizeof(uint32_t));
}

CELLIUM_INLINE void scatter_words(RecordLanes *restrict at, int first, int end)
{
    if (end - first == LANES) {
        for (int i = 0; i < LANES; i += 4)
            for (int k = 0; k < RECORD_WORDS; k += 4) {
                uint32_t rows[4][4];
                const uint32_t *column = columns_of(at) + k * LANES + i;
                const void *const from[4] = {
                    column, column + LANES, column + 2 * LANES, column + 3 * LANES,
                };
                transpose(from, rows[0], 4);
                for (int j = 0; j < 4; j++)
                    memcpy(word_of(at->session[i + j], k), rows[j], sizeof rows[j]);
            }
        return;
    }
    for (int i = first; i < end; i++)
        for (int k = 0; k < RECORD_WORDS; k++)
            memcpy(word_of(at->session[i], k), columns_of(at) + k * LANES + i, sizeof(uint32_t));
}

CELLIUM_INLINE void gather(RecordLanes *restrict at, int first, int end)
{
    gather_words(at, first, end);
    for (int i = first; i < end; i++) {
        const Session *session = at->session[i];
        at->context_tokens[i] = (double)session->context_tokens;
        at->context_limit[i] = (double)session->context_limit;
        at->progress[i] = session->progress;
        at->trend[i] = session->trend;
        at->round[i] = session->round;
        at->sketch[i] = session->sketch;
        at->counted_error[i] = session->counted_error;
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
        at->in_window[i] = (1u << at->window_count[i]) - 1;
    }
    for (int i = first; i < end; i++) {
        at->no_information[i] = byte_of(at->packed[4][i], 0);
        at->little_information[i] = byte_of(at->packed[4][i], 1);
        at->error_repeats[i] = byte_of(at->packed[4][i], 2);
        at->transient_rounds[i] = byte_of(at->packed[4][i], 3);
        at->idle_rounds[i] = byte_of(at->packed[5][i], 0);
        at->blank_rounds[i] = byte_of(at->packed[5][i], 1);
        at->text_repeats[i] = byte_of(at->packed[5][i], 2);
        at->unheeded_redirects[i] = byte_of(at->packed[5][i], 3);
        at->exhausted_rounds[i] = byte_of(at->packed[6][i], 0);
        at->compress_wait[i] = byte_of(at->packed[6][i], 1);
        at->compress_tries[i] = byte_of(at->packed[6][i], 2);
        at->round_repeats[i] = byte_of(at->packed[6][i], 3);
    }
}

CELLIUM_INLINE void gather_sizes(RecordLanes *restrict at, int first, int end)
{
    for (int i = first; i < end; i++)
        at->size[0][i] = at->session[i]->size[0];
    if (end - first == LANES) {
        for (int i = 0; i < LANES; i += 4) {
            const void *const from[4] = {
                at->session[i]->size + 1, at->session[i + 1]->size + 1,
                at->session[i + 2]->size + 1, at->session[i + 3]->size + 1,
            };
            transpose(from, &at->size[1][i], LANES);
        }
        return;
    }
    for (int i = first; i < end; i++)
        for (int k = 1; k < SIZES; k++)
            at->size[k][i] = at->session[i]->size[k];
}

/* The score that a record holds moves into its history. */
CELLIUM_INLINE void scatter(RecordLanes *restrict at, int first, int end)
{
    for (int i = first; i < end; i++) {
        uint32_t scores = at_most_word(at->history_count[i] + 1, HISTORY);
        at->packed[0][i] = of_halves(at->stuck[i], at->twins[i]);
        at->packed[1][i] = of_halves(at->error_bits[i], at->empty_bits[i]);
        at->packed[2][i] = of_bytes(
            at->window_count[i], scores, at->output_run[i], at->failed_rounds[i]);
        at->packed[3][i] = of_bytes(at->flags[i], at->repeated_tools[i], 0, 0)
            | of_halves(0, at->policy[i]);
        at->packed[4][i] = of_bytes(
            at->no_information[i], at->little_information[i], at->error_repeats[i],
            at->transient_rounds[i]);
        at->packed[5][i] = of_bytes(
            at->idle_rounds[i], at->blank_rounds[i], at->text_repeats[i],
            at->unheeded_redirects[i]);
        at->packed[6][i] = of_bytes(
            at->exhausted_rounds[i], at->compress_wait[i], at->compress_tries[i],
            at->round_repeats[i]);
    }
    for (int i = first; i < end; i++) {
        Session *session = at->session[i];
        shift_words(session->history, HISTORY - 1);
        session->history[0] = (float)session->progress;
        session->progress = at->progress[i];
        session->trend = at->trend[i];
        session->sketch = at->sketch[i];
        session->counted_error = (uint16_t)at->counted_error[i];
    }
    scatter_words(at, first, end);
}

#endif
