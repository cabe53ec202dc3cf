"""Redirects that are not heeded, compressions that do not help, and advice, on both sides."""

import pytest
import reference
from conftest import call, pack

from cellium_fast import Fleet, Policy

CONTINUE, RETRY, REDIRECT, COMPRESS, TERMINATE = range(5)
OFF = {name: {"enabled": False} for name in reference.RULES}
LIMIT = 1_000


def only(rules, **parameters):
    """A policy with only these rules switched on."""
    on = {name: {"enabled": True, **given} for name, given in rules.items()}
    return Policy(rules={**OFF, **on}, tie_break="first", **parameters)


# Redirects as often as a round tells a full context, and does nothing else.
ASKED = only({"context_high": {"actions": ["redirect"]}})
# Compresses as often as it may.
COMPRESSING = {"context_high": {"saturation": 0.5}}


def ok(signature=1, result=1, size=100, **others):
    return call(signature, result=result, size=size, **others)


def fail(signature=1, result=1, **others):
    return ok(signature, result, error=True, **others)


def of(*calls, **others):
    return {"calls": list(calls), **others}


def turn(*calls, **others):
    """A round after which ASKED redirects."""
    return of(*calls, context_tokens=800, **others)


def calm(*calls, **others):
    """A round after which ASKED does not."""
    return of(*calls, context_tokens=100, **others)


def fresh(place):
    """A call that was not made before, with a result not seen before."""
    return ok(1_000 + place, 1_000 + place)


def silent(place):
    """A call that was not made before, and did its work in silence."""
    return ok(2_000 + place, 7, empty=True, acknowledged=True)


def run(decide, rounds, policy=ASKED, **limits):
    return decide(rounds, policy, **{"context_limit": LIMIT, **limits})


def actions(decide, rounds, policy=ASKED, **limits):
    return [seen["action"] for seen in run(decide, rounds, policy, **limits)]


def values(decide, name, rounds, policy=ASKED, **limits):
    return [seen["features"][name] for seen in run(decide, rounds, policy, **limits)]


def ages(decide, rounds, policy=ASKED, **limits):
    return [seen["advice_age"] for seen in run(decide, rounds, policy, **limits)]


def told(*tokens):
    """A round each in which this many tokens are told."""
    return [of(context_tokens=one) for one in tokens]


# --- Redirects that are not heeded ---------------------------------------------------------------
def test_redirects_are_counted_from_the_round_after(decide):
    rounds = [calm(), turn(), turn(), calm(), turn(), calm()]
    assert actions(decide, rounds) == [CONTINUE, REDIRECT, REDIRECT, CONTINUE, REDIRECT, CONTINUE]
    assert values(decide, "unheeded_redirects", rounds) == [0, 0, 1, 2, 2, 3]


def heeded(decide, *rounds, policy=ASKED, **limits):
    """Whether the last round heeded the redirects before it."""
    return values(decide, "unheeded_redirects", rounds, policy, **limits)[-1] == 0


def test_a_redirect_is_heeded_by_two_rounds_with_news_from_new_calls(decide):
    assert heeded(decide, turn(), calm(fresh(1)), calm(fresh(2)))
    assert heeded(decide, turn(), turn(), turn(), calm(fresh(1)), calm(fresh(2)))
    assert heeded(decide, turn(), calm(ok(1, 1), ok(2, 2)), calm(ok(2, 3), ok(3, 4)))
    assert heeded(decide, turn(), calm(fresh(1), fail()), calm(fail(2), fresh(2)))
    assert heeded(decide, turn(), calm(fail()), calm(fresh(1)), calm(fresh(2)))
    # The round that was redirected may be the first of them.
    assert heeded(decide, turn(fresh(1)), calm(fresh(2)))


def test_one_round_with_news_heeds_no_redirect(decide):
    assert not heeded(decide, turn(), calm(fresh(1)))
    assert not heeded(decide, turn(), calm(fresh(1), fresh(2)))
    assert not heeded(decide, turn(), calm(fresh(1)), calm(fail()), calm(fresh(2)))
    assert not heeded(decide, turn(fresh(1)), calm(fail()), calm(fresh(2)), calm(fail()))


