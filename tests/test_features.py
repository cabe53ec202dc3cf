"""Stage 1 by hand: every number here is worked out from the page, not from the code."""

import math

import numpy as np
import pytest
from conftest import call, pack, watch
from hypothesis import given
from hypothesis import strategies as st

from cellium_fast import Fleet, Policy, Round, ToolCall, _records, kernels

CELLIUM, DEFAULT = Policy.preset("cellium"), Policy()


def last(rounds, policy=CELLIUM, **limits):
    return watch(rounds, policy, **limits)[-1]


def given_progress(*scores, policy=CELLIUM, calls=()):
    """The features after rounds with the caller's own progress."""
    return watch([{"progress": score, "calls": list(calls)} for score in scores], policy)


# --- Progress ------------------------------------------------------------------------------------
def test_no_calls_no_progress():
    found = last([{}])
    assert found["progress_score"] == found["result_quality"] == 0.0


def test_one_good_call():
    # quality 0.4 + 0.3 + 0.3 * 0.5 = 0.85; u = 1, r = 0
    found = last([{"calls": [call()]}])
    assert found["progress_score"] == pytest.approx(0.3 * 0.85 + 0.3 + 0.15 + 0.15 + 0.1)
    assert found["result_quality"] == pytest.approx(0.85)


def test_one_failed_call():
    # quality 0.3 + 0.15 = 0.45
    found = last([{"calls": [call(error=True)]}])
    assert found["progress_score"] == pytest.approx(0.3 * 0.45 + 0.15 + 0.15)
    assert (found["error_rate"], found["empty_rate"]) == (1.0, 0.0)


@pytest.mark.parametrize(("policy", "wasted"), [(CELLIUM, True), (DEFAULT, False)])
def test_one_empty_call(policy, wasted):
    # quality 0.4 + 0.15 = 0.55; only `cellium` calls it unproductive
    found = last([{"calls": [call(empty=True)]}], policy)
    assert found["progress_score"] == pytest.approx(0.3 * 0.55 + 0.15 + (0 if wasted else 0.4))
    assert (found["error_rate"], found["empty_rate"]) == (0.0, 1.0)


def test_four_equal_calls():
    # r = 0.5, u = 1/4: 0.15 * max(0.25 - 0.25, 0)
    found = last([{"calls": [call()] * 4}])
    assert found["progress_score"] == pytest.approx(0.3 * 0.85 + 0.3 + 0.15 + 0 + 0.1 - 0.05)


def test_progress_looks_at_the_last_four_calls():
    # Among them: one error and one empty call, three tools, sizes 10 -> 20 (growth 1).
    calls = [
        call(9, error=True, size=999),
        call(1, tool=0, size=10),
        call(2, tool=1, error=True, size=5),
        call(3, tool=1, empty=True, size=0),
        call(4, tool=2, size=20),
    ]
    quality = 0.4 * 0.75 + 0.3 * 0.75 + 0.3 * 1.0
    expected = 0.3 * quality + 0.3 * 0.5 + 0.15 * 0.75 + 0.15 * 0.75 + 0.1
    assert last([{"calls": calls}])["progress_score"] == pytest.approx(expected)


def test_the_callers_progress_counts_as_the_decimal_it_wrote():
    for score in (0.7, 0.1, 0.333, 1.0, 0.0):
        assert given_progress(score)[0]["progress_score"] == score
    # 0.7 as float32 is below 0.7; the threshold is met all the same.
    assert given_progress(0.7)[0]["making_progress"] is True
    assert given_progress(0.6999)[0]["progress_score"] == 0.6999


# --- Quality -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("sizes", "growth"),
    [
        ([10], 0.5),
        ([10, 20], 1.0),
        ([10, 30], 1.0),  # clipped
        ([10, 15], 0.75),
        ([20, 10], 0.25),
        ([10, 0], 0.0),
        ([0, 0], 0.5),
        ([0, 1], 1.0),  # max(first, 1)
        ([7, 10, 1, 2, 3, 15], 0.75),  # the last five
    ],
)
def test_growth(sizes, growth):
    calls = [call(k, size=size) for k, size in enumerate(sizes)]
    found = last([{"calls": calls}])
    assert found["result_quality"] == pytest.approx(0.7 + 0.3 * growth)


