# The packed records, each declared once. NumPy dtypes are derived from these structs in
# records.pyx; every kernel and every Python accessor reads them through those dtypes.
#
# a) A record belongs to ONE session. Kernels take pointers to arrays of records.
# b) Index 0 of a window or history array is the newest entry; bit 0 of a bit history likewise.
# c) Counters saturate at the top of their type instead of wrapping.
# d) Formulas compute in double. A float field only feeds a statistic (progress history) or adds
#    up small parts (private posterior).
#
# The C headers here work on these records too. So the records have plain names in C, and Cython
# includes the headers behind them.
# cython: preliminary_late_includes_cy28=True

from libc.stdint cimport (
    int8_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t,
)

cdef enum:
    WINDOW "WINDOW" = 12     # calls kept
    RUN_WINDOW "RUN_WINDOW" = 10     # calls searched for runs and failures in a row
    HISTORY "HISTORY" = 10    # progress scores kept
    SIZES "SIZES" = 5       # result sizes kept
    RECENT "RECENT" = 4      # calls that the progress score looks at
    LAGS "LAGS" = 3        # distances at which calls are compared
    ROUND_HASHES "ROUND_HASHES" = 6     # rounds kept: the longest cycle of rounds
    ARMS "ARMS" = 5        # actions
    MAX_STEPS = 4   # longest n-step return
    RULES "RULES" = 30
    MAX_USER_RULES "MAX_USER_RULES" = 16
    MAX_FREQUENT_TOOLS = 16
    MAX_LIMITED_TOOLS = 16
    NO_LIMIT "NO_LIMIT" = 255   # of a tool that may be repeated any number of times
    NOT_LEARNING = 15       # pending decision that no return is credited to

# Places of a user's functions: rules from 0 on, the reward, the biases of the arms.
cdef enum:
    USER_REWARD = 16
    USER_BIAS = 17
    USER_FUNCTIONS = 22

# Which functions of users there are. A `fallible` one may fail, or return what it may not.
cdef enum:
    HAS_RULES "HAS_RULES" = 1
    HAS_REWARD = 2
    HAS_BIAS = 4
    HAS_FALLIBLE = 8

# What the compiled code of a user's function returns.
cdef enum:
    RETURNS_FLAG        # a byte, 0 or 1
    RETURNS_WHOLE       # int64
    RETURNS_NUMBER      # double

# Actions, in the order of their codes.
cdef enum:
    CONTINUE "CONTINUE"
    RETRY
    REDIRECT "REDIRECT"
    COMPRESS "COMPRESS"
    TERMINATE "TERMINATE"

# Flags of a call.
cdef enum:
    CALL_ERROR "CALL_ERROR" = 1
    CALL_EMPTY "CALL_EMPTY" = 2
    CALL_TRANSIENT "CALL_TRANSIENT" = 4     # an error that waiting may cure
    CALL_ACKNOWLEDGED "CALL_ACKNOWLEDGED" = 8   # no error, and nothing said but that it was done

# What a round brought, in rising order.
cdef enum:
    NOT_JUDGED "NOT_JUDGED"
    NOTHING "NOTHING"
    LITTLE "LITTLE"
    ACKNOWLEDGEMENT "ACKNOWLEDGEMENT"
    NEWS "NEWS"

# Flags of a session.
cdef enum:
    SESSION_OPEN = 1
    SESSION_DONE = 2        # a terminate was decided
    SESSION_PRIVATE = 4     # owns its posterior
    SESSION_OUTPUTS "SESSION_OUTPUTS" = 8     # has had two output texts since its task began
    SESSION_HEEDING "SESSION_HEEDING" = 16    # the last round got on by a new call

# What happened just before a round.
cdef enum:
    EVENT_NONE "EVENT_NONE"
    EVENT_USER_MESSAGE
    EVENT_COMPACTION

# Policy.tie_break
cdef enum:
    THOMPSON
    GREEDY
    FIRST

# What a random number is drawn for; part of the Philox counter. 0..4 are the arms.
cdef enum:
    PURPOSE_ARM = 0
    PURPOSE_POLICY = 5      # which policy a session is opened under; its round is the policy's row


# A reward of 1, as records keep it.
cdef extern from *:
    """
    #define CELLIUM_REWARD_UNITS 2147483648.0
    """
    const double REWARD_UNITS "CELLIUM_REWARD_UNITS"