def test_a_round_without_calls_between_the_two_is_passed_over(decide):
    assert not heeded(decide, turn(), calm(fresh(1)), calm())
    assert heeded(decide, turn(), calm(fresh(1)), calm(), calm(text=5), calm(fresh(2)))


def test_a_redirect_is_heeded_by_acknowledgements(decide):
    assert not heeded(decide, turn(), calm(silent(1)))
    assert heeded(decide, turn(), calm(silent(1)), calm(silent(2)))
    assert heeded(decide, turn(), calm(silent(1)), calm(fresh(2)))
    assert heeded(decide, turn(), calm(fresh(1)), calm(silent(2)))
    known = ok(5, 1_001, acknowledged=True)
    assert heeded(decide, turn(), calm(fresh(1)), calm(known))


@pytest.mark.parametrize("newest", [
    [], [fail(9, 9)], [ok(9, 9, empty=True)], [ok(9, 1)], [ok(9, 1, size=4)], [ok(1, 1)],
    [fail(9, 9, transient=True)], [ok(1, 2)], [ok(1, 2), ok(1, 3)], [ok(1, 2), fail(9, 9)],
    [ok(1, 9, empty=True, acknowledged=True)], [ok(1, 2), ok(9, 1)],
])  # fmt: skip
def test_a_redirect_is_not_heeded_by_less(newest, decide):
    before = turn(ok(1, 1)), calm(fail(77, 77))
    assert not heeded(decide, *before, calm(fresh(1)), calm(*newest))
    assert not heeded(decide, *before, calm(*newest), calm(fresh(1)))


# More calls than the window holds, and by each of them alone there would be news.
LONG = [fresh(100 + place) for place in range(13)]


@pytest.mark.parametrize(("newest", "expected"), [
    (LONG, False),
    (LONG[::-1], False),
    (LONG[1:] + LONG[:1], False),
    ([fresh(1), *LONG[1:]], True),
    ([{**LONG[0], "result": 5}, *LONG[1:]], True),
    (LONG[:-1], True),
])  # fmt: skip
def test_a_round_of_many_calls_that_comes_again_heeds_nothing(newest, expected, decide):
    # No more than the last eleven of the long round are in the window when it comes again.
    rounds = turn(*LONG), calm(*newest), calm(fresh(2))
    assert heeded(decide, *rounds) == expected
    assert not heeded(decide, *[turn(*LONG)] * 3, *[turn(*LONG[::-1])] * 3)


@pytest.mark.parametrize(("between", "new"), [(0, False), (2, False), (3, True)])
def test_a_call_is_new_that_none_of_the_three_before_it_equals(between, new, decide):
    others = [fail(50 + place) for place in range(between)]
    apart = turn(ok(1, 1)), calm(*others), calm(ok(1, 2)), calm(fresh(1))
    assert heeded(decide, *apart) == new
    together = turn(ok(1, 1)), calm(*others, ok(1, 2)), calm(fresh(1))
    assert heeded(decide, *together) == new


def test_a_shape_tells_whether_a_call_is_new(decide):
    rounds = turn(ok(1, 1, shape=5)), calm(ok(2, 2, shape=5)), calm(fresh(1))
    assert not heeded(decide, *rounds)
    assert heeded(decide, *rounds, policy=ASKED.replace(see_through_volatile=False))


def test_a_redirect_is_heeded_while_most_calls_fail(decide):
    policy = ASKED.replace(rules={"mostly_failing": {"failures": 3}})
    rounds = turn(fail(1), fail(2)), calm(fresh(1), fail(3)), calm(fresh(2), fail(4))
    assert heeded(decide, *rounds, policy=policy)