def test_quality_is_over_the_whole_session():
    calls = [call(k, error=k < 5, empty=5 <= k < 8) for k in range(20)]
    found = last([{"calls": calls}])
    assert found["error_rate"] == pytest.approx(5 / 20)
    assert found["empty_rate"] == pytest.approx(3 / 20)
    assert found["result_quality"] == pytest.approx(0.4 * 0.75 + 0.3 * 0.85 + 0.15)


# --- Trend ---------------------------------------------------------------------------------------
def test_trend_is_the_average_of_the_differences():
    found = given_progress(0.5, 1.0, 0.25)
    assert [one["progress_trend_raw"] for one in found] == pytest.approx([0.5, 0.5, -0.75])
    trend = [0.15, 0.3 * 0.5 + 0.7 * 0.15]
    trend.append(0.3 * -0.75 + 0.7 * trend[-1])
    assert [one["progress_trend"] for one in found] == pytest.approx(trend)


def test_a_larger_alpha_forgets_faster():
    found = given_progress(0.5, 1.0, 0.25, policy=Policy(ema_alpha=1.0))
    assert found[-1]["progress_trend"] == pytest.approx(-0.75)


def confidence_of(scores):
    """R^2 by NumPy: the squared correlation with the place in the history."""
    history = [0.0, *scores][-10:]
    return np.corrcoef(np.arange(len(history)), history)[0, 1] ** 2


@pytest.mark.parametrize(
    "scores",
    [
        (0.5, 1.0),
        (0.5, 0.25, 1.0),
        (1.0, 0.0, 1.0, 0.0),
        tuple(k / 16 for k in range(16)),
        (0.0,) * 3 + (0.125, 0.5, 0.25, 0.875, 0.0, 0.625, 0.75, 0.375, 1.0, 0.5),
    ],
)
def test_confidence_is_r_squared_over_the_last_ten(scores):
    found = given_progress(*scores)[-1]["trend_confidence"]
    assert found == pytest.approx(confidence_of(scores), abs=1e-6)


def test_confidence_needs_three_scores_and_variance():
    assert given_progress(0.5)[-1]["trend_confidence"] == 0.0
    assert given_progress(0.5, 1.0)[-1]["trend_confidence"] == pytest.approx(1.0)
    assert given_progress(0.0, 0.0, 0.0)[-1]["trend_confidence"] == 0.0
    # The opening 0.0 leaves the history after ten scores.
    assert given_progress(*[0.5] * 9)[-1]["trend_confidence"] > 0.1
    assert given_progress(*[0.5] * 10)[-1]["trend_confidence"] == 0.0


@given(st.lists(st.integers(0, 16), min_size=2, max_size=14))
def test_confidence_stays_in_the_unit_interval(scores):
    found = given_progress(*[score / 16 for score in scores])[-1]["trend_confidence"]
    assert 0.0 <= found <= 1.0


# --- Stuck ---------------------------------------------------------------------------------------
BAD = {"error": True, "size": 0}
# change of progress from 0.5, the last calls oldest first, stuck after (2 before)
STUCK = [
    ("falls", -0.031, [call(1)], 3),
    ("falls less", -0.029, [call(1)], 0),  # a good newest call with q3 >= 0.6 clears it
    ("two unproductive", 0.5, [call(1, **BAD), call(2, **BAD)], 3),
    ("one unproductive", 0.081, [call(1), call(2, **BAD)], 0),
    ("newest is good, q3 0.73", 0.0, [call(1, **BAD), call(2, **BAD), call(3, size=9)], 0),
    ("newest is good, q3 0.58", 0.0, [call(1, **BAD), call(2, **BAD), call(3, size=0)], 2),
    ("same, q3 0.72", 0.0, [call(1), call(1), call(1, error=True)], 2),
    ("same, q3 0.47", 0.0, [call(1, size=99), call(1, size=99, empty=True), call(1, **BAD)], 3),
    ("rises a little", 0.05, [call(1, size=99), call(2), call(3, **BAD)], 1),
    ("rises enough", 0.081, [call(1, size=99), call(2), call(3, **BAD)], 0),
    ("no calls, falls", -0.5, [], 2),
    ("no calls, rises a little", 0.05, [], 1),
    ("no calls, rises enough", 0.09, [], 0),
    ("level", 0.0, [call(1, size=99), call(2), call(3, **BAD)], 2),
]


