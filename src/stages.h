/* Stages 1 and 2 over sessions of a batch, a group at a time, and over one session alone. */

#ifndef CELLIUM_STAGES_H
#define CELLIUM_STAGES_H

#include "extraction.h"
#include "gather.h"
#include "rounds.h"
#include "rules.h"
#include "variants.h"

#define FEATURE_LANES_BYTES ((int)sizeof(FeatureLanes))

/* --- Rounds to lanes --- */

CELLIUM_INLINE const uint64_t *signatures_of(const Policy *policy, const Round *round)
{
    return policy->see_through_volatile && round->shape ? round->shape : round->signature;
}

/* Those calls of a round of many that would leave the window within it are part of the round. */
CELLIUM_INLINE void add_dropped_calls(
    RecordLanes *restrict at, const Policy *policy, const Round *restrict round, int i)
{
    const uint64_t *signature = signatures_of(policy, round);
    for (Py_ssize_t k = 0; k < round->calls - WINDOW; k++)
        at->round_sum[i] += scattered(
            fold_pair(signature[k], round->result ? round->result[k] : 0));
}

/* Call k of a round to lane `first`, the calls behind it to the lanes behind it. */
CELLIUM_INLINE void take_calls(
    RecordLanes *restrict at, const Policy *restrict policy, FeatureLanes *restrict to,
    const Round *restrict round, Py_ssize_t k, int first, int end)
{
    const Py_ssize_t place = k - first;
    const uint64_t *signature = signatures_of(policy, round);
    for (int i = first; i < end; i++)
        at->tool[i] = mix(round->tool[place + i]);
    for (int i = first; i < end; i++) {
        uint64_t result = round->result ? round->result[place + i] : 0;
        at->signature[i] = fold(signature[place + i]);
        at->call[i] = fold_pair(signature[place + i], result);
        at->result[i] = mix(result);
    }
    for (int i = first; i < end; i++)
        at->call_flags[i] = round->flags ? round->flags[place + i] : 0;
    for (int i = first; i < end; i++)
        at->call_size[i] = round->size ? round->size[place + i] : 0;
    push_call(at, first, end);
    judge_call(at, policy, to, first, end);
}

/* The rounds of a group, of one call each. */
CELLIUM_INLINE void take_single_calls(
    RecordLanes *restrict at, const Policy *restrict policy, FeatureLanes *restrict to,
    const Batch *restrict batch, Py_ssize_t row)
{
    Round round = read_round(batch, row);
    at->sized = round.size != NULL;
    at->answered = round.result != NULL;
    begin_judging(at, to, 0, LANES);
    take_calls(at, policy, to, &round, 0, 0, LANES);
    for (int i = 0; i < LANES; i++) {
        at->round_calls[i] = 1;
        at->round_errors[i] = at->call_flags[i] & CALL_ERROR;
        at->round_empties[i] = (at->call_flags[i] & CALL_EMPTY) / CALL_EMPTY;
        at->round_transient[i] = at->round_errors[i]
            & (at->call_flags[i] & CALL_TRANSIENT) / CALL_TRANSIENT;
        at->text[i] = batch->text ? mix(batch->text[row + i]) : 0;
        at->given_progress[i] = NAN;
    }
    for (int i = 0; i < LANES; i++) {
        uint64_t sketch = sketch_of_row(batch, row + i);
        at->new_sketch[0][i] = word_of_two(sketch, 0);
        at->new_sketch[1][i] = word_of_two(sketch, 1);
    }
    for (int i = 0; batch->progress && i < LANES; i++)
        at->given_progress[i] = decimal(batch->progress[row + i]);
}