@pytest.mark.parametrize("on", [True, False])
def test_a_redirect_is_heeded_in_a_context_that_compress_did_not_help(on, decide):
    rules = {**COMPRESSING, "round_limit": {"actions": ["redirect"]}}
    policy = only(rules, compress_tries=1, compress_cooldown=2)
    policy = policy.replace(rules={"compression_failed": {"enabled": on}})
    kinds = fresh(0), fail(1), fresh(2), fresh(3), fail(4), fresh(5)
    rounds = [of(one, context_tokens=900) for one in kinds[:5]]
    rounds.append(of(kinds[5], context_tokens=849))
    seen = run(decide, rounds, policy, round_limit=2)
    assert [one["action"] for one in seen] == [COMPRESS] + [REDIRECT] * 5
    assert [one["features"]["unheeded_redirects"] for one in seen] == [0, 0, 1, 0, 1, 2]
    fired = ["compression_failed" in one["rules"] for one in seen]
    assert fired == [False, False, on, on, on, False]


def test_a_user_message_clears_what_was_not_heeded_and_a_compaction_does_not(decide):
    for event, expected in ((0, 2), (1, 0), (2, 2)):
        rounds = [turn(), turn(), calm(event=event)]
        assert values(decide, "unheeded_redirects", rounds)[-1] == expected


def test_a_user_message_between_rounds_clears_it_too():
    fleet = Fleet(policies={"only": ASKED})
    ids = fleet.open(1, context_limit=LIMIT)
    for _ in range(2):
        fleet.step(ids, pack([turn()]))
    fleet.user_message(ids)
    assert fleet.step(ids, pack([calm()])).features["unheeded_redirects"].tolist() == [0]


def test_unheeded_redirects_stop_at_their_end(decide):
    assert values(decide, "unheeded_redirects", [turn()] * 258)[-3:] == [255] * 3


# --- Terminate, once redirecting failed ----------------------------------------------------------
IGNORED = only({"context_high": {"actions": ["redirect"]}, "redirects_ignored": {"redirects": 3}})


def test_redirects_ignored_terminates_when_redirect_is_proposed_once_more(decide):
    rounds = [turn(), turn(), turn(), calm(), turn(), turn()]
    seen = run(decide, rounds, IGNORED)
    ends = [REDIRECT] * 3 + [CONTINUE] + [TERMINATE] * 2
    assert [one["action"] for one in seen] == ends
    assert seen[-1]["candidates"] == [TERMINATE]
    assert seen[-1]["rules"] == ("context_high", "redirects_ignored")
    assert [one["features"]["unheeded_redirects"] for one in seen] == [0, 1, 2, 3, 3, 3]


def test_a_heeded_redirect_starts_the_count_again(decide):
    rounds = [turn(), turn(), turn(fresh(1)), turn(fresh(2)), turn(), turn(), turn()]
    assert actions(decide, rounds, IGNORED) == [REDIRECT] * 6 + [TERMINATE]
    once = [turn(), turn(), turn(fresh(1)), turn(), turn()]
    assert actions(decide, once, IGNORED) == [REDIRECT] * 3 + [TERMINATE] * 2


def test_without_the_rule_it_redirects_on_and_on(decide):
    assert actions(decide, [turn()] * 20) == [REDIRECT] * 20


def test_what_terminates_after_a_redirect_waits_for_one(decide):
    rules = {"context_high": {"actions": ["redirect"]}, "output_loop": {"repeats": 2}}
    rounds = [calm(text=1), calm(text=1), turn(text=1), calm(text=1), calm(fresh(1), text=1)]
    after = actions(decide, rounds, only(rules))
    assert after == [CONTINUE, CONTINUE, REDIRECT, TERMINATE, CONTINUE]
    rules["output_loop"]["after_redirect"] = False
    at_once = actions(decide, rounds, only(rules))
    assert at_once == [CONTINUE, TERMINATE, TERMINATE, TERMINATE, CONTINUE]


