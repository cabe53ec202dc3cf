# The window of a session's last calls: pushing a round, and what runs, cycles and rates read.
#
# Equality of calls is taken once per distance: bit i of `equal_at(..., d)` says that call i
# (0 = newest) equals the call d places before it. Runs, cycles and staleness are read off such
# masks.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memmove
from records cimport (
    CALL_EMPTY, CALL_ERROR, RUN_WINDOW, SIZES, WINDOW,
    Policy, Round, Session,
    add_saturating, count_bits, mix,
)


cdef inline void clear(Session* session) noexcept nogil:
    session.window_count = 0
    session.error_bits = 0
    session.empty_bits = 0
    session.failed_rounds = 0


cdef inline void push_call(Session* session, const Round* round, Py_ssize_t k) noexcept nogil:
    cdef uint8_t flags = round.flags[k] if round.flags else 0
    memmove(&session.signature[1], &session.signature[0], (WINDOW - 1) * sizeof(uint32_t))
    memmove(&session.result[1], &session.result[0], (WINDOW - 1) * sizeof(uint32_t))
    memmove(&session.tool[1], &session.tool[0], (WINDOW - 1) * sizeof(uint32_t))
    memmove(&session.size[1], &session.size[0], (SIZES - 1) * sizeof(uint32_t))
    session.signature[0] = mix(round.signature[k])
    session.result[0] = mix(round.result[k]) if round.result else 0
    session.tool[0] = mix(round.tool[k])
    session.size[0] = round.size[k] if round.size else 0
    session.error_bits = <uint16_t>(session.error_bits << 1 | ((flags & CALL_ERROR) != 0))
    session.empty_bits = <uint16_t>(session.empty_bits << 1 | ((flags & CALL_EMPTY) != 0))
    if session.window_count < WINDOW:
        session.window_count += 1


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
    if errors < <uint64_t>round.calls:
        session.failed_rounds = 0
    elif session.failed_rounds < RUN_WINDOW:
        session.failed_rounds += 1


cdef inline uint32_t equal_at(
    const uint32_t* signature, const uint32_t* result, int count, int distance
) noexcept nogil:
    # `result` NULL: equal signatures are enough.
    cdef uint32_t mask = 0
    cdef int i
    for i in range(count - distance):
        if signature[i] == signature[i + distance] and (
            not result or result[i] == result[i + distance]
        ):
            mask |= <uint32_t>1 << i
    return mask


cdef inline const uint32_t* results_that_count(
    const Session* session, const Policy* policy
) noexcept nogil:
    if policy.match_results:
        return <const uint32_t*> &session.result[0]
    return NULL


cdef inline int newest_run(uint32_t equal_next) noexcept nogil:
    # Length of the run of equal calls that ends at the newest; bits as from equal_at(..., 1).
    cdef int length = 1
    while equal_next & 1:
        length += 1
        equal_next >>= 1
    return length


cdef inline int longest_run(uint32_t equal_next, int* newest) noexcept nogil:
    # Length of the longest run; `newest` gets the position of its newest call.
    cdef int length = 1
    cdef int i
    newest[0] = 0
    while equal_next:
        length += 1
        # What is left marks the runs of at least `length` calls by their newest call.
        for i in range(32):
            if equal_next >> i & 1:
                newest[0] = i
                break
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
    equal_next = equal_at(session.signature, results_that_count(session, policy), count, 1)
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
    cdef const uint32_t* result = results_that_count(session, policy)
    cdef int count = session.window_count
    if count >= 4 and equal_at(session.signature, result, 4, 2) == 3:
        if not equal_at(session.signature, result, 4, 1) & 1:
            return 2
    if count >= 6 and equal_at(session.signature, result, 6, 3) == 7:
        return 3
    return 0


cdef inline uint32_t unproductive_bits(
    const Session* session, const Policy* policy, int count
) noexcept nogil:
    # Of the last `count` calls: errors, and by the policy empty or stale ones.
    cdef uint32_t bits = session.error_bits
    cdef int i, earlier
    if policy.empty_is_unproductive:
        bits |= session.empty_bits
    if policy.stale_is_unproductive:
        for i in range(count):
            for earlier in range(i + 1, session.window_count):
                if (
                    session.signature[i] == session.signature[earlier]
                    and session.result[i] == session.result[earlier]
                ):
                    bits |= <uint32_t>1 << i
                    break
    return bits & ((<uint32_t>1 << count) - 1)


cdef inline double share(uint32_t bits, int count) noexcept nogil:
    # Share of the last `count` calls whose bit is set; 0 with no calls.
    return count_bits(bits & ((<uint32_t>1 << count) - 1)) / <double>count if count else 0.0


cdef inline int distinct_tools(const Session* session, int count) noexcept nogil:
    cdef int distinct = 0
    cdef int i, k
    for i in range(count):
        for k in range(i):
            if session.tool[k] == session.tool[i]:
                break
        else:
            distinct += 1
    return distinct


cdef inline int failures_in_row(const Session* session, const Policy* policy) noexcept nogil:
    cdef uint32_t bits = session.error_bits
    cdef int length = 0
    if policy.count_failed_rounds:
        return session.failed_rounds
    while length < min(session.window_count, RUN_WINDOW) and bits & 1:
        bits >>= 1
        length += 1
    return length
