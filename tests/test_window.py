"""The window of the last calls: runs, cycles, staleness, failures in a row, and its bounds."""

import numpy as np
import pytest
from conftest import TOOL_HASHES, call, named, pack, watch

from cellium_fast import Fleet, Policy, RoundBatch, _records

CELLIUM, DEFAULT = Policy.preset("cellium"), Policy()
BY_CALL = DEFAULT.replace(count_cycles="calls")


def calls_of(text, **fields):
    """One call a letter; the letter is the signature."""
    return [call(ord(letter), **fields) for letter in text if letter != " "]


def last(text, policy=CELLIUM, **fields):
    """The features after calls given in one round."""
    return watch([{"calls": calls_of(text, **fields)}], policy)[0]


# --- Repetition ----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "run", "score"),
    [
        ("A", 1, 0.0),
        ("AA", 2, 0.0),
        ("AAA", 3, 0.25),
        ("AAAA", 4, 0.5),
        ("AAAAA", 5, 0.75),
        ("AAAAAA", 6, 1.0),
        ("AAAAAAAA", 8, 1.0),
        ("AAAAAAAAAAAA", 10, 1.0),  # the last ten calls
        ("AAAABC", 4, 0.5),  # anywhere among them
        ("AAA BBBB C", 4, 0.5),
        ("BBBB AAA C", 4, 0.5),
        ("AABAABAA", 2, 0.0),
        ("AAAA BCDEFGHI", 2, 0.0),  # only two of the four are left among the last ten
        ("AAAA BCDEFG", 4, 0.5),
        ("AAAA BCDEFGH", 3, 0.25),
    ],
)
def test_longest_run_among_the_last_ten(text, run, score):
    found = last(text)
    assert (found["run_length"], found["repetition_score"]) == (run, score)


@pytest.mark.parametrize(
    ("text", "run"), [("AAAA", 4), ("AAAAB", 1), ("BAAA", 3), ("AABB", 2), ("A" * 12, 10)]
)
def test_default_takes_the_run_that_ends_at_the_newest(text, run):
    assert last(text, DEFAULT)["run_length"] == run


def test_equal_calls_have_equal_results_by_default():
    calls = [call(1, result=result) for result in (7, 7, 7, 8, 8)]
    assert watch([{"calls": calls}], DEFAULT)[0]["run_length"] == 2
    assert watch([{"calls": calls}], CELLIUM)[0]["run_length"] == 5


def test_no_calls_have_no_run():
    found = watch([{"calls": []}], DEFAULT)[0]
    assert found["run_length"] == found["repetition_score"] == found["run_tool"] == 0


@pytest.mark.parametrize(
    ("tools", "factor"),
    [
        ([0, 0, 0, 0, 0, 0], 0.6),
        ([0, 1, 0, 1, 1, 0], 0.6),
        ([1, 1, 1, 1, 1, 0], 0.6),
        ([0, 1, 2, 0, 0, 0], 1.0),  # more than two tools
        ([2, 2, 2, 2, 2, 2], 0.6),
        ([3, 3, 3, 3, 3, 3], 1.0),  # not a frequent one
        ([0, 0, 0, 0, 0, 3], 1.0),
        ([3, 0, 0, 0, 0, 0], 1.0),
    ],
)
def test_frequent_tools(tools, factor):
    policy = Policy.preset("cellium", frequent_tools=("search", "read", "edit"))
    calls = [call(1, tool=tool) for tool in tools]
    assert watch([{"calls": calls}], policy)[0]["repetition_score"] == factor
    assert watch([{"calls": calls}], CELLIUM)[0]["repetition_score"] == 1.0


def test_frequent_tools_are_judged_over_the_last_ten_calls():
    policy = Policy.preset("cellium", frequent_tools=("search",))
    calls = [call(9, tool=3)] + [call(1, tool=0)] * 10
    assert watch([{"calls": calls}], policy)[0]["repetition_score"] == 0.6
    assert watch([{"calls": calls[:-1]}], policy)[0]["repetition_score"] == 1.0


# --- Cycles --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("AB", 0),
        ("BAB", 0),
        ("ABAB", 2),
        ("XXABAB", 2),
        ("ABABX", 0),
        ("AAAA", 0),  # A = B
        ("ABBA", 0),
        ("BCABC", 0),
        ("ABCABC", 3),
        ("ABCABCX", 0),
        ("XABCABC", 3),
        ("ABABAB", 2),  # looked for first
        ("AAAAAA", 3),  # any A, B, C
        ("AABAAB", 3),
        ("ABCXBC", 0),
    ],
)
def test_cycle(text, length):
    assert last(text)["cycle"] == length
    assert last(text, BY_CALL)["cycle"] == length


