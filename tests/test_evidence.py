"""What a round brought, line by line of the page, on the reference and on the fleet."""

import pytest
import reference
from conftest import call, pack

from cellium_fast import Fleet, Policy

NOT_JUDGED, NOTHING, LITTLE, ACKNOWLEDGEMENT, NEWS = range(5)
OFF = {name: {"enabled": False} for name in reference.RULES}
QUIET = Policy(rules=OFF)  # every decision is to continue


def ok(signature=1, result=1, size=100, **others):
    return call(signature, result=result, size=size, **others)


def fail(signature=1, result=1, size=100, **others):
    return call(signature, result=result, size=size, error=True, **others)


def of(*calls, **others):
    return {"calls": list(calls), **others}


def fresh(place):
    """A call that was not made before, with a result not seen before."""
    return ok(1_000 + place, 1_000 + place)


def values(decide, name, rounds, policy=QUIET, **limits):
    """One feature after each round."""
    return [seen["features"][name] for seen in decide(rounds, policy, **limits)]


def last(decide, name, rounds, policy=QUIET):
    return values(decide, name, rounds, policy)[-1]


# --- Each line of the list -----------------------------------------------------------------------
LINES = {
    "a transient error": ([], fail(transient=True), NOT_JUDGED),
    "a transient error that was there before": (
        [fail(transient=True)], fail(transient=True), NOT_JUDGED),
    "a transient error that says what a call gave": ([ok()], fail(transient=True), NOT_JUDGED),
    "an error": ([], fail(), NOTHING),
    "another error": ([fail(1, 1)], fail(1, 2), NOTHING),
    "the same error, short": ([fail(size=1)], fail(size=1), NOTHING),
    "an error where there was a result": ([ok(1, 1)], fail(1, 2), NOTHING),
    "the same call and result": ([ok()], ok(), NOTHING),
    "the same, just not slight": ([ok()], ok(size=25), NOTHING),
    "the same, just slight": ([ok()], ok(size=24), LITTLE),
    "the same, of no characters": ([ok()], ok(size=0), LITTLE),
    "the same, acknowledged": ([ok()], ok(acknowledged=True), NOTHING),
    "the same, acknowledged and slight": ([ok()], ok(size=4, acknowledged=True), LITTLE),
    "the same, empty but not slight": ([ok()], ok(empty=True), NOTHING),
    "the same, empty and acknowledged": ([ok()], ok(empty=True, acknowledged=True), NOTHING),
    "the same, empty, acknowledged and slight": (
        [ok()], ok(size=0, empty=True, acknowledged=True), LITTLE),
    "an empty result": ([], ok(empty=True, size=0), LITTLE),
    "a long empty result": ([], ok(empty=True), LITTLE),
    "an empty result known from another call": ([ok(1)], ok(2, empty=True), LITTLE),
    "an empty acknowledgement": ([], ok(empty=True, acknowledged=True), ACKNOWLEDGEMENT),
    "an empty acknowledgement of no characters": (
        [], ok(size=0, empty=True, acknowledged=True), ACKNOWLEDGEMENT),
    "an empty acknowledgement known from another call": (
        [ok(1)], ok(2, empty=True, acknowledged=True), ACKNOWLEDGEMENT),
    "a new acknowledgement": ([], ok(size=4, acknowledged=True), NEWS),
    "a long new acknowledgement": ([], ok(size=4_000, acknowledged=True), NEWS),
    "a new acknowledgement of a known call": ([ok(1, 1)], ok(1, 2, acknowledged=True), NEWS),
    "an acknowledgement known from another call": (
        [ok(1)], ok(2, acknowledged=True), ACKNOWLEDGEMENT),
    "an acknowledgement known from another call, slight": (
        [ok(1)], ok(2, size=4, acknowledged=True), ACKNOWLEDGEMENT),
    "a known result of another call": ([ok(1)], ok(2), NOTHING),
    "a known result of another call, just not slight": ([ok(1)], ok(2, size=25), NOTHING),
    "a known result of another call, just slight": ([ok(1)], ok(2, size=24), LITTLE),
    "what an error said": ([fail(1, 7)], ok(2, 7), NOTHING),
    "a new result": ([ok(1, 1)], ok(2, 2), NEWS),
    "a new result of a known call": ([ok(1, 1)], ok(1, 2), NEWS),
    "a new slight result": ([ok(1, 1)], ok(1, 2, size=1), NEWS),
    "a known call again, later": ([ok(), fresh(1), fresh(2)], ok(), NOTHING),
}  # fmt: skip