# Prior and decay of one posterior.
ctypedef struct Prior "Prior":
    double alpha            # Beta(alpha, beta) at the start, > 0
    double beta
    double target_alpha     # decay moves the posterior towards this
    double target_beta
    double decay            # factor in (0, 1] kept of the distance to the target
    uint32_t decay_every    # closed sessions (pool) or updates (private); 0 = never


# Posterior shared by the sessions of a pool.
ctypedef struct Pool "Pool":
    double alpha[ARMS]
    double beta[ARMS]
    uint64_t updates[ARMS]
    uint64_t closed         # sessions closed so far
    Prior prior


# What one call adds to one arm of a pool: integers, so that the sum has no order.
ctypedef struct Increment "Increment":
    int64_t alpha           # in units of 2**-32
    int64_t beta            # in units of 2**-32
    int64_t updates


# What became of the sessions of one pool that one policy was chosen for.
ctypedef struct Choice "Choice":
    uint64_t opened         # such sessions
    uint64_t learned        # those of them whose outcome counts, at most 2**32 - 1
    uint64_t won            # sum of these outcomes, each in [0, 1], in units of 2**-31


# What the outcome of an open session says of the policy that was chosen for it.
ctypedef struct Trial "Trial":
    uint64_t reward         # sum of the rewards of its rounds, in units of 2**-31
    uint32_t rounds         # rewards in the sum
    uint32_t chosen         # 1 + row of that policy; 0: none was chosen, or the session left it


# One row of parameters. Names are those of cellium_fast.policy.Policy; a threshold of rule R
# is called R_<name>.
ctypedef struct Policy "Policy":
    # features
    double ema_alpha                    # (0, 1]
    uint8_t empty_is_unproductive
    uint8_t stale_is_unproductive
    uint8_t match_results               # equal calls have equal results too
    uint8_t see_through_volatile        # shapes instead of signatures
    uint8_t newest_run_only             # repetition: the run that ends at the newest call
    uint8_t count_failed_rounds         # failures in a row: rounds instead of calls
    uint8_t count_round_cycles          # cycles: rounds instead of calls
    uint8_t zero_tokens_unknown
    uint8_t near_duplicate              # places of 16 in which sketches agree
    uint8_t repeat_interval             # rounds after which the same advice is given again
    uint8_t limited_tool_count
    uint8_t tool_limits[MAX_LIMITED_TOOLS]          # repeats; NO_LIMIT = any number
    uint32_t limited_tools[MAX_LIMITED_TOOLS]       # mixed hashes
    uint32_t slight_result              # characters
    uint32_t slight_error               # characters
    uint32_t compress_cooldown          # rounds
    uint32_t compress_tries             # above 255: any number
    uint8_t frequent_tool_count
    uint32_t frequent_tools[MAX_FREQUENT_TOOLS]     # mixed hashes
    # rules
    uint32_t rules_enabled              # bit = rule
    uint32_t rules_alone                # bit = rule: its actions replace every other proposal
    uint32_t rules_after_redirect       # bit = rule: fires only while redirects are not heeded
    uint32_t action_rules[ARMS]         # the rules that have an action: bit = rule
    uint32_t user_action_rules[ARMS]    # the same of the user's rules: bit = place in their list
    uint32_t user_forcing               # bit = user's rule: its action is forced
    double output_loop_repeats
    uint8_t output_loop_idle_only       # not in a round that brought news
    double context_exhausted_saturation
    uint32_t context_exhausted_rounds
    double failure_wall_failures
    double failure_wall_trend
    double failure_wall_stuck
    double true_stagnation_stuck
    double true_stagnation_pause_from   # stuck in [from, to) does not count
    double true_stagnation_pause_to
    double true_stagnation_trend
    double true_stagnation_confidence
    double bad_cycle_quality
    double bad_cycle_stuck
    double context_high_saturation
    double context_critical_saturation
    double failure_chain_failures
    double prolonged_stagnation_stuck
    double tool_cycle_compress_from     # saturation from which compress is proposed as well
    double tool_repetition_repetition
    double tool_repetition_compress_from
    double mild_stagnation_stuck
    double moderate_stagnation_stuck
    double moderate_stagnation_saturation
    double slow_progress_trend
    double slow_progress_progress
    double slow_progress_stuck
    double progressing_progress         # with stuck = 0
    uint8_t progressing_yields          # not beside stagnation, cycle or repetition
    uint32_t redirects_ignored_redirects
    uint32_t transient_failure_patience
    uint32_t transient_persists_rounds
    uint32_t repeated_round_repeats
    uint32_t repeated_round_slight_repeats
    uint32_t repeated_call_calls
    uint32_t repeated_call_rounds
    uint32_t repeated_call_interleaved
    uint32_t repeated_result_results
    uint32_t repeated_result_rounds
    uint32_t repeated_error_errors
    uint32_t no_information_rounds
    uint32_t little_information_rounds
    uint32_t mostly_failing_failures
    uint32_t mostly_failing_rounds
    uint32_t repeated_text_texts
    uint32_t idle_rounds
    uint32_t idle_blank
    uint32_t loop_suspected_rounds
    uint32_t loop_suspected_errors
    uint32_t loop_suspected_no_information
    uint32_t loop_suspected_failures
    uint32_t loop_suspected_texts
    uint32_t loop_suspected_idle
    uint32_t loop_suspected_blank
    # bandit
    uint8_t tie_break
    double bias_redirect_repetition
    double bias_redirect_stuck
    double bias_retry_stuck
    double bias_retry_slow
    double bias_compress_saturation
    double bias_compress_stuck
    double bias_continue_progress
    double bias_continue_unstuck
    double cold_start_factor
    uint32_t cold_start_updates
    uint8_t propensities                # a decision says how probable its action was
    # feedback
    double round_cost
    double saturation_cost
    double saturation_from              # [0, 1)
    double failure_reward
    # learning
    uint32_t n_step                     # 1..MAX_STEPS
    double gamma                        # (0, 1]
    uint8_t backward_credit             # mean of the last n rewards, to the newest decision
    uint8_t threshold_update            # G > 0.5 raises alpha only, else beta only
    uint8_t learn_from_all
    Prior prior                         # of private posteriors