def cycle_of_rounds(calls, policy=DEFAULT):
    """The feature after rounds of one call."""
    return watch([{"calls": [one]} for one in calls], policy)[-1]["cycle"]


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("AB", 0),
        ("BAB", 0),
        ("ABAB", 0),
        ("ABABA", 0),
        ("XXABAB", 0),
        ("XXABABAB", 2),
        ("XBABAB", 0),
        ("ABABABX", 0),
        ("AAAA", 0),
        ("ABBA", 0),
        ("BCABC", 0),
        ("ABCABC", 3),
        ("ABCABCX", 0),
        ("XABCABC", 3),
        ("ABABAB", 2),
        ("AAAAAA", 0),  # not all may be equal
        ("AABAAB", 3),
        ("ABCXBC", 0),
        ("ABCDABC", 0),
        ("ABCDABCD", 4),
        ("XABCDEABCDE", 5),
        ("ABCDEFABCDEF", 6),
        ("XABCDEFABCDEF", 6),
        ("ABCDEFGABCDEFG", 0),  # longer than is looked for
    ],
)
def test_default_counts_cycles_in_rounds(text, length):
    assert cycle_of_rounds(calls_of(text)) == length
    assert last(text, DEFAULT)["cycle"] == 0, "one round is no cycle"
    assert cycle_of_rounds(calls_of(text), CELLIUM) == last(text)["cycle"], "rounds do not matter"