@pytest.mark.parametrize("line", LINES)
def test_what_one_call_brings(line, decide):
    before, newest, expected = LINES[line]
    rounds = [*(of(one) for one in before), of(newest)]
    assert last(decide, "information", rounds) == expected


@pytest.mark.parametrize("line", LINES)
def test_what_a_call_of_a_tool_with_a_limit_brings(line, decide):
    before, newest, expected = LINES[line]
    rounds = [*(of({**one, "tool": 3}) for one in before), of({**newest, "tool": 3})]
    for limit in (1, 254, "poll", "exempt"):
        policy = QUIET.replace(tool_limits={"run": limit})
        wanted = NEWS if expected == NEWS else NOT_JUDGED
        assert last(decide, "information", rounds, policy) == wanted
    other = QUIET.replace(tool_limits={"read": 5})
    assert last(decide, "information", rounds, other) == expected


def test_where_sizes_are_left_out_no_result_is_slight(decide):
    rounds = [of(ok(size=None)), of(ok(size=None)), of(ok(2, size=None))]
    assert values(decide, "information", rounds) == [NEWS, NOTHING, NOTHING]
    assert values(decide, "slight", rounds) == [False] * 3


def untold(*given, **others):
    """A call whose result is not told."""
    return {name: value for name, value in ok(*given, **others).items() if name != "result"}


@pytest.mark.parametrize(("newest", "expected"), [
    (untold(2), NEWS),
    (untold(2, size=1), NEWS),
    (untold(2, acknowledged=True), NEWS),
    (untold(1), NOTHING),
    (untold(1, size=24), LITTLE),
    (untold(1, acknowledged=True), NOTHING),
    (untold(2, empty=True), LITTLE),
    (untold(2, empty=True, acknowledged=True), ACKNOWLEDGEMENT),
    (untold(2, error=True), NOTHING),
    (untold(2, error=True, transient=True), NOT_JUDGED),
])  # fmt: skip
def test_where_results_are_left_out_every_other_call_brings_news(newest, expected, decide):
    assert last(decide, "information", [of(untold(1)), of(newest)]) == expected
    assert last(decide, "information", [of(untold(1), newest)]) == max(expected, NEWS)
    together = [of(untold(1), untold(3)), of(untold(1), newest)]
    assert last(decide, "information", together) == max(expected, NOTHING)


@pytest.mark.parametrize("most", [0, 5, 30])
def test_slight_is_a_parameter(most, decide):
    policy = QUIET.replace(slight_result=most)
    for size, expected in ((most, LITTLE), (most + 1, NOTHING)):
        assert last(decide, "information", [of(ok()), of(ok(size=size))], policy) == expected


@pytest.mark.parametrize(("between", "expected"), [(10, NOTHING), (11, NEWS)])
def test_a_call_is_compared_with_the_eleven_before_it(between, expected, decide):
    others = [of(fresh(place)) for place in range(between)]
    assert last(decide, "information", [of(ok()), *others, of(ok())]) == expected
    at_once = [fresh(place) for place in range(between)]
    assert last(decide, "information", [of(ok(), *at_once), of(ok())]) == expected


def test_the_calls_of_its_own_round_are_before_it_too(decide):
    silent = ok(2, 2, empty=True, acknowledged=True)
    rounds = [of(ok(1, 1)), of(ok(1, 1), silent, silent)]
    assert last(decide, "information", rounds) == ACKNOWLEDGEMENT
    assert last(decide, "result_repeats", rounds) == 2
    assert last(decide, "call_repeats", rounds) == 2


BEST = [
    ([], NOT_JUDGED),
    ([fail(5, 5, transient=True)], NOT_JUDGED),
    ([fail(5, 5, transient=True), fail(6, 6)], NOTHING),
    ([ok(5, 5, empty=True), fail(6, 6)], LITTLE),
    ([ok(5, 5, empty=True, acknowledged=True), ok(6, 6, empty=True), fail(7, 7)],
     ACKNOWLEDGEMENT),
    ([fail(7, 7), ok(8, 8), ok(5, 5, empty=True, acknowledged=True)], NEWS),
]  # fmt: skip