# --- Redirects that are meant mildly -------------------------------------------------------------
def test_a_redirect_of_a_mild_rule_alone_is_not_counted(decide):
    policy = only({"context_high": {"actions": ["redirect"]}, "idle": {"rounds": 1}})
    rounds = [calm(), calm(), turn(fail()), calm(), turn(), calm(fail())]
    seen = run(decide, rounds, policy)
    assert [one["action"] for one in seen] == [REDIRECT] * 5 + [CONTINUE]
    # In the fifth round both rules ask for it.
    assert [one["features"]["unheeded_redirects"] for one in seen] == [0, 0, 0, 1, 1, 2]


def test_a_mild_rule_does_not_end_what_another_one_counted(decide):
    rules = {"context_high": {"actions": ["redirect"]}, "idle": {"rounds": 1}}
    policy = only({**rules, "redirects_ignored": {"redirects": 2}})
    rounds = [turn(fail(1)), turn(fail(2)), calm(), calm(), turn(fail(3))]
    assert actions(decide, rounds, policy) == [REDIRECT] * 4 + [TERMINATE]


MILDLY = {
    "idle": (5, lambda place: of()),
    "little_information": (8, lambda place: of(ok(place, place, empty=True))),
    "compression_failed": (7, lambda place: of(fresh(place), context_tokens=860)),
}


@pytest.mark.parametrize("rule", MILDLY)
def test_mild_redirects_never_end_a_session_however_long(rule, decide):
    first, kind = MILDLY[rule]
    seen = run(decide, [kind(place) for place in range(300)], Policy(tie_break="first"))
    redirected = [one for one in seen if one["action"] == REDIRECT]
    assert [one["action"] for one in seen].index(REDIRECT) == first - 1
    assert len(redirected) == 301 - first
    assert all(rule in one["rules"] for one in redirected)
    assert {one["features"]["unheeded_redirects"] for one in seen} == {0}


# --- The default policy, from the first sign to the end ------------------------------------------
FIRST = Policy(tie_break="first")


def test_the_default_policy_climbs_from_retry_to_redirect_to_terminate(decide):
    loop = actions(decide, [of(ok())] * 9, FIRST)
    assert loop == [CONTINUE, RETRY] + [REDIRECT] * 5 + [TERMINATE] * 2


def test_a_heeded_redirect_brings_the_default_policy_back_to_continue(decide):
    rounds = [of(ok())] * 4 + [of(fresh(1)), of(fresh(2))]
    seen = actions(decide, rounds, FIRST)
    assert seen == [CONTINUE, RETRY, REDIRECT, REDIRECT, CONTINUE, CONTINUE]


def test_without_loop_detection_a_loop_is_none_of_our_business(decide):
    policy = FIRST.replace(loop_detection=False)
    assert not {REDIRECT, TERMINATE} & set(actions(decide, [of(ok())] * 30, policy))
    tired = [of(fail(place, place)) for place in range(8)]
    assert REDIRECT in actions(decide, tired, policy), "failures are no loop"


def test_a_poll_may_be_repeated_as_often_as_its_tool_may(decide):
    for limit, expected in ((6, 6), (254, None), ("exempt", None)):
        policy = FIRST.replace(tool_limits={"search": limit})
        seen = actions(decide, [of(ok())] * 30, policy)
        first = seen.index(REDIRECT) + 1 if REDIRECT in seen else None
        assert first == expected
        assert TERMINATE not in seen or expected
    poll = actions(decide, [of(ok())] * 60, FIRST.replace(tool_limits={"search": "poll"}))
    assert poll == [CONTINUE] * 59 + [REDIRECT]


def test_the_default_policy_waits_out_what_may_pass(decide):
    rounds = [of(fail(1, 9, transient=True))] * 7
    seen = actions(decide, rounds, FIRST)
    assert seen == [RETRY] * 5 + [REDIRECT] * 2


def test_the_default_policy_tries_compress_twice_in_vain(decide):
    rounds = [of(fresh(place), context_tokens=860) for place in range(20)]
    seen = actions(decide, rounds, FIRST)
    tries = [COMPRESS, CONTINUE, CONTINUE, COMPRESS, CONTINUE, CONTINUE]
    assert seen == tries + [REDIRECT] * 14