def test_default_cycles_have_equal_results():
    calls = [call(1 + k % 2, result=k // 3) for k in range(4)]
    assert watch([{"calls": calls}], CELLIUM)[0]["cycle"] == 2
    assert watch([{"calls": calls}], BY_CALL)[0]["cycle"] == 0
    # The sixth round brings no news, but the fourth had another result.
    rounds = [call(1 + k % 2, result=int(k == 3)) for k in range(6)]
    assert cycle_of_rounds(rounds) == 0
    assert cycle_of_rounds([*rounds, *rounds[4:]]) == 0
    assert cycle_of_rounds([*rounds, *rounds[4:], *rounds[4:]]) == 2


def test_default_cycle_of_one_call_with_two_answers():
    calls = [call(1, result=k % 2) for k in range(4)]
    assert watch([{"calls": calls}], CELLIUM)[0]["cycle"] == 0
    assert watch([{"calls": calls}], BY_CALL)[0]["cycle"] == 2
    assert cycle_of_rounds([*calls, *calls[:1]]) == 0
    assert cycle_of_rounds([*calls, *calls[:2]]) == 2


# --- Failures in a row ---------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("errors", "in_a_row"),
    [([1], 1), ([1, 0], 0), ([0, 1, 1], 2), ([1] * 10, 10), ([1] * 12, 10), ([], 0)],
)
def test_failures_of_calls(errors, in_a_row):
    calls = [call(k, error=bool(error)) for k, error in enumerate(errors)]
    assert watch([{"calls": calls}], CELLIUM)[0]["failures_in_row"] == in_a_row


def test_failures_of_rounds():
    bad, good = call(error=True), call()
    rounds = [[bad, bad], [bad], [], [bad, good], [bad], [good, bad]]
    found = watch([{"calls": calls} for calls in rounds], DEFAULT)
    # A round without calls neither adds nor ends; one good call ends it.
    assert [one["failures_in_row"] for one in found] == [1, 2, 2, 0, 1, 0]
    assert watch([{"calls": [bad]}] * 13, DEFAULT)[-1]["failures_in_row"] == 10


# --- Staleness -----------------------------------------------------------------------------------
def productive(rounds, policy):
    """Whether the newest call is productive, read from progress: only that differs."""
    return watch(rounds, policy)[-1]["progress_score"]


def test_stale_calls_are_unproductive_by_default():
    fresh = [call(1, result=1), call(2, result=1)]
    stale = [call(1, result=1), call(1, result=1)]
    # Distinct tools stay one of two, the run stays below three: only productivity differs.
    together = [productive([{"calls": calls}], DEFAULT) for calls in (fresh, stale)]
    assert together[0] - together[1] == pytest.approx(0.3 / 2 + 0.1)
    apart = [productive([{"calls": [one]} for one in calls], DEFAULT) for calls in (fresh, stale)]
    assert apart[0] - apart[1] == pytest.approx(0.3 / 2 + 0.1)
    ignored = [productive([{"calls": calls}], CELLIUM) for calls in (fresh, stale)]
    assert ignored[0] == ignored[1]


def test_another_answer_is_not_stale():
    changed = [call(1, result=1), call(1, result=2)]
    assert productive([{"calls": changed}], DEFAULT) == productive(
        [{"calls": [call(1), call(2)]}], DEFAULT
    )


@pytest.mark.parametrize(("between", "stale"), [(10, True), (11, False)])
def test_staleness_reaches_as_far_as_the_window(between, stale):
    calls = [call(1), *(call(2 + k) for k in range(between)), call(1)]
    fresh = [*calls[:-1], call(99)]
    lost = productive([{"calls": fresh}], DEFAULT) - productive([{"calls": calls}], DEFAULT)
    assert lost == pytest.approx(0.3 / 4 + 0.1 if stale else 0.0)


# --- Bounds --------------------------------------------------------------------------------------
def test_a_round_of_ten_thousand_calls_leaves_the_last_twelve(rng):
    calls = [
        call(rng.randrange(4), rng.randrange(5), rng.randrange(2), rng.random() < 0.3)
        for _ in range(10_000)
    ]
    tail = calls[-12:]
    whole, short = (watch([{"calls": some}], CELLIUM)[0] for some in (calls, tail))
    totals = {"error_rate", "empty_rate", "result_quality"}
    assert {name for name in whole if whole[name] != short[name]} <= totals
    assert whole["error_rate"] == sum(one["error"] for one in calls) / 10_000


def test_a_round_of_calls_equals_the_same_calls_in_rounds_of_one(rng):
    calls = [call(rng.randrange(3), rng.randrange(5), rng.randrange(2)) for _ in range(40)]
    given = {"progress": 0.5}
    together = watch([{"calls": calls, **given}], CELLIUM)[-1]
    apart = watch([{"calls": [one], **given} for one in calls], CELLIUM)[-1]
    of_window = ("repetition_score", "run_length", "cycle", "failures_in_row", "error_rate",
                 "empty_rate", "result_quality", "run_tool", "recent_tools")  # fmt: skip
    for name in of_window:
        assert np.array_equal(together[name], apart[name]), name


def test_totals_saturate_and_the_session_goes_on():
    fleet = Fleet(policies={"only": CELLIUM}, seed=8)
    ids = fleet.open(1)
    record = fleet._memory.sessions[ids[0] & 0xFFFFFFFF : (ids[0] & 0xFFFFFFFF) + 1]
    for name in ("calls", "errors", "round"):
        record[name] = 2**32 - 2
    record["stuck"] = 2**16 - 2
    for _ in range(3):
        found = named(fleet.step(ids, pack([{"calls": [call(error=True)] * 3}])).features[0])
    assert found["error_rate"] == 1.0
    assert found["round"] == 2**32 - 1
    assert found["stuck_iterations"] == 2**16 - 1


def test_columns_left_out_are_no_results_no_errors_no_sizes():
    # Where sizes are left out no result is slight, so that an equal one is no news at all.
    sparse = RoundBatch(
        call_offsets=np.array([0, 3]),
        call_tool=np.array([TOOL_HASHES[0]] * 3, np.uint64),
        call_signature=np.array([5, 5, 5], np.uint64),
    )
    full = pack([{"calls": [call(5, size=0)] * 3}])
    found = []
    for batch in (sparse, full):
        fleet = Fleet()
        found.append(named(fleet.step(fleet.open(1), batch).features[0]))
    differs = {name: (found[0][name], found[1][name])
               for name in found[0] if found[0][name] != found[1][name]}
    assert differs == {"slight": (0, 1), "result_repeats": (3, 0)}


# --- Evidence ------------------------------------------------------------------------------------
def mixed(tool):
    return _records.mix(TOOL_HASHES[tool])


def test_evidence_names_the_repeated_tool():
    calls = [call(1, tool=1)] * 4 + [call(2, tool=2)]
    assert watch([{"calls": calls}], CELLIUM)[0]["run_tool"] == mixed(1)
    assert watch([{"calls": calls}], DEFAULT)[0]["run_tool"] == mixed(2)


def test_of_two_longest_runs_the_newer_is_named():
    calls = [call(1, tool=1)] * 3 + [call(2, tool=2)] * 3 + [call(3, tool=3)]
    assert watch([{"calls": calls}], CELLIUM)[0]["run_tool"] == mixed(2)


def test_evidence_keeps_the_newest_error_and_the_newest_tools():
    calls = [call(1, 0, 11, error=True), call(2, 1, 12, error=True), call(3, 2, 13)]
    found = watch([{"calls": calls[:2]}, {"calls": calls[2:]}], CELLIUM)
    assert found[0]["recent_tools"] == [mixed(1), mixed(0), 0]
    assert found[1]["recent_tools"] == [mixed(2), mixed(1), mixed(0)]
    assert found[1]["error_result"] == _records.mix(12)
    many = watch([{"calls": [*calls, *[call(9)] * 10]}, {"calls": [call(9)] * 2}], CELLIUM)
    assert many[0]["error_result"] == _records.mix(12)
    assert many[1]["error_result"] == 0, "it left the window"


def test_mixing_keeps_zero_for_none():
    assert _records.mix(0) == 0
    values = [_records.mix(value) for value in range(1, 20_000)]
    assert 0 not in values
    assert len(set(values)) > 19_990
