# The window of a session's last calls: pushing a round, and what runs, cycles and rates read.
#
# Calls are compared once, as they come in: bit histories say which call equals the one 1, 2 or 3
# before it, and each of the newest calls knows its nearest twin. Runs, cycles, rates and staleness
# are read off these with masks and shifts.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from records cimport (
    CALL_EMPTY, CALL_ERROR, LAGS, RECENT, RUN_WINDOW, SIZES, WINDOW,
    Policy, Round, Session,
    add_saturating, equal_words, equal_words_3, fold, fold_pair, low_bits, lowest_bit, mix,
    repeated_words_4, shift_words,
)

cdef enum:
    # Of three histories of 10 bits, those that a shift does not push into the next one.
    LAGS_KEPT = 0x3FE | 0x3FE << 10 | 0x3FE << 20

cdef extern from *:
    """
    /* k * (1 / n) is the same double as k / n for whole k <= n <= 4. */
    static const double cellium_reciprocals[] = {0.0, 1.0, 1.0 / 2, 1.0 / 3, 1.0 / 4};
    static const unsigned char cellium_bits_set[] = {
        0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4
    };
    """
    const double* RECIPROCALS "cellium_reciprocals"
    const uint8_t* BITS_SET "cellium_bits_set"


cdef inline void clear(Session* session) noexcept nogil:
    session.window_count = 0
    session.error_bits = 0
    session.empty_bits = 0
    session.twins = 0
    session.failed_rounds = 0


cdef inline uint32_t push_lags(uint32_t history, uint32_t equal) noexcept nogil:
    # Shift in whether a call equals the one 1, 2, 3 before it: bits 0, 1, 2 of `equal`.
    return (history << 1 & LAGS_KEPT) | (equal & 1) | (equal & 2) << 9 | (equal & 4) << 18


cdef inline void compare_call(Session* session, uint32_t signature, uint32_t call) noexcept nogil:
    # How a call about to be pushed compares with those before it. Whatever is compared with a
    # call that is not in the window is masked when it is read.
    cdef uint32_t equal = equal_words(session.call, call)
    session.same_call = push_lags(session.same_call, equal)
    session.same_signature = push_lags(
        session.same_signature, equal_words_3(session.signature, signature)
    )
    # The distance to the nearest call like it; the bit beyond the window turns none into 0.
    equal = (equal & low_bits(session.window_count)) | 1 << 15
    session.twins = <uint16_t>(session.twins << 4 | ((lowest_bit(equal) + 1) & 15))


cdef inline void push_call(Session* session, const Round* round, Py_ssize_t k) noexcept nogil:
    cdef uint8_t flags = round.flags[k] if round.flags else 0
    cdef uint64_t result = round.result[k] if round.result else 0
    cdef uint32_t signature = fold(round.signature[k])
    cdef uint32_t call = fold_pair(round.signature[k], result)
    compare_call(session, signature, call)
    shift_words(session.signature, LAGS)
    shift_words(session.call, WINDOW - 1)
    shift_words(session.tool, RUN_WINDOW)
    shift_words(session.size, SIZES)
    session.signature[0] = signature
    session.call[0] = call
    session.tool[0] = mix(round.tool[k])
    session.size[0] = round.size[k] if round.size else 0
    session.error_bits = <uint16_t>(session.error_bits << 1 | ((flags & CALL_ERROR) != 0))
    session.empty_bits = <uint16_t>(session.empty_bits << 1 | ((flags & CALL_EMPTY) != 0))
    if flags & CALL_ERROR:
        session.error = mix(result)
    session.window_count += session.window_count < WINDOW


cdef inline void count_failures(Session* session, bint failed) noexcept nogil:
    # Rounds in a row whose calls all failed.
    if not failed:
        session.failed_rounds = 0
    elif session.failed_rounds < RUN_WINDOW:
        session.failed_rounds += 1


cdef inline void push_calls(Session* session, const Round* round) noexcept nogil:
    # Calls that would leave the window within the same round are only counted.
    cdef Py_ssize_t k
    cdef uint64_t errors = 0, empties = 0
    if round.calls == 0:
        return
    for k in range(max(round.calls - WINDOW, 0), round.calls):
        push_call(session, round, k)
    if round.flags:
        for k in range(round.calls):
            errors += (round.flags[k] & CALL_ERROR) != 0
            empties += (round.flags[k] & CALL_EMPTY) != 0
    session.calls = add_saturating(session.calls, <uint64_t>round.calls)
    session.errors = add_saturating(session.errors, errors)
    session.empties = add_saturating(session.empties, empties)
    count_failures(session, errors == <uint64_t>round.calls)


cdef inline uint32_t equal_at(
    const Session* session, const Policy* policy, int count, int lag
) noexcept nogil:
    # Of the last `count` calls: bit i = call i equals the call `lag` (1..LAGS) before it.
    cdef uint32_t same = session.same_call if policy.match_results else session.same_signature
    return same >> 10 * (lag - 1) & low_bits(count - lag)