@pytest.mark.parametrize(
    ("change", "calls", "after"), [row[1:] for row in STUCK], ids=[row[0] for row in STUCK]
)
def test_stuck(change, calls, after):
    # Stuck 2 with an empty window cannot be reached by rounds: it is put in the record.
    fleet = Fleet(policies={"only": CELLIUM})
    ids = fleet.open(1)
    fleet.step(ids, pack([{"progress": 0.5}]))
    fleet._memory.sessions["stuck"][0] = 2
    decisions = fleet.step(ids, pack([{"progress": 0.5 + change, "calls": calls}]))
    assert decisions.features["stuck_iterations"][0] == after


def test_stuck_restarts_after_a_redirect():
    off = {name: {"enabled": False} for name, _ in CELLIUM.rules if name != "mild_stagnation"}
    rounds = [{"calls": [call(9, **BAD)], "progress": 0.0}] * 5
    for action, expected in (("retry", [0, 1, 2, 3, 4]), ("redirect", [0, 1, 1, 1, 1])):
        rules = {**off, "mild_stagnation": {"actions": [action]}}
        found = watch(rounds, Policy.preset("cellium", rules=rules))
        assert [one["stuck_iterations"] for one in found] == expected


# --- Context -------------------------------------------------------------------------------------
def context_of(rounds, limit=100):
    found = watch(rounds, CELLIUM, context_limit=limit)
    return [(one["context_known"], one["context_ratio"], one["context_saturation"])
            for one in found]  # fmt: skip


def test_the_last_value_told_stands():
    told = [None, 40, None, 0, 150]
    known = [(False, 0, 0), (True, 0.4, 0.4), (True, 0.4, 0.4), (True, 0, 0), (True, 1.5, 1.0)]
    assert context_of([{"context_tokens": tokens} for tokens in told]) == known


def test_a_limit_of_zero_is_unknown():
    rounds = [{"context_tokens": 50}, {"context_limit": 0}, {"context_limit": 200}]
    assert context_of(rounds) == [(True, 0.5, 0.5), (False, 0.0, 0.0), (True, 0.25, 0.25)]
    assert context_of([{"context_tokens": 50}], None) == [(False, 0.0, 0.0)]


@pytest.mark.parametrize("tokens", [None, math.nan, -1, -math.inf])
def test_an_object_that_tells_no_tokens(tokens):
    session = Fleet().session("s", context_limit=100)
    session.step(Round(context_tokens=60))
    assert session.step(Round(context_tokens=tokens)).features.context_ratio == 0.6


@pytest.mark.parametrize("limit", [None, math.nan])
def test_a_limit_that_is_not_told_stands(limit):
    session = Fleet().session("s", context_limit=100)
    decision = session.step(Round(context_tokens=60, context_limit=limit))
    assert decision.features.context_ratio == 0.6
    assert context_of([{"context_tokens": 60, "context_limit": -1}]) == [(True, 0.6, 0.6)]


# --- Outputs -------------------------------------------------------------------------------------
def test_output_repeats():
    texts = [7, None, 7, 7, 8, 8, None, 7, 8]
    found = watch([{"text": text} for text in texts], CELLIUM)
    assert [one["output_repeats"] for one in found] == [0, 0, 2, 3, 1, 2, 2, 1, 1]


def test_output_repeats_stop_at_ten():
    assert last([{"text": 7}] * 14)["output_repeats"] == 10


def test_no_text_is_never_a_repeat():
    session = Fleet().session("s")
    texts = ["same", None, "", "  \n", " same\n", "other"]
    repeats = [session.step(Round(text=text)).features.output_repeats for text in texts]
    assert repeats == [0, 0, 0, 0, 2, 1]


# --- Plateau and progress ------------------------------------------------------------------------
def plateau_after(scores, calls):
    rounds = [{"progress": score} for score in scores[:-1]]
    return last([*rounds, {"progress": scores[-1], "calls": calls}])


def test_plateau():
    # Level at 0.5 for so long that the trend is gone; stuck once by two unproductive calls.
    level = [0.5] * 12
    calls = [call(k) for k in range(4)] + [call(8, empty=True), call(9, empty=True)]
    found = plateau_after(level, calls)
    assert found["stuck_iterations"] == 1
    assert found["plateau"] is True
    assert found["making_progress"] is True, "a plateau counts as progress"
    assert plateau_after([*level, 0.551], calls)["plateau"] is False, "raw >= 0.05"
    assert plateau_after([0.5] * 5, calls)["plateau"] is False, "trend >= 0.03"
    assert plateau_after(level, [call()])["plateau"] is False, "stuck 0"
    poor = [call(k, error=True) for k in range(2)]
    assert plateau_after(level, poor)["plateau"] is False, "poor results"


