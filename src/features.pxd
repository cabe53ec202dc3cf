# Stage 1, feature extraction: what one session's round says. Formulas: docs/semantics.md,
# "Features".

from libc.math cimport fabs, isnan
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from records cimport (
    HISTORY, RECENT, RUN_WINDOW, SESSION_OUTPUTS, SIZES,
    Features, Policy, Round, Session,
    at_least, at_most, clip, low_bits, mix, nearest, shift_words,
)
cimport window


cdef inline double ema(double value, double state, double alpha) noexcept nogil:
    return alpha * value + (1.0 - alpha) * state


cdef inline double decimal(float value) noexcept nogil:
    # A float32 holds seven digits: read it as the decimal that the caller wrote, so that a
    # given 0.7 meets the threshold 0.7.
    return nearest(<double>value * 1e7) / 1e7


cdef inline double context_ratio(const Session* session) noexcept nogil:
    # -1 = unknown
    if session.context_limit <= 0 or session.context_tokens < 0:
        return -1.0
    return <double>session.context_tokens / <double>session.context_limit


cdef inline void push_output(Session* session, const Round* round) noexcept nogil:
    cdef uint32_t output = mix(round.text)
    if output == 0:
        return
    if session.output_run:
        session.flags |= SESSION_OUTPUTS
    if session.output_run and output == session.output:
        session.output_run += session.output_run < RUN_WINDOW
    else:
        session.output_run = 1
    session.output = output


cdef inline int output_repeats(const Session* session) noexcept nogil:
    return session.output_run if session.flags & SESSION_OUTPUTS else 0


cdef inline double growth(const Session* session, int count) noexcept nogil:
    # Relative growth of the result sizes over the last `count` calls, [0, 1], 0.5 = none.
    cdef double first, last
    count = min(count, min(session.window_count, SIZES))
    if count < 2:
        return 0.5
    last = session.size[0]
    first = session.size[count - 1]
    return clip((last - first) / at_least(first, 1.0), -1.0, 1.0) / 2.0 + 0.5


cdef inline double quality(double error_rate, double empty_rate, double grown) noexcept nogil:
    return 0.4 * (1.0 - error_rate) + 0.3 * (1.0 - empty_rate) + 0.3 * grown


cdef inline double recent_quality(const Session* session, int count) noexcept nogil:
    # Over the last `count` (at most RECENT) calls.
    count = min(count, session.window_count)
    return quality(
        window.share(session.error_bits, count),
        window.share(session.empty_bits, count),
        growth(session, count),
    )


cdef inline double total_quality(const Session* session, const Features* features) noexcept nogil:
    # Over the whole session, growth over the sizes kept.
    if session.calls == 0:
        return 0.0
    return quality(features.error_rate, features.empty_rate, growth(session, SIZES))


cdef inline double computed_progress(
    const Session* session, const Policy* policy, uint32_t unproductive
) noexcept nogil:
    cdef int count = min(<int>RECENT, session.window_count)
    cdef int length, newest
    cdef double repetition
    if count == 0:
        return 0.0
    repetition = window.repetition(session, policy, count, &length, &newest)
    return clip(
        0.3 * recent_quality(session, count)
        + 0.3 * (1.0 - window.share(unproductive, count))
        + 0.15 * (1.0 - window.share(session.empty_bits, count))
        + 0.15 * at_least(window.tool_diversity(session, count) - repetition / 2.0, 0.0)
        + (0.0 if unproductive & 1 else 0.1)
        - 0.1 * repetition,
        0.0, 1.0,
    )


cdef inline void push_progress(Session* session, double progress) noexcept nogil:
    shift_words(session.history, HISTORY - 1)
    session.history[0] = <float>session.progress
    session.history_count += session.history_count < HISTORY
    session.progress = progress


cdef inline double r_squared(float newest, const float* earlier, int count) noexcept nogil:
    # R^2 of the least-squares line through `count` equally spaced values, the newest one first.
    # Differences from the newest value, and their products, are exact in double.
    cdef double total = 0.0, squares = 0.0, moments = 0.0
    cdef double y, along, across, covariance
    cdef int i
    if count < 3:
        return 0.0
    for i in range(1, count):
        y = <double>earlier[i - 1] - newest
        total += y
        squares += y * y
        moments += i * y
    along = count * (count * count - 1.0) / 12.0
    across = squares - total * total / count
    covariance = moments - (count - 1) / 2.0 * total
    # Scores are kept in single precision: what is below its rounding is no variance.
    if across < 1e-12:
        return 0.0
    return min(covariance * covariance / (along * across), 1.0)


cdef inline double trend_confidence(const Session* session) noexcept nogil:
    return r_squared(<float>session.progress, session.history, session.history_count)