TEXT_RULES = {"output_loop", "repeated_text", "loop_suspected"}
SAYS = {"text": 5, "sketch": 0x123456789ABCDEF1}


def text_rules(decide, *kinds, policy=FIRST):
    """The rules for texts that fired while each round said the same, after a redirect."""
    begin = [of(ok(1, 1))] * 3
    seen = run(decide, [*begin, *(of(*calls, **SAYS) for calls in kinds)], policy)
    assert seen[2]["action"] == REDIRECT
    return TEXT_RULES & {rule for one in seen[3:] for rule in one["rules"]}


def test_texts_that_repeat_while_work_goes_on_are_no_loop(decide):
    acknowledged = [[ok(100 + place, 1, acknowledged=True)] for place in range(20)]
    assert text_rules(decide, *acknowledged) == set()
    assert text_rules(decide, *[[silent(place)] for place in range(20)]) == set()
    assert text_rules(decide, *[[fresh(place)] for place in range(20)]) == set()
    news = [*acknowledged[:9], [fresh(1)], *acknowledged[9:]]
    assert text_rules(decide, *news) == set()
    # None of these calls is new, so the redirect before them is not heeded.
    done = [ok(1, 10 + place, empty=True, acknowledged=True) for place in range(20)]
    assert text_rules(decide, *([one] for one in done)) == set()
    assert text_rules(decide, *([ok(1, 10 + place)] for place in range(20))) == set()


def test_texts_that_repeat_while_nothing_comes_of_it_are_a_loop(decide):
    acknowledged = [[ok(100 + place, 1, acknowledged=True)] for place in range(9)]
    assert "repeated_text" in text_rules(decide, *acknowledged, [fail(9, 9)])
    assert "repeated_text" in text_rules(decide, *acknowledged, [ok(9, 9, empty=True)])
    assert "repeated_text" in text_rules(decide, *acknowledged, [])
    assert "output_loop" in text_rules(decide, *acknowledged[:1], *[[fail(9, 9)]] * 4)
    assert "output_loop" not in text_rules(decide, *acknowledged[:1], *[[fail(9, 9)]] * 3)
    waits = [fail(9, 9, transient=True)]
    assert text_rules(decide, *acknowledged, waits) == set()


def test_texts_that_repeat_while_a_tool_with_a_limit_is_asked_are_no_loop(decide):
    polls = [[ok(9, place % 2, tool=3)] for place in range(20)]
    limited = FIRST.replace(tool_limits={"run": "poll"})
    assert text_rules(decide, *polls, policy=limited) == set()
    assert "repeated_text" in text_rules(decide, *polls)


# --- Compress ------------------------------------------------------------------------------------
def test_compress_has_a_cool_down(decide):
    policy = only(COMPRESSING, compress_cooldown=3, compress_tries=None)
    rounds = told(*[600] * 7)
    assert actions(decide, rounds, policy) == [3, 0, 0, 3, 0, 0, 3]
    assert values(decide, "compress_wait", rounds, policy) == [255, 1, 2, 3, 1, 2, 3]
    at_once = policy.replace(compress_cooldown=1)
    assert actions(decide, rounds, at_once) == [COMPRESS] * 7


def test_the_wait_stops_at_its_end(decide):
    rounds = told(600, *[100] * 258)
    assert values(decide, "compress_wait", rounds, only(COMPRESSING))[-5:] == [254, *[255] * 4]


TWICE = only(COMPRESSING, compress_cooldown=1, compress_tries=2)


def test_compress_is_given_up_after_tries_in_vain(decide):
    rounds = told(*[600] * 5)
    assert actions(decide, rounds, TWICE) == [COMPRESS] * 2 + [CONTINUE] * 3
    assert values(decide, "compress_tries", rounds, TWICE) == [0, 1, 2, 2, 2]
    on_and_on = TWICE.replace(compress_tries=None)
    assert actions(decide, told(*[600] * 300), on_and_on) == [COMPRESS] * 300
    assert values(decide, "compress_tries", told(*[600] * 258), on_and_on)[-2:] == [255] * 2