@pytest.mark.parametrize(("calls", "expected"), BEST)
def test_a_round_brought_the_best_of_what_its_calls_did(calls, expected, decide):
    assert last(decide, "information", [of(*calls)]) == expected
    assert last(decide, "information", [of(*calls[::-1])]) == expected


def test_of_many_calls_the_last_twelve_are_judged(decide):
    assert last(decide, "information", [of(fresh(0), *[fail()] * 11)]) == NEWS
    assert last(decide, "information", [of(fresh(0), *[fail()] * 12)]) == NOTHING
    assert last(decide, "information", [of(*[ok()] * 13)]) == NEWS
    assert last(decide, "slight", [of(ok(), *[ok(size=1)] * 12)])
    assert not last(decide, "slight", [of(ok(), *[ok(size=1)] * 11)])
    # All of them count where it matters whether every call failed, and whether rounds are equal.
    assert last(decide, "transient_rounds", [of(fail(), *[fail(transient=True)] * 12)]) == 0
    for first, expected in ((1, [1, 2]), (2, [1, 1])):
        rounds = [of(fresh(place), *[ok()] * 12) for place in (1, first)]
        assert values(decide, "round_repeats", rounds) == expected


def test_a_shape_sees_through_what_is_volatile(decide):
    rounds = [of(ok(place, 1, shape=77)) for place in range(4)]
    assert values(decide, "call_repeats", rounds) == [1, 2, 3, 4]
    assert values(decide, "run_length", rounds) == [1, 2, 3, 4]
    assert values(decide, "round_repeats", rounds) == [1, 2, 3, 4]
    blind = QUIET.replace(see_through_volatile=False)
    assert values(decide, "call_repeats", rounds, blind) == [1] * 4
    assert values(decide, "run_length", rounds, blind) == [1] * 4
    assert values(decide, "round_repeats", rounds, blind) == [1] * 4


# --- Rounds in a row without information ---------------------------------------------------------
# news, nothing, little, acknowledgement, not judged, no calls
STREAM = {
    "N": lambda place: of(fresh(place)),
    "-": lambda place: of(fail(place, 7)),
    "l": lambda place: of(ok(2_000 + place, 2_000 + place, empty=True)),
    "a": lambda place: of(ok(2_000 + place, 2_000 + place, empty=True, acknowledged=True)),
    "t": lambda place: of(fail(place, 7, transient=True)),
    " ": lambda place: of(),
    "u": lambda place: of(event=1),
    "c": lambda place: of(event=2),
}


@pytest.mark.parametrize(("stream", "none", "little"), [
    ("---N--", "123012", "123012"),
    ("-l-l", "1122", "1234"),
    ("--a-aaa", "1212100", "1212100"),
    ("a-", "01", "01"),
    ("lla", "000", "121"),
    ("-t- -", "11223", "11223"),
    ("--u-", "1201", "1201"),
    ("--c-", "1223", "1223"),
])  # fmt: skip
def test_rounds_without_information(stream, none, little, decide):
    rounds = [STREAM[kind](place) for place, kind in enumerate(stream)]
    assert values(decide, "no_information", rounds) == [int(one) for one in none]
    assert values(decide, "little_information", rounds) == [int(one) for one in little]


def test_counters_stop_at_their_end(decide):
    failing = [
        of(fail(result=1, transient=transient), text=5)
        for transient in (False, True) for _ in range(260)
    ]
    for rounds, names in (
        (failing, {"no_information", "little_information", "error_repeats", "text_repeats",
                   "transient_rounds"}),
        ([of(ok())] * 260, {"round_repeats"}),
        ([of()] * 260, {"idle_rounds", "blank_rounds"}),
    ):  # fmt: skip
        features = decide(rounds, QUIET)[-1]["features"]
        assert {name: features[name] for name in names} == dict.fromkeys(names, 255)