/* A round of any number of calls. Those that would leave the window within it are only counted. */
CELLIUM_INLINE void take_round(
    RecordLanes *restrict at, const Policy *restrict policy, FeatureLanes *restrict to,
    const Round *restrict round, int i)
{
    uint64_t errors = 0, empties = 0, transient = 0;
    at->sized = round->size != NULL;
    at->answered = round->result != NULL;
    begin_judging(at, to, i, i + 1);
    add_dropped_calls(at, policy, round, i);
    for (Py_ssize_t k = round->calls > WINDOW ? round->calls - WINDOW : 0; k < round->calls; k++)
        take_calls(at, policy, to, round, k, i, i + 1);
    for (Py_ssize_t k = 0; round->flags && k < round->calls; k++) {
        errors += (round->flags[k] & CALL_ERROR) != 0;
        empties += (round->flags[k] & CALL_EMPTY) != 0;
        transient += (round->flags[k] & CALL_ERROR) && (round->flags[k] & CALL_TRANSIENT);
    }
    at->round_calls[i] = (uint32_t)(round->calls < UINT32_MAX ? round->calls : UINT32_MAX);
    at->round_errors[i] = (uint32_t)(errors < UINT32_MAX ? errors : UINT32_MAX);
    at->round_empties[i] = (uint32_t)(empties < UINT32_MAX ? empties : UINT32_MAX);
    at->round_transient[i] = (uint32_t)(transient < UINT32_MAX ? transient : UINT32_MAX);
    at->new_sketch[0][i] = word_of_two(round->sketch, 0);
    at->new_sketch[1][i] = word_of_two(round->sketch, 1);
    at->text[i] = mix(round->text);
    at->given_progress[i] = decimal(round->progress);
}

/* --- Stage 1 --- */

CELLIUM_INLINE void find_frequent(
    RecordLanes *restrict at, const Policy *restrict policy, int first, int end)
{
    uint32_t some = policy->frequent_tool_count != 0;
    for (int i = first; i < end; i++)
        at->frequent_recent[i] = at->frequent_run[i] = some;
    for (int i = first; some && i < end; i++) {
        int count = (int)at->window_count[i];
        at->frequent_recent[i] = (uint32_t)only_frequent_tools(
            at->session[i], policy, count < RECENT ? count : RECENT);
        at->frequent_run[i] = (uint32_t)only_frequent_tools(
            at->session[i], policy, count < RUN_WINDOW ? count : RUN_WINDOW);
    }
}

/* What the lanes took in goes into the records, and becomes features. */
CELLIUM_INLINE void settle(
    RecordLanes *restrict at, const Policy *restrict policy, int wanted, FeatureLanes *restrict to,
    int wide, int first, int end)
{
    int newest_only = policy->newest_run_only;
    push_outputs(at, first, end);
    count_calls(at, first, end);
    gather_sizes(at, wide, first, end);
    apply_policy(at, policy, first, end);
    find_frequent(at, policy, first, end);
    if (newest_only) {
        judge(at, policy, 1, first, end);
        describe_window(at, policy, 1, to, first, end);
    } else {
        judge(at, policy, 0, first, end);
        describe_window(at, policy, 0, to, first, end);
    }
    describe_limits(at, to, first, end);
    weigh_evidence(at, policy, to, first, end);
    scatter(at, to, wide, first, end);
    describe_rounds(at, policy, to, first, end);
    describe_results(at, to, first, end);
    describe_trend(at, policy, wanted, to, first, end);
}

static void settle_one(
    RecordLanes *restrict at, const Policy *restrict policy, int wanted, FeatureLanes *restrict to,
    int i)
{
    settle(at, policy, wanted, to, 0, i, i + 1);
}

static inline void describe_context(const Session *session, Features *row)
{
    double ratio = context_ratio(session);
    row->context_known = ratio >= 0.0;
    row->context_ratio = at_least(ratio, 0.0);
    row->context_saturation = at_most(row->context_ratio, 1.0);
    row->round = session->round;
    row->rounds_left = rounds_left(session->round, session->round_limit);
}