@pytest.mark.parametrize(("after", "tries"), [
    ([539], 0), ([540], 1), ([600], 1), ([700], 1), ([None], 1), ([0], 1), ([-1], 1),
    ([None, None, 100], 0), ([100, 100], 0),
])  # fmt: skip
def test_compress_helped_if_a_size_is_told_that_is_a_tenth_smaller(after, tries, decide):
    policy = TWICE.replace(rules={"context_high": {"saturation": 0.6}}, compress_cooldown=9)
    assert values(decide, "compress_tries", told(600, *after), policy)[-1] == tries


def test_a_size_of_zero_that_is_known_helped(decide):
    policy = TWICE.replace(zero_tokens_unknown=False)
    assert values(decide, "compress_tries", told(600, 0), policy)[-1] == 0


def test_what_helped_is_told_from_the_last_compress(decide):
    policy = TWICE.replace(compress_tries=9)
    rounds = told(600, 545, 500)
    assert values(decide, "compress_tries", rounds, policy) == [0, 1, 2]
    assert values(decide, "compress_tries", told(600, 545, 490), policy) == [0, 1, 0]


def test_compress_is_proposed_again_once_it_helped_after_all(decide):
    rounds = told(600, 600, 600, 530, 600)
    assert values(decide, "compress_tries", rounds, TWICE) == [0, 1, 2, 0, 1]
    assert actions(decide, rounds, TWICE) == [3, 3, 0, 3, 3]


@pytest.mark.parametrize("event", [1, 2])
def test_what_was_tried_outlives_user_messages_and_compactions(event, decide):
    rounds = told(600, 600, 600)
    rounds[2]["event"] = event
    assert values(decide, "compress_tries", rounds, TWICE) == [0, 1, 2]
    assert values(decide, "compress_wait", rounds, TWICE) == [255, 1, 1]


def test_other_actions_are_no_tries(decide):
    assert set(values(decide, "compress_tries", [turn()] * 5)) == {0}
    assert set(values(decide, "compress_wait", [turn()] * 5)) == {255}


# --- A context size of zero ----------------------------------------------------------------------
def test_zero_tokens_are_not_told(decide):
    rounds = told(0, 500, 0)
    assert values(decide, "context_known", rounds) == [False, True, True]
    assert values(decide, "context_ratio", rounds) == [0, 0.5, 0.5]
    policy = ASKED.replace(zero_tokens_unknown=False)
    assert values(decide, "context_known", rounds, policy) == [True] * 3
    assert values(decide, "context_ratio", rounds, policy) == [0, 0.5, 0]


# --- An exhausted context ------------------------------------------------------------------------
EXHAUSTED = only({"context_exhausted": {}})


@pytest.mark.parametrize(("tokens", "expected"), [
    ([950, 950, 950], [1, 2, 3]),
    ([949, 950], [0, 1]),
    ([950, 949, 950], [1, 0, 1]),
    ([2_000, None, -1, 0], [1, 2, 3, 4]),
    ([None, 950], [0, 1]),
])  # fmt: skip
def test_exhausted_rounds(tokens, expected, decide):
    assert values(decide, "exhausted_rounds", told(*tokens), EXHAUSTED) == expected


def test_exhausted_rounds_go_by_the_rule_s_saturation_whether_it_is_on_or_not(decide):
    policy = only({}).replace(rules={"context_exhausted": {"saturation": 0.5}})
    assert values(decide, "exhausted_rounds", told(500, 499), policy) == [1, 0]


def test_an_unknown_context_is_not_exhausted(decide):
    rounds = told(950, 950)
    rounds[1]["context_limit"] = 0
    assert values(decide, "exhausted_rounds", rounds, EXHAUSTED) == [1, 0]


def test_the_third_exhausted_round_terminates(decide):
    assert actions(decide, told(990, 990, 990), EXHAUSTED) == [CONTINUE, CONTINUE, TERMINATE]
    at_once = EXHAUSTED.replace(rules={"context_exhausted": {"rounds": 1}})
    assert actions(decide, told(990), at_once) == [TERMINATE]