# Six lines of cache. Fields that one step reads together lie together; from sketch to
# pool they are the words that gather.h moves in blocks.
ctypedef struct Session "Session":
    uint64_t uid                # number in opening order: part of every random number's counter
    int64_t context_limit       # tokens; <= 0 unknown
    int64_t context_tokens      # tokens; -1 never told
    double trend                # EMA of the progress differences
    double progress             # newest progress score
    uint64_t sketch             # of the newest text that has one; 0 = none
    uint32_t same_call          # bit i, 10 + i, 20 + i: call i equals the call 1, 2, 3 before it
    uint32_t same_signature     # the same, without a look at results
    uint32_t calls              # whole session
    uint32_t errors             # whole session
    uint32_t empties            # whole session
    uint32_t error              # mixed hash of the newest error's result text
    uint32_t output             # mixed hash of the newest output text
    uint32_t round_limit        # 0 = none
    uint16_t stuck              # stuck iterations
    uint16_t twins              # 4 bits each: distance from a call back to one like it, 0 = none
    uint16_t error_bits
    uint16_t empty_bits
    uint8_t window_count        # calls in the window
    uint8_t history_count       # scores in the history, the opening 0.0 and the newest included
    uint8_t output_run          # equal outputs up to the newest, capped at RUN_WINDOW
    uint8_t failed_rounds       # rounds in a row whose calls all failed, capped at RUN_WINDOW
    uint8_t flags
    uint8_t repeated_tools      # bit i: a newer call has the tool of call i, of the newest RECENT
    uint16_t policy             # row of the fleet's policies
    uint8_t no_information      # rounds in a row that brought nothing
    uint8_t little_information  # rounds in a row that brought nothing or little
    uint8_t error_repeats       # failed rounds in a row with the same error
    uint8_t transient_rounds    # rounds in a row that failed transiently
    uint8_t idle_rounds         # rounds in a row without a call
    uint8_t blank_rounds        # rounds in a row without call and text
    uint8_t text_repeats        # texts in a row that are nearly the one before
    uint8_t unheeded_redirects
    uint8_t exhausted_rounds    # rounds in a row with an exhausted context
    uint8_t compress_wait       # rounds since compress was decided; 255 = never
    uint8_t compress_tries      # of compress since it last helped
    uint8_t round_repeats       # equal rounds in a row, 0 = no round with calls yet
    uint32_t round_periods         # 20 bits: newest rounds that equal those 2, 3, ... before
    uint32_t compressed_tokens  # context when compress was last decided; 0 = it helped
    uint32_t round_hashes[ROUND_HASHES / 2]     # two of 16 bits each, the newest lowest; 0 = none
    uint32_t round              # rounds so far
    uint16_t counted_error      # 16 bits of the hash of the error that error_repeats counts
    uint16_t pool               # row of the fleet's pools
    uint32_t generation         # times this slot was closed
    uint16_t decision_stuck     # as the newest decision saw it
    uint16_t pending            # 4 bits each: actions of the last decisions, or NOT_LEARNING
    uint32_t size[SIZES]        # characters of result text
    uint32_t signature[LAGS]    # mixed hashes of tool and arguments
    uint32_t call[WINDOW - 1]   # mixed hashes of signature and result text together
    uint32_t tool[RUN_WINDOW]   # mixed hashes of tool names
    uint16_t result[WINDOW - 1]  # 16 bits of the hashes of result texts
    uint16_t updates_since_decay    # of the private posterior
    float history[HISTORY - 1]  # progress scores before the newest
    uint32_t reward[MAX_STEPS]  # of the last rounds, in units of 2**-31: 0, 1/2 and 1 are exact
    float alpha[ARMS]           # private posterior
    float beta[ARMS]
    uint8_t updates[ARMS]       # of the private posterior
    uint8_t advice              # what the newest advice says, 0 = nothing
    uint8_t advice_age          # decisions since it was first given


