/* One session's round, out of the columns of a batch. */

#ifndef CELLIUM_ROUNDS_H
#define CELLIUM_ROUNDS_H

#include <math.h>

#include "machine.h"

/* Without sketches, equal texts are alike. */
CELLIUM_INLINE uint64_t sketch_of_row(const Batch *batch, Py_ssize_t i)
{
    const uint64_t *column = batch->text_sketch ? batch->text_sketch : batch->text;
    return column ? column[i] : 0;
}

CELLIUM_INLINE Round read_round(const Batch *batch, Py_ssize_t i)
{
    int64_t first = batch->call_offsets ? batch->call_offsets[i] : 0;
    Round round;
    round.calls = batch->call_offsets ? batch->call_offsets[i + 1] - first : 0;
    round.tool = batch->call_tool ? batch->call_tool + first : NULL;
    round.signature = batch->call_signature ? batch->call_signature + first : NULL;
    round.shape = batch->call_shape ? batch->call_shape + first : NULL;
    round.result = batch->call_result ? batch->call_result + first : NULL;
    round.flags = batch->call_flags ? batch->call_flags + first : NULL;
    round.size = batch->call_size ? batch->call_size + first : NULL;
    round.text = batch->text ? batch->text[i] : 0;
    round.sketch = sketch_of_row(batch, i);
    round.context_tokens = batch->context_tokens ? batch->context_tokens[i] : -1;
    round.context_limit = batch->context_limit ? batch->context_limit[i] : -1;
    round.progress = batch->progress ? batch->progress[i] : NAN;
    round.reward = batch->reward_given ? batch->reward_given[i] : NAN;
    round.success = batch->success ? batch->success[i] : -1;
    round.event = batch->event ? batch->event[i] : EVENT_NONE;
    return round;
}

/* Whether each of `count` rounds from `i` on has one call. */
CELLIUM_INLINE int have_one_call(const Batch *batch, Py_ssize_t i, int count)
{
    int64_t other = 0;
    if (!batch->call_offsets)
        return 0;
    for (int k = 0; k < count; k++)
        other |= batch->call_offsets[i + k + 1] - batch->call_offsets[i + k] - 1;
    return other == 0;
}

#endif