# --- Flags and limits of a round -----------------------------------------------------------------
@pytest.mark.parametrize(("calls", "expected"), [
    ([], False),
    ([ok(size=24)], True),
    ([ok(size=25)], False),
    ([ok(size=1), ok(size=24)], True),
    ([ok(size=1), ok(size=25)], False),
    ([fail(size=1)], False),
    ([ok(size=1), fail(size=1)], False),
    ([ok(size=0, empty=True)], True),
])  # fmt: skip
def test_slight(calls, expected, decide):
    assert last(decide, "slight", [of(*calls)]) == expected


@pytest.mark.parametrize(("tools", "expected"), [
    ([], 0), ([0], 7), ([0, 0], 7), ([0, 1], 7), ([1], 60), ([2], 255), ([1, 2], 60), ([4], 254),
    ([3], 0), ([0, 3], 0), ([3, 2], 0),
])  # fmt: skip
def test_own_limit(tools, expected, decide):
    limits = {"search": 7, "read": "poll", "edit": "exempt", "ask": 254}
    policy = QUIET.replace(tool_limits=limits)
    calls = [call(place, tool=tool, result=place) for place, tool in enumerate(tools)]
    assert last(decide, "own_limit", [of(*calls)], policy) == expected
    assert last(decide, "own_limit", [of(*calls)]) == 0


def test_a_call_of_a_tool_with_a_limit_is_never_stale(decide):
    rounds = [of(call(tool=3))] * 3
    limited = values(decide, "progress_score", rounds, QUIET.replace(tool_limits={"run": 60}))
    plain = values(decide, "progress_score", rounds)
    # What a stale call lacks: a third of the productive share of 0.3, and 0.1 for the newest.
    assert limited[0] == plain[0]
    assert limited[1] - plain[1] == pytest.approx(0.3 / 2 + 0.1)


# --- Repeats -------------------------------------------------------------------------------------
A, B, C = ok(1, 1), ok(2, 2), ok(3, 3)


@pytest.mark.parametrize(("rounds", "expected"), [
    ([[A], [A], [A], [B], [B], [A]], [1, 2, 3, 1, 2, 1]),
    ([[], [A], [], [A], []], [0, 1, 1, 2, 2]),
    ([[A, B], [B, A], [A, B]], [1, 2, 3]),
    ([[A, A, B], [A, B, B], [A, B]], [1, 1, 1]),
    ([[A], [A, A], [A, A]], [1, 1, 2]),
    ([[A], [ok(1, 2)], [ok(1, 2)]], [1, 1, 2]),
    ([[A], [ok(2, 1)]], [1, 1]),
    ([[fail()], [fail()]], [1, 2]),
    ([[A, B], [ok(1, 2), ok(2, 1)]], [1, 1]),  # each has the other's result
    ([[ok(1, 1), ok(4, 1)], [ok(2, 1), ok(3, 1)]], [1, 1]),
    ([[ok(1, 1), ok(1, 3)], [ok(1, 2), ok(1, 2)]], [1, 1]),
    ([[A, A], [B, B]], [1, 1]),
])  # fmt: skip
def test_equal_rounds_in_a_row(rounds, expected, decide):
    assert values(decide, "round_repeats", [of(*calls) for calls in rounds]) == expected


T = fail(1, 9, transient=True)


@pytest.mark.parametrize(("rounds", "expected"), [
    ([[A], [A], [T], [A], [A]], [1, 2, 0, 1, 2]),
    ([[A], [T], [], [A]], [1, 0, 0, 1]),
    ([[T], [T], [A]], [0, 0, 1]),
    ([[T, T], [T, T]], [0, 0]),
    ([[T, A], [T, A], [A, T]], [1, 2, 3]),  # not transient as a whole
    ([[A], [T, fail()], [A]], [1, 1, 1]),
])  # fmt: skip
def test_a_transient_round_is_forgotten_and_the_rounds_before_it(rounds, expected, decide):
    assert values(decide, "round_repeats", [of(*calls) for calls in rounds]) == expected


# A round that is longer than the window: by its calls alone, each of them would be news.
LONG = [fresh(place) for place in range(13)]
MANY = of(*[fresh(100 + place) for place in range(12)])
SILENT = [ok(place, place, empty=True, acknowledged=True) for place in (1, 2)]