/* A lane as a row, with the evidence for explanations. */
static void write_row(
    const Session *session, const FeatureLanes *restrict f, int i, Features *restrict row)
{
    uint32_t errors = session->error_bits & ((1u << session->window_count) - 1);
    describe_context(session, row);
    row->progress_score = f->progress_score[i];
    row->progress_trend = f->progress_trend[i];
    row->progress_trend_raw = f->progress_trend_raw[i];
    row->trend_confidence = f->trend_confidence[i];
    row->repetition_score = f->repetition_score[i];
    row->error_rate = f->error_rate[i];
    row->empty_rate = f->empty_rate[i];
    row->result_quality = f->result_quality[i];
    row->stuck_iterations = f->stuck_iterations[i];
    row->run_length = (uint8_t)f->run_length[i];
    row->cycle = (uint8_t)f->cycle[i];
    row->output_repeats = (uint8_t)f->output_repeats[i];
    row->failures_in_row = (uint8_t)f->failures_in_row[i];
    row->plateau = (uint8_t)f->plateau[i];
    row->making_progress = (uint8_t)f->making_progress[i];
    row->information = (uint8_t)f->information[i];
    row->slight = (uint8_t)f->slight[i];
    row->own_limit = (uint8_t)f->own_limit[i];
    row->no_information = (uint8_t)f->no_information[i];
    row->little_information = (uint8_t)f->little_information[i];
    row->round_repeats = (uint8_t)f->round_repeats[i];
    row->call_repeats = (uint8_t)f->call_repeats[i];
    row->result_repeats = (uint8_t)f->result_repeats[i];
    row->recent_failures = (uint8_t)f->recent_failures[i];
    row->error_repeats = (uint8_t)f->error_repeats[i];
    row->transient_rounds = (uint8_t)f->transient_rounds[i];
    row->text_repeats = (uint8_t)f->text_repeats[i];
    row->idle_rounds = (uint8_t)f->idle_rounds[i];
    row->blank_rounds = (uint8_t)f->blank_rounds[i];
    row->unheeded_redirects = (uint8_t)f->unheeded_redirects[i];
    row->exhausted_rounds = (uint8_t)f->exhausted_rounds[i];
    row->compress_ready = (uint8_t)f->compress_ready[i];
    row->compression_failed = (uint8_t)f->compression_failed[i];
    row->compress_wait = session->compress_wait;
    row->compress_tries = session->compress_tries;
    row->run_tool = f->run_length[i] ? session->tool[f->newest_of_run[i]] : 0;
    row->error_result = errors ? session->error : 0;
    for (int k = 0; k < 3; k++)
        row->recent_tools[k] = k < session->window_count ? session->tool[k] : 0;
}

/* The round of one session alone. */
static inline void extract(
    Session *session, const Policy *policy, const Round *round, Features *row)
{
    RecordLanes at;
    FeatureLanes to;
    at.session[0] = session;
    gather(&at, &to, 0, 0, 1);
    take_round(&at, policy, &to, round, 0);
    settle_one(&at, policy, 1, &to, 0);
    write_row(session, &to, 0, row);
}

CELLIUM_INLINE Features *features_row(const Batch *batch, Py_ssize_t row)
{
    return &batch->features[(size_t)row & batch->features_mask];
}

/* The policy of a whole group; NULL if it has several, or is not whole. */
CELLIUM_INLINE const Policy *policy_of_all(
    const Policy *policies, const uint32_t *restrict policy, int count)
{
    uint32_t other = 0;
    if (count < LANES)
        return NULL;
    for (int i = 0; i < LANES; i++)
        other |= policy[i] ^ policy[0];
    return other ? NULL : &policies[policy[0]];
}

/* Whether the features of a session are needed as a row: by the caller, or by functions of users. */
CELLIUM_INLINE int needs_row(const Batch *batch, uint32_t policy)
{
    return batch->features_wanted || (batch->user_parts && batch->user_code[policy].parts);
}

CELLIUM_INLINE void extract_group(
    const Batch *batch, Py_ssize_t row, int count, FeatureLanes *restrict to, int wide)
{
    RecordLanes at;
    for (int i = 0; i < count; i++)
        at.session[i] = &batch->sessions[batch->slots[row + i]];
    for (int i = count; i < LANES; i++)
        at.session[i] = at.session[0];      /* for something to read */
    gather(&at, to, wide, 0, LANES);
    const Policy *policy = to->policy = policy_of_all(batch->policies, at.policy, count);
    if (policy && have_one_call(batch, row, LANES))
        take_single_calls(&at, policy, to, batch, row);
    else
        for (int i = 0; i < count; i++) {
            Round round = read_round(batch, row + i);
            take_round(&at, &batch->policies[at.policy[i]], to, &round, i);
        }
    int wanted[LANES], any = 0;
    for (int i = 0; i < count; i++)
        any |= wanted[i] = needs_row(batch, at.session[i]->policy);
    if (policy)
        settle(&at, policy, any, to, wide, 0, LANES);
    else
        for (int i = 0; i < count; i++)
            settle_one(&at, &batch->policies[at.session[i]->policy], wanted[i], to, i);
    for (int i = 0; any && i < count; i++)
        if (wanted[i])
            write_row(at.session[i], to, i, features_row(batch, row + i));
}

/* --- Stage 2 --- */