# What the rules see, and users too. All names are documented in docs/semantics.md.
ctypedef struct Features "Features":
    double progress_score       # [0, 1]
    double progress_trend       # [-1, 1]
    double progress_trend_raw   # [-1, 1]
    double trend_confidence     # [0, 1]
    double context_saturation   # [0, 1], 0 if unknown
    double context_ratio        # tokens / limit, not clipped; the rules use this
    double repetition_score     # [0, 1]
    double error_rate           # [0, 1]
    double empty_rate           # [0, 1]
    double result_quality       # [0, 1]
    uint32_t round              # of this decision, from 1; 0 before the first round
    int32_t rounds_left         # -1 without a round limit
    uint32_t stuck_iterations
    uint32_t run_tool           # evidence: mixed hash of the repeated tool, 0 = none
    uint32_t error_result       # evidence: mixed hash of the newest error in the window, 0 = none
    uint32_t recent_tools[3]    # evidence: the newest calls' tools, newest first
    uint8_t run_length          # longest run of equal calls that repetition_score rests on
    uint8_t cycle               # 0, 2 or 3
    uint8_t output_repeats      # 0..10
    uint8_t failures_in_row     # 0..10
    uint8_t information         # what the round brought
    uint8_t own_limit           # repeats its tools may have; 0 = no limit of their own
    uint8_t no_information      # rounds in a row, as the next ones
    uint8_t little_information
    uint8_t round_repeats
    uint8_t call_repeats        # 0..12
    uint8_t result_repeats      # 0..12
    uint8_t recent_failures     # 0..12
    uint8_t error_repeats
    uint8_t transient_rounds
    uint8_t text_repeats
    uint8_t idle_rounds
    uint8_t blank_rounds
    uint8_t unheeded_redirects
    uint8_t exhausted_rounds
    uint8_t compress_wait
    uint8_t compress_tries
    uint8_t slight              # flag
    uint8_t compress_ready      # flag
    uint8_t compression_failed  # flag
    uint8_t context_known       # flag
    uint8_t plateau             # flag
    uint8_t making_progress     # flag


# The functions of users in a policy. Compiled code follows Numba's calling convention:
# int f(void* returned, void** error, const Features* features[, const RoundOutcome* outcome]),
# which gives 0 if all went well.
ctypedef struct UserCode "UserCode":
    size_t address[USER_FUNCTIONS]      # 0 = none
    uint8_t kind[USER_FUNCTIONS]        # what it returns
    uint8_t rule_count
    uint8_t parts                       # which there are


# What a user's reward sees beside the features.
ctypedef struct RoundOutcome "RoundOutcome":
    double reward               # [0, 1]: what the policy's formula gives
    int64_t success             # 1 or 0: as told, or else whether the last call had no error
    int64_t told                # 1 or 0: success as the round tells it; -1 = it does not
    int64_t calls
    int64_t decision_stuck


# The first call of a user's function that failed.
ctypedef struct UserFailure "UserFailure":
    Py_ssize_t row              # of the batch; -1 = none failed
    int32_t policy              # row of the fleet's policies
    int32_t place               # of the function
    int32_t status              # what the call gave: 0 = it returned what it may not
    uint64_t returned           # its bytes
    Features features           # what it was called with
    RoundOutcome outcome