@pytest.mark.parametrize(("before", "newest", "expected"), [
    (LONG, LONG, NOTHING),
    (LONG, LONG[::-1], NOTHING),
    (LONG, [*LONG[1:], LONG[0]], NOTHING),
    (LONG, [fresh(50), *LONG[1:]], NEWS),
    (LONG, LONG[1:], NEWS),
    (LONG, [LONG[1], *LONG], NEWS),
    (LONG, [{**LONG[0], "result": 5}, *LONG[1:]], NEWS),
    ([{**one, "size": 24} for one in LONG], [{**one, "size": 24} for one in LONG], LITTLE),
    (LONG, [{**LONG[0], "size": 24}, *LONG[1:]], NOTHING),
])  # fmt: skip
def test_a_round_of_many_calls_that_comes_again_brings_no_news(before, newest, expected, decide):
    assert values(decide, "information", [of(*before), of(*newest)]) == [NEWS, expected]


@pytest.mark.parametrize(("calls", "expected"), [
    ([A], NEWS),  # one call
    ([A, B], NOTHING),
    ([A, A], NOTHING),
    ([{**A, "size": 24}, {**B, "size": 24}], LITTLE),
    ([{**A, "size": 24}, {**B, "size": 25}], NOTHING),
    (SILENT[:1], ACKNOWLEDGEMENT),
    (SILENT, NOTHING),
    ([{**one, "size": 0} for one in SILENT], LITTLE),
    ([fail(1), fail(2)], NOTHING),
    ([fail(1, transient=True)] * 2, NOT_JUDGED),
])  # fmt: skip
def test_a_round_of_several_calls_is_known_for_longer_than_its_calls(calls, expected, decide):
    turns = [of(*calls), MANY, of(*calls[::-1]), of(), MANY]
    assert last(decide, "information", [*turns, of(*calls)]) == expected
    # One round alone may come again by chance.
    if expected in (NOTHING, LITTLE) and not calls[0].get("error"):
        assert last(decide, "information", turns[:3]) in (NEWS, ACKNOWLEDGEMENT)


@pytest.mark.parametrize(("between", "expected"), [(5, NOTHING), (6, NEWS)])
def test_a_round_is_compared_with_the_six_before_it(between, expected, decide):
    others = [of(*[fresh(100 * k + place) for place in range(12)]) for k in range(2, 2 + between)]
    turn = [of(A, B), *others]
    assert last(decide, "information", [*turn, of(A, B), others[0]]) == expected
    assert last(decide, "information", [*turn, of(), of(A, B), of(), others[0]]) == expected


def test_a_transient_round_lets_several_calls_be_news_again(decide):
    turn = [of(A, B), MANY]
    assert last(decide, "information", [*turn, *turn]) == NOTHING
    assert last(decide, "information", [*turn, of(T), *turn]) == NEWS


@pytest.mark.parametrize(("rounds", "expected"), [
    ([[A], [A], [B], [A], []], [1, 2, 1, 3, 0]),
    ([[A, A, B]], [2]),
    ([[A], [B, A, C]], [1, 2]),
    ([[A], [ok(1, 2)]], [1, 1]),
    ([[A] * 12], [12]),
    ([[A] * 14], [12]),
    ([[A] * 11, [B]], [11, 1]),
    ([[A] * 11, [B, A]], [11, 11]),  # the first of them has left the window
    ([[fail()], [fail()]], [1, 2]),
])  # fmt: skip
def test_equal_calls_in_the_window(rounds, expected, decide):
    assert values(decide, "call_repeats", [of(*calls) for calls in rounds]) == expected


@pytest.mark.parametrize(("rounds", "expected"), [
    ([[ok(1)], [ok(2)], [ok(3)], [ok(3, 9)]], [0, 2, 3, 0]),
    ([[ok(1)], [ok(1)]], [0, 2]),
    ([[ok(1), ok(2), ok(3)]], [3]),
    ([[fail(1)], [fail(2)]], [0, 0]),
    ([[ok(1, size=5)], [ok(2, size=5)]], [0, 0]),  # little
    ([[ok(1)], [ok(2, acknowledged=True)], [ok(3)]], [0, 0, 3]),
    ([[ok(1)] * 14], [12]),
    ([[]], [0]),
])  # fmt: skip
def test_equal_results_in_the_window(rounds, expected, decide):
    assert values(decide, "result_repeats", [of(*calls) for calls in rounds]) == expected