CELLIUM_INLINE void read_row(const Features *restrict row, FeatureLanes *restrict to, int i)
{
    to->progress_score[i] = row->progress_score;
    to->progress_trend[i] = row->progress_trend;
    to->progress_trend_raw[i] = row->progress_trend_raw;
    to->trend_confidence[i] = row->trend_confidence;
    to->context_ratio[i] = row->context_ratio;
    to->repetition_score[i] = row->repetition_score;
    to->error_rate[i] = row->error_rate;
    to->empty_rate[i] = row->empty_rate;
    to->result_quality[i] = row->result_quality;
    to->run_length[i] = row->run_length;
    to->rounds_left[i] = row->rounds_left;
    to->stuck_iterations[i] = row->stuck_iterations;
    to->cycle[i] = row->cycle;
    to->output_repeats[i] = row->output_repeats;
    to->failures_in_row[i] = row->failures_in_row;
    to->context_known[i] = row->context_known != 0;
    to->plateau[i] = row->plateau != 0;
    to->making_progress[i] = row->making_progress != 0;
    to->information[i] = row->information;
    to->slight[i] = row->slight != 0;
    to->own_limit[i] = row->own_limit;
    to->no_information[i] = row->no_information;
    to->little_information[i] = row->little_information;
    to->round_repeats[i] = row->round_repeats;
    to->call_repeats[i] = row->call_repeats;
    to->result_repeats[i] = row->result_repeats;
    to->recent_failures[i] = row->recent_failures;
    to->error_repeats[i] = row->error_repeats;
    to->transient_rounds[i] = row->transient_rounds;
    to->text_repeats[i] = row->text_repeats;
    to->idle_rounds[i] = row->idle_rounds;
    to->blank_rounds[i] = row->blank_rounds;
    to->unheeded_redirects[i] = row->unheeded_redirects;
    to->exhausted_rounds[i] = row->exhausted_rounds;
    to->compress_ready[i] = row->compress_ready != 0;
    to->compression_failed[i] = row->compression_failed != 0;
}

CELLIUM_INLINE void read_rows(
    const Batch *batch, Py_ssize_t row, int count, FeatureLanes *restrict to)
{
    uint32_t policy[LANES];
    for (int i = 0; i < count; i++) {
        policy[i] = batch->sessions[batch->slots[row + i]].policy;
        read_row(features_row(batch, row + i), to, i);
    }
    to->policy = policy_of_all(batch->policies, policy, count);
}

/* What the bandit reads of a tie. */
CELLIUM_INLINE void write_biasing(const FeatureLanes *restrict f, int i, Features *restrict row)
{
    row->progress_score = f->progress_score[i];
    row->progress_trend = f->progress_trend[i];
    row->context_ratio = f->context_ratio[i];
    row->repetition_score = f->repetition_score[i];
    row->stuck_iterations = f->stuck_iterations[i];
}

static void evaluate_one(
    const FeatureLanes *restrict f, const Policy *restrict policy, const uint32_t *restrict user,
    uint32_t *restrict fired, uint32_t *restrict candidates, int i)
{
    evaluate_rules(f, policy, user, fired, candidates, i, i + 1);
}

/* The candidates of one session alone; of users' rules, `user` fired; `rules` gets the others that
   did. */
static inline uint8_t evaluate(
    const Features *row, const Policy *policy, uint32_t user, uint32_t *rules)
{
    FeatureLanes lanes;
    uint32_t candidates;
    read_row(row, &lanes, 0);
    evaluate_one(&lanes, policy, &user, rules, &candidates, 0);
    return (uint8_t)candidates;
}

/* A group's results; most groups are whole, lie together and have no tie. */
CELLIUM_INLINE void write_group(
    const Batch *batch, Py_ssize_t row, int count, const FeatureLanes *restrict f,
    const uint32_t *restrict fired, const uint32_t *restrict candidates)
{
    uint8_t actions[LANES];
    uint32_t ties = 0;
    size_t place = (size_t)row & batch->rules_mask;
    for (int i = 0; i < LANES; i++) {
        actions[i] = (uint8_t)candidates[i];
        ties |= candidates[i] & (candidates[i] - 1);
    }
    if (count == LANES)
        memcpy(batch->candidates + row, actions, sizeof actions);
    else
        for (int i = 0; i < count; i++)
            batch->candidates[row + i] = actions[i];
    if (batch->rules && count == LANES && batch->rules_mask - place >= LANES - 1)
        memcpy(batch->rules + place, fired, LANES * sizeof *fired);
    else
        for (int i = 0; batch->rules && i < count; i++)
            batch->rules[(size_t)(row + i) & batch->rules_mask] = fired[i];
    for (int i = 0; ties && batch->feature_lanes && i < count; i++)
        if (candidates[i] & (candidates[i] - 1))
            write_biasing(f, i, features_row(batch, row + i));
}