cdef inline void update_stuck(
    Session* session, double difference, uint32_t unproductive
) noexcept nogil:
    cdef int count = min(3, session.window_count)
    cdef int failures = window.newest_run(unproductive & low_bits(count)) - 1
    cdef bint productive = count and not unproductive & 1
    cdef double recent = recent_quality(session, 3) if count else 0.0
    if count and (
        difference < -0.03
        or failures >= 2
        or (
            difference < 0.05 and not productive and recent < 0.6 and window.three_same(session)
        )
    ):
        session.stuck += session.stuck < 0xFFFF
    elif difference > 0.08 or (productive and recent >= 0.6):
        session.stuck = 0
    elif session.stuck > 0 and difference > 0:
        session.stuck -= 1


cdef inline bint is_level(const Features* features) noexcept nogil:
    # A plateau, if the trend is not sure.
    return (
        fabs(features.progress_trend) < 0.03
        and fabs(features.progress_trend_raw) < 0.05
        and 0 < features.stuck_iterations < 5
        and features.result_quality >= 0.55
        and features.error_rate < 0.5
    )


cdef inline bint may_stagnate(const Features* features, const Policy* policy) noexcept nogil:
    # The rule on a falling trend asks how sure the trend is.
    return (
        features.stuck_iterations >= policy.true_stagnation_stuck
        and features.progress_trend < policy.true_stagnation_trend
    )


cdef inline void describe_context(const Session* session, Features* features) noexcept nogil:
    cdef double ratio = context_ratio(session)
    features.context_known = ratio >= 0.0
    features.context_ratio = at_least(ratio, 0.0)
    features.context_saturation = at_most(features.context_ratio, 1.0)
    features.round = session.round
    if session.round_limit == 0:
        features.rounds_left = -1
    else:
        features.rounds_left = <int32_t>min(
            max(<int64_t>session.round_limit - session.round, <int64_t>0),
            <int64_t>0x7FFFFFFF,
        )


cdef inline void describe_evidence(
    const Session* session, Features* features, int newest_of_run
) noexcept nogil:
    cdef int i
    features.run_tool = session.tool[newest_of_run] if features.run_length else 0
    features.error_result = (
        session.error if session.error_bits & low_bits(session.window_count) else 0
    )
    for i in range(3):
        features.recent_tools[i] = session.tool[i] if i < session.window_count else 0


cdef inline void take_in(
    Session* session, const Policy* policy, const Round* round
) noexcept nogil:
    # What the round changes in the record: window, progress, trend, stuck.
    cdef uint32_t unproductive
    cdef double progress, difference
    push_output(session, round)
    window.push_calls(session, round)
    unproductive = window.unproductive_bits(
        session, policy, min(<int>RECENT, session.window_count)
    )
    progress = (
        computed_progress(session, policy, unproductive) if isnan(round.progress)
        else decimal(round.progress)
    )
    difference = progress - session.progress
    session.trend = ema(difference, session.trend, policy.ema_alpha)
    push_progress(session, progress)
    update_stuck(session, difference, unproductive)


cdef inline void describe(
    const Session* session, const Policy* policy, double difference, bint wanted,
    Features* features,
) noexcept nogil:
    # The features of what was taken in. Those that no rule can read off this session, and the
    # evidence for explanations, only if they are wanted.
    cdef int length, newest
    cdef double calls = session.calls
    cdef bint level
    features.progress_score = session.progress
    features.progress_trend = session.trend
    features.progress_trend_raw = difference
    features.stuck_iterations = session.stuck
    features.repetition_score = window.repetition(
        session, policy, RUN_WINDOW, &length, &newest
    )
    features.run_length = <uint8_t>length
    features.cycle = window.cycle_length(session, policy)
    features.output_repeats = <uint8_t>output_repeats(session)
    features.failures_in_row = <uint8_t>window.failures_in_row(session, policy)
    describe_context(session, features)
    features.plateau = False
    if wanted or session.stuck or features.cycle:
        features.error_rate = session.errors / calls if session.calls else 0.0
        features.empty_rate = session.empties / calls if session.calls else 0.0
        features.result_quality = total_quality(session, features)
        level = is_level(features)
        if wanted or level or may_stagnate(features, policy):
            features.trend_confidence = trend_confidence(session)
            features.plateau = level and features.trend_confidence < 0.6
    features.making_progress = (
        features.progress_trend > 0.03 or features.progress_score >= 0.7 or features.plateau
    )
    if wanted:
        describe_evidence(session, features, newest)


cdef inline void extract(
    Session* session, const Policy* policy, const Round* round, bint wanted, Features* features
) noexcept nogil:
    cdef double before = session.progress
    take_in(session, policy, round)
    describe(session, policy, session.progress - before, wanted, features)