# --- Failures ------------------------------------------------------------------------------------
def test_recent_failures(decide):
    rounds = [of(fail(), fail(transient=True)), of(), of(ok()), of(*map(fresh, range(10)))]
    assert values(decide, "recent_failures", rounds) == [2, 2, 2, 1]


E, F = fail(1, 7), fail(1, 8)


@pytest.mark.parametrize(("rounds", "expected"), [
    ([[E], [E], [E]], [1, 2, 3]),
    ([[E], [fail(2, 7)], [fail(3, 7)]], [1, 2, 3]),
    ([[E], [F], [F]], [1, 1, 2]),
    ([[E], [ok()], [E]], [1, 0, 1]),
    ([[E], [ok(), E], [E]], [1, 0, 1]),
    ([[F, E], [E, E], [E, F]], [1, 2, 1]),  # the last call counts
    ([[E], [T], [T, T], [E]], [1, 1, 1, 2]),
    ([[E], [{**E, "transient": True}], [E]], [1, 1, 2]),
    ([[E], [T, E]], [1, 2]),  # not transient as a whole
    ([[E], [], [E]], [1, 1, 2]),
    ([[E], [fail(2, 7, size=33)], [fail(2, 7, size=32)], [E]], [1, 2, 1, 2]),
    ([[fail(1, 7, size=5)]] * 3, [1, 1, 1]),
])  # fmt: skip
def test_the_same_error_in_a_row(rounds, expected, decide):
    assert values(decide, "error_repeats", [of(*calls) for calls in rounds]) == expected


def test_a_slight_error_is_a_parameter(decide):
    policy = QUIET.replace(slight_error=5)
    for size, expected in ((5, 1), (6, 2)):
        assert last(decide, "error_repeats", [of(fail(size=size))] * 2, policy) == expected


def test_a_round_of_tools_with_limits_leaves_the_errors_in_a_row(decide):
    policy = QUIET.replace(tool_limits={"run": "poll"})
    polls, both = of({**E, "tool": 3}), of({**E, "tool": 3}, E)
    rounds = [of(E), polls, of(ok(tool=3)), of({**F, "tool": 3}), of(E), both]
    assert values(decide, "error_repeats", rounds, policy) == [1, 1, 1, 1, 2, 3]


@pytest.mark.parametrize(("rounds", "expected"), [
    ([[T], [T, T], [T]], [1, 2, 3]),
    ([[T], [], [T]], [1, 1, 2]),
    ([[T], [T, E], [T]], [1, 0, 1]),
    ([[T], [T, ok()], [T]], [1, 0, 1]),
    ([[T], [ok()]], [1, 0]),
])  # fmt: skip
def test_transient_rounds(rounds, expected, decide):
    assert values(decide, "transient_rounds", [of(*calls) for calls in rounds]) == expected


@pytest.mark.parametrize(("rounds", "expected"), [
    ([[E], [E], [T], [E]], [1, 2, 0, 3]),
    ([[E], [T, T], [], [E]], [1, 0, 1, 2]),
    ([[T], [T]], [0, 0]),
    ([[E], [T, E], [T, ok()], [E]], [1, 2, 0, 1]),
])  # fmt: skip
def test_transient_rounds_neither_add_to_the_failed_ones_nor_end_them(rounds, expected, decide):
    assert values(decide, "failures_in_row", [of(*calls) for calls in rounds]) == expected


# --- Texts ---------------------------------------------------------------------------------------
SKETCH = 0x123456789ABCDEF1


def sketch(flipped):
    """A sketch that agrees with SKETCH but in the last places."""
    return SKETCH ^ ((1 << 4 * flipped) - 1)


def says(*sketches, **others):
    return [of(text=place + 1, sketch=one, **others) for place, one in enumerate(sketches)]


def test_texts_in_a_row_that_are_nearly_the_one_before(decide):
    rounds = says(SKETCH, sketch(4), SKETCH, sketch(5), sketch(1), SKETCH)
    assert values(decide, "text_repeats", rounds) == [0, 1, 2, 0, 1, 2]