cdef inline uint32_t equal_neighbours(const uint32_t* newest_first, int count) noexcept nogil:
    # As equal_at(..., 1), for calls that are in no window.
    cdef uint32_t mask = 0
    cdef int i
    for i in range(count - 1):
        mask |= <uint32_t>(newest_first[i] == newest_first[i + 1]) << i
    return mask


cdef inline int newest_run(uint32_t equal_next) noexcept nogil:
    # Length of the run of equal calls that ends at the newest; bits as from equal_at(..., 1).
    return 1 + lowest_bit(~equal_next)


cdef inline int longest_run(uint32_t equal_next, int* newest) noexcept nogil:
    # Length of the longest run; `newest` gets the position of its newest call.
    cdef int length = 1
    newest[0] = 0
    while equal_next:
        length += 1
        # What is left marks the runs of at least `length` calls by their newest call.
        newest[0] = lowest_bit(equal_next)
        equal_next &= equal_next >> 1
    return length


cdef inline double run_score(int length) noexcept nogil:
    return 0.0 if length < 3 else min((length - 2) / 4.0, 1.0)


cdef inline bint only_frequent_tools(
    const Session* session, const Policy* policy, int count
) noexcept nogil:
    # At most two tools, all among the policy's frequent ones.
    cdef uint32_t first = session.tool[0]
    cdef uint32_t second = first
    cdef uint32_t tool
    cdef int i, k
    for i in range(count):
        tool = session.tool[i]
        for k in range(policy.frequent_tool_count):
            if policy.frequent_tools[k] == tool:
                break
        else:
            return False
        if tool != first:
            if second != first and tool != second:
                return False
            second = tool
    return True


cdef inline double repetition(
    const Session* session, const Policy* policy, int count, int* length, int* newest
) noexcept nogil:
    # Repetition score of the last `count` calls; `length` and `newest` get the run behind it.
    cdef uint32_t equal_next
    cdef double score
    length[0] = 0
    newest[0] = 0
    count = min(count, min(session.window_count, RUN_WINDOW))
    if count == 0:
        return 0.0
    equal_next = equal_at(session, policy, count, 1)
    if policy.newest_run_only:
        length[0] = newest_run(equal_next)
    else:
        length[0] = longest_run(equal_next, newest)
    score = run_score(length[0])
    if score > 0 and policy.frequent_tool_count and only_frequent_tools(session, policy, count):
        score *= 0.6
    return score


cdef inline uint8_t cycle_length(const Session* session, const Policy* policy) noexcept nogil:
    # 2: the last four calls read A B A B, A != B; 3: the last six read A B C A B C; else 0.
    cdef int count = session.window_count
    if count >= 4 and equal_at(session, policy, 4, 2) == 3:
        if not equal_at(session, policy, 4, 1) & 1:
            return 2
    if count >= 6 and equal_at(session, policy, 6, 3) == 7:
        return 3
    return 0


cdef inline bint three_same(const Session* session) noexcept nogil:
    # The last three calls have one signature.
    return session.window_count >= 3 and session.same_signature & 3 == 3


cdef inline uint32_t stale_bits(const Session* session) noexcept nogil:
    # Of the newest RECENT calls: those with a call like them still in the window. All at once,
    # in the 4 bits that each has: its distance to its twin is not 0, and with its own place
    # added stays below WINDOW = 12 = 0b1100.
    cdef uint32_t twins = session.twins
    cdef uint32_t places = twins + 0x3210
    cdef uint32_t some = twins | twins >> 1 | twins >> 2 | twins >> 3
    cdef uint32_t stale = some & ~(places >> 3 & places >> 2) & 0x1111
    return stale * 0x1248 >> 12 & 15     # bits 0, 4, 8, 12 side by side


cdef inline uint32_t unproductive_bits(
    const Session* session, const Policy* policy, int count
) noexcept nogil:
    # Of the last `count` (at most RECENT) calls: errors, and by the policy empty or stale ones.
    cdef uint32_t bits = session.error_bits
    if policy.empty_is_unproductive:
        bits |= session.empty_bits
    if policy.stale_is_unproductive:
        bits |= stale_bits(session)
    return bits & low_bits(count)


cdef inline double share(uint32_t bits, int count) noexcept nogil:
    # Share of the last `count` (at most RECENT) calls whose bit is set; 0 with no calls.
    return BITS_SET[bits & low_bits(count)] * RECIPROCALS[count]


cdef inline double tool_diversity(const Session* session, int count) noexcept nogil:
    # Distinct tools among the last `count` (at most RECENT) calls, a call; 0 with no calls.
    return share(~repeated_words_4(session.tool), count)


cdef inline int failures_in_row(const Session* session, const Policy* policy) noexcept nogil:
    if policy.count_failed_rounds:
        return session.failed_rounds
    return newest_run(session.error_bits & low_bits(min(session.window_count, RUN_WINDOW))) - 1