def test_plateau_needs_an_unsure_trend():
    # A slow steady rise: |trend| < 0.03 and |raw| < 0.05, but on a line.
    rise = [k / 100 for k in range(1, 14)]
    calls = [call(k) for k in range(4)] + [call(8, empty=True), call(9, empty=True)]
    found = plateau_after(rise, calls)
    assert found["trend_confidence"] > 0.99
    assert found["stuck_iterations"] == 1
    assert found["plateau"] is False


@pytest.mark.parametrize(
    ("scores", "making"),
    [((0.7,), True), ((0.09,), False), ((0.11,), True), ((0.69, 0.0), False), ((0.0,), False)],
)
def test_making_progress(scores, making):
    # trend > 0.03 or progress >= 0.7; a first score of 0.09 gives the trend 0.027
    assert given_progress(*scores)[-1]["making_progress"] is making


# --- The opening, and user messages --------------------------------------------------------------
def test_opening():
    session = Fleet().session("s", round_limit=9, context_limit=100)
    found = session.decision.features._asdict()
    assert found.pop("rounds_left") == 9
    assert not any(np.any(value) for value in found.values())
    assert session.decision.reward is None
    assert session.decision.action == 0


def test_rounds_left():
    found = watch([{}] * 4, CELLIUM, round_limit=3)
    assert [one["rounds_left"] for one in found] == [2, 1, 0, 0]
    assert [one["round"] for one in found] == [1, 2, 3, 4]
    assert watch([{}], CELLIUM)[0]["rounds_left"] == -1


def test_a_user_message_clears_the_evidence_and_keeps_the_totals():
    before = [{"calls": [call(1, **BAD)] * 4, "text": 5, "context_tokens": 50}] * 3
    after = {"text": 5, "event": 1}
    found = last([*before, after], CELLIUM, context_limit=100)
    cleared = ("stuck_iterations", "progress_trend", "progress_score", "trend_confidence",
               "repetition_score", "run_length", "cycle", "output_repeats",
               "failures_in_row", "error_result")  # fmt: skip
    assert {name: found[name] for name in cleared} == dict.fromkeys(cleared, 0)
    assert found["round"] == 4
    assert found["error_rate"] == 1.0
    assert found["context_ratio"] == 0.5


def test_a_compaction_clears_nothing():
    rounds = [{"calls": [call(1, **BAD)] * 4, "text": 5}] * 3
    compacted = [*rounds[:2], {**rounds[2], "event": 2}]
    assert last(compacted) == last(rounds)


def test_a_user_message_between_rounds_is_the_event_of_the_next():
    rounds = [{"calls": [call(1, **BAD)] * 4, "text": 5}] * 2
    fleet = Fleet(policies={"only": CELLIUM})
    ids = fleet.open(2)
    for given_round in rounds:
        fleet.step(ids, pack([given_round] * 2))
    fleet.user_message(ids[:1])
    found = fleet.step(ids, pack([{"text": 5}, {"text": 5, "event": 1}])).features
    assert found[0] == found[1]
    assert found["output_repeats"][0] == 0


# --- From objects --------------------------------------------------------------------------------
def test_objects_and_columns_say_the_same():
    session = Fleet().session("s", context_limit=100)
    good = ToolCall("search", {"q": 1}, "0123456789")
    bad = ToolCall("read", {"f": 2}, "x" * 20, error=True)
    by_object = session.step(Round([good, bad, good], context_tokens=50)).features
    calls = [call(1, 0, 1), call(2, 1, 2, error=True, size=20), call(1, 0, 1)]
    expected = last([{"calls": calls, "context_tokens": 50}], DEFAULT, context_limit=100)
    for name in _records.FEATURES.names:
        if name != "error_result":  # the hash of a text
            assert np.array_equal(getattr(by_object, name), expected[name]), name


def test_ema_kernel_is_the_trend():
    found = given_progress(0.5, 1.0, 0.25)
    state = np.zeros(1)
    for one in found:
        state = kernels.ema(np.array([one["progress_trend_raw"]]), state, 0.3)
        assert state[0] == one["progress_trend"]