def test_each_text_is_compared_with_the_one_before_it(decide):
    rounds = says(SKETCH, sketch(3), sketch(6), sketch(9))
    assert values(decide, "text_repeats", rounds) == [0, 1, 2, 3]


@pytest.mark.parametrize("places", [1, 9, 16])
def test_how_near_is_a_parameter(places, decide):
    policy = QUIET.replace(near_duplicate=places)
    assert values(decide, "text_repeats", says(SKETCH, sketch(16 - places)), policy) == [0, 1]
    if places < 16:
        assert values(decide, "text_repeats", says(SKETCH, sketch(17 - places)), policy) == [0, 0]
    else:
        assert values(decide, "text_repeats", says(SKETCH, sketch(1)), policy) == [0, 0]


def test_rounds_without_a_text_or_with_too_short_a_one_leave_the_texts_in_a_row(decide):
    rounds = says(SKETCH, SKETCH, 0, SKETCH)
    rounds[3:3] = [of()]
    assert values(decide, "text_repeats", rounds) == [0, 1, 1, 1, 2]


def test_news_ends_the_texts_in_a_row(decide):
    rounds = says(SKETCH, SKETCH, SKETCH, SKETCH, SKETCH)
    rounds[2]["calls"] = [fresh(1)]
    rounds[3]["calls"] = [ok(2, 2, empty=True, acknowledged=True)]
    assert values(decide, "text_repeats", rounds) == [0, 1, 0, 1, 2]
    silent = [*says(SKETCH, SKETCH), of(fresh(1)), *says(SKETCH)]
    assert values(decide, "text_repeats", silent) == [0, 1, 0, 1]


def test_without_sketches_equal_texts_are_near(decide):
    five, six = 0x5555_5555_5555_5555, 0x6666_6666_6666_6666
    rounds = [of(text=text) for text in (five, five, six, five, five)] + [of(), of(text=five)]
    assert values(decide, "text_repeats", rounds) == [0, 1, 0, 0, 1, 1, 2]


def test_rounds_without_a_call_or_without_anything(decide):
    rounds = [of(), of(text=1), of(), of(), of(ok()), of(text=1)]
    assert values(decide, "idle_rounds", rounds) == [1, 2, 3, 4, 0, 1]
    assert values(decide, "blank_rounds", rounds) == [1, 0, 1, 2, 0, 0]


# --- Cycles of rounds ----------------------------------------------------------------------------
def plan(text):
    """One round a letter, of the call of that letter; a space is a round without a call."""
    return [of() if letter == " " else of(ok(ord(letter), ord(letter))) for letter in text]


@pytest.mark.parametrize(("text", "expected"), [
    ("ABAB", 0), ("ABABA", 0), ("ABABAB", 2), ("ABABABA", 2), ("CABAB", 0), ("CABABA", 0),
    ("CABABAB", 2), ("CBABAB", 0), ("BBABAB", 0), ("AABABAB", 2), ("AAAAAA", 0), ("AABB", 0),
    ("ABCABC", 3), ("ABBABB", 3), ("ABCAB", 0), ("ABCABB", 0), ("ABCABCA", 3),
    ("ABCDABCD", 4), ("ABCDABC", 0), ("AABBAABB", 4),
    ("ABCDEABCDE", 5), ("ABCDEABCD", 0),
    ("ABCDEFABCDEF", 6), ("ABCDEFABCDE", 0), ("AAABBBAAABBB", 6),
    ("ABABABABABAB", 2), ("AB A BA", 0), ("AB A BA  B", 2), ("A BABAB", 2),
])  # fmt: skip
def test_cycles_of_rounds(text, expected, decide):
    assert last(decide, "cycle", plan(text)) == expected


def test_a_cycle_of_rounds_holds_what_calls_gave_and_how_often_they_were_made(decide):
    advancing = [of(A), of(B), of(A), of(B), of(A), of(B, B)]
    assert last(decide, "cycle", advancing) == 0
    pairs = [of(A, B), of(C), of(B, A), of(C), of(A, B), of(C)]
    assert last(decide, "cycle", pairs) == 2
    other_results = [of(A), of(ok(2, 5)), of(A), of(B), of(A), of(B)]
    assert last(decide, "cycle", other_results) == 0