CELLIUM_INLINE void evaluate_group(
    const Batch *batch, Py_ssize_t row, int count, const FeatureLanes *restrict f)
{
    uint32_t fired[LANES] = {0}, candidates[LANES] = {0}, user[LANES] = {0};
    for (int i = 0; (batch->user_parts & HAS_RULES) && i < count; i++)
        user[i] = batch->user_rules[(size_t)(row + i) & batch->user_rules_mask];
    if (f->policy)
        evaluate_rules(f, f->policy, user, fired, candidates, 0, LANES);
    else
        for (int i = 0; i < count; i++) {
            const Session *session = &batch->sessions[batch->slots[row + i]];
            evaluate_one(f, &batch->policies[session->policy], user, fired, candidates, i);
        }
    write_group(batch, row, count, f, fired, candidates);
}

/* --- Variants --- */

/* A group's stage 1, and stage 2, compiled with `attributes`; `wide` as transpose_in has it. Of the
   loop over the groups, compilers would make one with the loops over the lanes, and no vector
   code. */
#define STAGE_VARIANT(variant, wide, attributes)                                                   \
    attributes static void extract_##variant(                                                      \
        const Batch *batch, Py_ssize_t row, int count, FeatureLanes *to)                           \
    {                                                                                              \
        extract_group(batch, row, count, to, wide);                                                \
    }                                                                                              \
    attributes static void evaluate_##variant(                                                     \
        const Batch *batch, Py_ssize_t row, int count, FeatureLanes *features)                     \
    {                                                                                              \
        evaluate_group(batch, row, count, features);                                               \
    }

typedef void StageOfGroup(const Batch *batch, Py_ssize_t row, int count, FeatureLanes *lanes);

STAGE_VARIANT(plain, 0, NOT_INLINE)

#if defined(HAS_WIDE_VARIANTS)

STAGE_VARIANT(avx2, 1, NOT_INLINE FOR_AVX2)
STAGE_VARIANT(avx512, 1, NOT_INLINE FOR_AVX512)

static StageOfGroup *const EXTRACT[VARIANTS] = {extract_plain, extract_avx2, extract_avx512};
static StageOfGroup *const EVALUATE[VARIANTS] = {evaluate_plain, evaluate_avx2, evaluate_avx512};

#else

static StageOfGroup *const EXTRACT[VARIANTS] = {extract_plain, extract_plain, extract_plain};
static StageOfGroup *const EVALUATE[VARIANTS] = {evaluate_plain, evaluate_plain, evaluate_plain};

#endif

CELLIUM_INLINE int count_from(Py_ssize_t row, Py_ssize_t stop)
{
    return stop - row < LANES ? (int)(stop - row) : LANES;
}

CELLIUM_INLINE FeatureLanes *lanes_of(const Batch *batch, Py_ssize_t place)
{
    return (FeatureLanes *)batch->feature_lanes + place / LANES;
}

/* Stage 1 for the sessions [start, stop) by one variant, which the processor must have. */
static inline void extract_with(
    int variant, const Batch *batch, Py_ssize_t start, Py_ssize_t stop)
{
    FeatureLanes own;
    for (Py_ssize_t row = start; row < stop; row += LANES) {
        FeatureLanes *lanes = batch->feature_lanes ? lanes_of(batch, row - start) : &own;
        EXTRACT[variant](batch, row, count_from(row, stop), lanes);
    }
}

/* Stage 2. */
static inline void evaluate_with(
    int variant, const Batch *batch, Py_ssize_t start, Py_ssize_t stop)
{
    FeatureLanes own;
    for (Py_ssize_t row = start; row < stop; row += LANES) {
        int count = count_from(row, stop);
        FeatureLanes *lanes = batch->feature_lanes ? lanes_of(batch, row - start) : &own;
        if (!batch->feature_lanes)
            read_rows(batch, row, count, lanes);
        EVALUATE[variant](batch, row, count, lanes);
    }
}

#endif