# --- Advice --------------------------------------------------------------------------------------
def test_advice_ages_while_it_stays_the_same(decide):
    assert ages(decide, [calm(), turn(), turn(), turn(), turn()]) == [0, 0, 1, 2, 3]


@pytest.mark.parametrize(("interval", "newest"), [
    (5, [255, 251, 252]), (1, [255] * 3), (2, [255, 254, 255]), (100, [255, 156, 157]),
])  # fmt: skip
def test_the_age_of_advice_goes_back_by_the_interval(interval, newest, decide):
    found = ages(decide, [turn()] * 258, ASKED.replace(repeat_interval=interval))
    assert found[:256] == list(range(256))
    assert found[-3:] == newest
    assert all((age - place) % interval == 0 for place, age in enumerate(found))


@pytest.mark.parametrize(("rounds", "expected"), [
    ([turn(), calm(), turn()], [0, 0, 2]),
    ([turn(), turn(), turn(), calm(), turn()], [0, 1, 2, 0, 4]),
    ([turn(), calm(), turn(), calm(), turn()], [0, 0, 2, 0, 4]),
    ([turn(), *[calm()] * 4, turn(), turn()], [0, 0, 0, 0, 0, 5, 6]),
    ([turn(), *[calm()] * 5, turn(), turn()], [0, 0, 0, 0, 0, 0, 0, 1]),
    ([*[turn()] * 4, calm(), turn()], [0, 1, 2, 3, 0, 5]),
    ([*[turn()] * 5, calm(), turn()], [0, 1, 2, 3, 4, 0, 0]),
])  # fmt: skip
def test_advice_outlasts_a_continue_until_it_would_be_given_again(rounds, expected, decide):
    assert ages(decide, rounds, ASKED) == expected
    always = ASKED.replace(repeat_interval=1)
    assert ages(decide, [turn(), turn(), calm(), turn()], always) == [0, 1, 0, 0]


def test_other_advice_after_a_continue_begins_anew(decide):
    policy = only({
        "context_high": {"actions": ["redirect"]},
        "failure_chain": {"failures": 1, "actions": ["redirect"]},
    })
    rounds = [turn(), calm(ok()), calm(fail()), calm(ok()), turn()]
    assert ages(decide, rounds, policy) == [0, 0, 0, 0, 0]
    assert ages(decide, [*rounds[:2], turn()], policy) == [0, 0, 2]


def test_a_rule_that_is_alone_is_the_one_behind_the_advice(decide):
    policy = only({
        "context_high": {"actions": ["redirect"], "alone": False},
        "failure_chain": {"failures": 1, "actions": ["redirect"], "alone": True},
    })
    high, both, chain = turn(ok()), turn(fail()), calm(fail())
    assert ages(decide, [both, chain, both], policy) == [0, 1, 2]
    assert ages(decide, [high, both, high], policy) == [0, 0, 0]


def test_advice_is_the_action_and_the_lowest_rule_that_has_it(decide):
    policy = only({
        "context_high": {"actions": ["redirect"], "alone": True},
        "failure_chain": {"failures": 1, "actions": ["redirect"]},
        "idle": {"rounds": 1, "actions": ["terminate"]},
    })
    high, both, chain = turn(ok()), turn(fail()), calm(fail())
    assert ages(decide, [high, both, high], policy) == [0, 1, 2]
    assert ages(decide, [both, chain, chain, high], policy) == [0, 0, 1, 0]
    # A rule that fired beside it with another action does not count.
    assert ages(decide, [turn(ok()), turn(), turn(ok())], policy) == [0, 1, 2]
    assert ages(decide, [calm(), calm(), turn(ok()), calm()], policy) == [0, 1, 0, 0]


def test_a_user_message_forgets_what_advice_was_given(decide):
    for event, expected in ((0, 2), (1, 0), (2, 2)):
        assert ages(decide, [turn(), turn(), turn(event=event)])[-1] == expected