@pytest.mark.parametrize(("newest", "expected"), [
    (ok(2, 2), 0), (ok(2, 2, acknowledged=True), 0), (fail(2, 2, transient=True), 0),
    (ok(2, 2, empty=True, acknowledged=True), 0),
    (ok(2, 2, empty=True), 2), (fail(2, 2), 2),
])  # fmt: skip
def test_a_cycle_needs_a_round_that_brought_nothing_or_little(newest, expected, decide):
    # The window forgets the newest call, the cycle does not.
    many = [of(*[ok(10 + place, 10) for place in range(12)]), of(newest)] * 3
    assert last(decide, "cycle", many) == expected


def test_a_cycle_of_rounds_of_several_calls_outlasts_the_window(decide):
    many = [of(*[ok(10 + place, 10 + place) for place in range(13)]), of(A, B)] * 3
    assert values(decide, "cycle", many) == [0, 0, 0, 0, 0, 2]


def test_a_transient_round_is_in_no_cycle_and_ends_it(decide):
    waiting = of(fail(9, 9, transient=True))
    rounds = plan("ABABA")
    assert last(decide, "cycle", [*rounds, waiting, *plan("B")]) == 0
    assert last(decide, "cycle", [*rounds, waiting, *plan("BABAB")]) == 0
    assert last(decide, "cycle", [*rounds, waiting, *plan("BABABA")]) == 2
    assert last(decide, "cycle", [waiting, *plan("ABABAB")]) == 2


def test_a_round_of_thought_is_in_no_cycle(decide):
    assert values(decide, "cycle", plan("ABABAB B")) == [0, 0, 0, 0, 0, 2, 0, 0]


@pytest.mark.parametrize(("text", "expected"), [("ABAB", 2), ("ABCABC", 3), ("ABCDABCD", 0)])
def test_cycles_of_calls_are_those_of_old(text, expected, decide):
    policy = QUIET.replace(count_cycles="calls")
    assert last(decide, "cycle", plan(text), policy) == expected
    at_once = of(*(one["calls"][0] for one in plan(text)))
    assert last(decide, "cycle", [at_once], policy) == expected
    assert last(decide, "cycle", [at_once]) == 0


# --- Events --------------------------------------------------------------------------------------
SOME = [
    of(fail(), text=1, sketch=SKETCH), of(fail(), text=1, sketch=SKETCH),
    of(A), of(B), of(A), of(B, text=1, sketch=SKETCH), of(fail(transient=True)),
    of(text=1, sketch=SKETCH), of(),
]  # fmt: skip
CLEARED = (
    "information", "slight", "own_limit", "no_information", "little_information", "round_repeats",
    "call_repeats", "result_repeats", "recent_failures", "error_repeats", "transient_rounds",
    "text_repeats", "cycle", "failures_in_row", "run_length", "stuck_iterations",
)  # fmt: skip


def test_a_user_message_clears_all_that_rounds_brought(decide):
    before = decide(SOME, QUIET)[-1]["features"]
    assert before["no_information"] and before["text_repeats"] and before["transient_rounds"]
    after = decide([*SOME, of(event=1)], QUIET)[-1]["features"]
    opened = decide([of()], QUIET)[-1]["features"]
    for name in CLEARED:
        assert after[name] == opened[name] == 0, name
    assert after["idle_rounds"] == after["blank_rounds"] == 1
    again = [*SOME, of(A, text=1, sketch=SKETCH, event=1)]
    assert last(decide, "information", again) == NEWS
    assert last(decide, "text_repeats", again) == 0
    assert last(decide, "round_repeats", again) == 1


def test_a_user_message_between_two_rounds_does_the_same():
    fleet = Fleet(policies={"only": QUIET})
    ids = fleet.open(2)
    for given in SOME:
        fleet.step(ids, pack([given, given]))
    fleet.user_message(ids[:1])
    left, right = fleet.step(ids, pack([of(fail()), of(fail(), event=1)])).features
    assert left == right
    assert left["no_information"] == left["error_repeats"] == 1


def test_a_compaction_clears_nothing(decide):
    for place in range(1, len(SOME)):
        marked = [{**one, "event": 2} if k == place else one for k, one in enumerate(SOME)]
        assert decide(marked, QUIET)[-1]["features"] == decide(SOME, QUIET)[-1]["features"]