# The packed input of one session's round; arrays are the round's calls, oldest first.
ctypedef struct Round "Round":
    Py_ssize_t calls
    const uint64_t* tool
    const uint64_t* signature
    const uint64_t* shape       # NULL = not given: the signatures stand in
    const uint64_t* result      # NULL = not given
    const uint8_t* flags        # NULL = not given
    const uint32_t* size        # NULL = not given
    uint64_t text               # 0 = none
    uint64_t sketch             # of the text, 16 nibbles; 0 = none
    int64_t context_tokens      # -1 = not told
    int64_t context_limit       # -1 = not told
    float progress              # NaN = not given
    float reward                # NaN = not given
    int8_t success              # -1 = not given
    uint8_t event


# A fleet's memory and, during a batch step, the columns in and out. NULL column = not given.
ctypedef struct Batch "Batch":
    Session* sessions
    const Policy* policies
    const UserCode* user_code   # one for each policy
    uint8_t user_parts          # which functions of users any policy has; 0 = none, as mostly
    Pool* pools
    Trial* trials               # one a session; NULL until a policy was chosen for one
    uint64_t key                # the fleet's seed
    const int64_t* slots        # row of each session of the batch
    const int64_t* call_offsets
    const uint64_t* call_tool
    const uint64_t* call_signature
    const uint64_t* call_shape
    const uint64_t* call_result
    const uint8_t* call_flags
    const uint32_t* call_size
    const uint64_t* text
    const uint64_t* text_sketch
    const int64_t* context_tokens
    const int64_t* context_limit
    const float* progress
    const float* reward_given
    const int8_t* success
    const uint8_t* event
    uint8_t* action             # out, and so on to the end
    uint8_t* candidates         # masks
    uint32_t* rules             # masks; row i is at i & rules_mask
    size_t rules_mask
    uint32_t* user_rules        # masks; row i is at i & user_rules_mask; NULL = nobody reads them
    size_t user_rules_mask
    uint8_t* tiebreak
    float* reward
    Features* features          # row i is at i & features_mask: all of N, or only a chunk's
    size_t features_mask
    void* feature_lanes         # a chunk's FeatureLanes, as rules read them; NULL = read `features`
    uint8_t features_wanted     # by the caller, evidence and all; else by the rules alone
    uint8_t* advice_age
    double* draws               # (N, ARMS), NaN where nothing was drawn
    double* bias                # (N, ARMS), NaN for what was no candidate
    double* propensity          # NaN where a policy does not tell it
    double* user_bias           # (rows, ARMS); row i is at i & user_bias_mask; NULL = none
    size_t user_bias_mask
    UserFailure* user_failure   # NULL = nobody asks
    Increment* increments       # (pools, ARMS): what this call, or a span of it, learns


cdef inline bint several(uint8_t actions) noexcept nogil:
    return (actions & (actions - 1)) != 0


cdef inline bint bad_flags(uint8_t flags) noexcept nogil:
    # Of a call: beside unknown ones, transient without an error, acknowledged with one.
    cdef uint8_t known = CALL_ERROR | CALL_EMPTY | CALL_TRANSIENT | CALL_ACKNOWLEDGED
    cdef uint8_t impossible = CALL_ACKNOWLEDGED if flags & CALL_ERROR else CALL_TRANSIENT
    return (flags & (impossible | ~known)) != 0


cdef inline uint32_t* rules_of(const Batch* batch, Py_ssize_t i) noexcept nogil:
    return &batch.rules[<size_t>i & batch.rules_mask]


cdef inline uint32_t* user_rules_of(const Batch* batch, Py_ssize_t i) noexcept nogil:
    return &batch.user_rules[<size_t>i & batch.user_rules_mask]


cdef inline uint32_t user_rules_at(const Batch* batch, Py_ssize_t i) noexcept nogil:
    return user_rules_of(batch, i)[0] if batch.user_rules else 0


cdef inline double* user_bias_of(const Batch* batch, Py_ssize_t i) noexcept nogil:
    # What users add to the arms' draws; NaN where they say nothing. NULL = nowhere.
    return &batch.user_bias[(<size_t>i & batch.user_bias_mask) * ARMS] if batch.user_bias else NULL


cdef inline Features* features_of(const Batch* batch, Py_ssize_t i) noexcept nogil:
    return &batch.features[<size_t>i & batch.features_mask]


cdef extern from "machine.h" nogil:
    int lowest_bit(uint32_t bits)
    void prefetch(const void* start, size_t size)
    void shift_words(void* words, int count)
    double clip(double value, double low, double high)
    double nearest(double value)

cdef extern from "mixing.h" nogil:
    uint32_t mix(uint64_t value)

cdef extern from "rounds.h" nogil:
    Round read_round(const Batch* batch, Py_ssize_t i)
