"""The whole step: against the reference, and against itself in every grouping."""

from collections import Counter

import numpy as np
import pytest
from conftest import (
    COLUMNS,
    TOOLS,
    Agent,
    Pair,
    Seeded,
    call,
    pack,
    random_policy,
    same_bits,
    take,
)
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from random_agents import SWITCHES, crowd

from cellium_fast import Action, Fleet, Policy, Round, RoundBatch, ToolCall, _rules, pipeline

PRESETS = ("cellium", "default")
TIE_BREAKS = ("thompson", "greedy", "first")


# --- Against the reference -----------------------------------------------------------------------
def run_pair(rng, policy, sessions, rounds, private=True):
    """Random agents under one policy; returns the pair, all compared."""
    pair = Pair({"only": policy}, seed=rng.getrandbits(64))
    ids = pair.open(sessions, private=private, context_limit=30_000, round_limit=rounds - 5)
    agents = [Agent(rng) for _ in ids]
    for _ in range(rounds):
        pair.step(ids, [agent.round() for agent in agents])
        if rng.random() < 0.05:
            pair.user_message(rng.sample(ids, 2))
    return pair


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_equals_the_reference(preset, rng):
    # A large ema_alpha lets the trend fall far enough for every rule of `cellium` as well.
    rules, actions = Counter(), Counter()
    for ema_alpha, tie_break in ((0.3, "thompson"), (0.9, "thompson"), (1.0, "greedy")):
        policy = Policy.preset(preset, ema_alpha=ema_alpha, tie_break=tie_break)
        pair = run_pair(rng, policy, sessions=20, rounds=60)
        pair.compare_private()
        assert pair.dropped <= 2
        rules.update(pair.rules)
        actions.update(pair.actions)
    # These two are rare with the thresholds of the presets; the next tests make them fire.
    missing = set(_rules.RULES) - set(rules) - {"true_stagnation", "bad_cycle"}
    off = {name for name, rule in policy.rules if not rule.enabled}
    assert missing == off - {"true_stagnation"}
    assert set(actions) == set(range(5))


def test_varied_policies_equal_the_reference(rng):
    rules, actions, information, compared, dropped = Counter(), Counter(), Counter(), 0, 0
    for place in range(24):
        preset, tie_break = PRESETS[place % 2], TIE_BREAKS[place % 3]
        policy = random_policy(rng, preset, tie_break=tie_break)
        pair = run_pair(rng, policy, sessions=5, rounds=50)
        pair.compare_private()
        rules.update(pair.rules)
        actions.update(pair.actions)
        information.update(pair.information)
        compared += pair.compared
        dropped += pair.dropped
    assert set(rules) == set(_rules.RULES)
    assert set(actions) == set(information) == set(range(5))
    assert compared > 4_000
    assert dropped <= 3


def test_true_stagnation_under_cellium_needs_a_larger_alpha():
    off = ("prolonged_stagnation", "failure_chain", "failure_wall", "mild_stagnation")
    fired = {}
    for ema_alpha in (0.3, 1.0):
        rules = {name: {"enabled": False} for name in off}
        policy = Policy.preset("cellium", ema_alpha=ema_alpha, rules=rules)
        pair = Pair({"only": policy})
        ids = pair.open(1, private=True)
        scores = [1.0] * 8 + [0.9375, 0.875, 0.8125, 0.75, 0.6875, 0.25]
        for place, score in enumerate(scores):
            pair.step(ids, [{"calls": [call(place, result=place)], "progress": score}])
        fired[ema_alpha] = pair.rules["true_stagnation"]
    assert fired == {0.3: 0, 1.0: 1}


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("tie_break", TIE_BREAKS)
def test_sessions_that_share_a_pool_equal_the_reference(preset, tie_break, rng):
    policy = Policy.preset(preset, tie_break=tie_break)
    pair = run_pair(rng, policy, sessions=12, rounds=40, private=False)
    assert pair.pools["default"]["updates"] != [0] * 5
    pair.compare_pools(tolerance=1e-5)


FLAGS = [
    {}, {"error": True}, {"error": True, "transient": True}, {"empty": True},
    {"acknowledged": True}, {"acknowledged": True, "empty": True}, {"error": True, "empty": True},
]  # fmt: skip
CALLS = st.builds(
    lambda flags, **others: call(**flags, **others),
    st.sampled_from(FLAGS),
    signature=st.integers(1, 3),
    shape=st.integers(1, 3),
    tool=st.integers(0, 2),
    result=st.integers(0, 1),
    size=st.sampled_from([0, 1, 10, 12, 13, 32, 33, 2**32 - 1]),
)
EIGHTHS = st.one_of(st.none(), st.sampled_from([k / 8 for k in range(9)]))
ROUNDS = st.fixed_dictionaries(
    {"calls": st.one_of(st.lists(CALLS, max_size=3), st.lists(CALLS, min_size=10, max_size=20))},
    optional={
        "text": st.integers(0, 2),
        "context_tokens": st.integers(-1, 120),
        "context_limit": st.sampled_from([-1, 0, 100]),
        "progress": EIGHTHS,
        "reward": EIGHTHS,
        "success": st.sampled_from([None, True, False]),
        "event": st.integers(0, 2),
    },
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    rounds=st.lists(ROUNDS, min_size=1, max_size=12),
    preset=st.sampled_from(PRESETS),
    ema_alpha=st.sampled_from([0.3, 0.9]),
    count_failures=st.sampled_from(["calls", "rounds"]),
    count_cycles=st.sampled_from(["calls", "rounds"]),
    tool_limits=st.dictionaries(st.sampled_from(TOOLS[:2]), st.sampled_from([1, 3, "exempt"])),
    switches=st.fixed_dictionaries(dict.fromkeys(SWITCHES, st.booleans())),
    limit=st.sampled_from([None, 5]),
)  # fmt: skip
@example(   # a return that is one half but for its last bits
    rounds=[
        *[{"calls": []}] * 4, {"calls": [], "context_tokens": 94}, {"calls": []},
        {"calls": [call(error=True)]},
    ],
    preset="cellium", ema_alpha=0.3, count_failures="calls", count_cycles="calls", tool_limits={},
    switches={}, limit=5,
)  # fmt: skip
@example(   # an error of so many characters that a signed number of 32 bits has no room
    rounds=[{"calls": [call(error=True)]}, {"calls": [call(error=True, size=2**32 - 1)]}],
    preset="cellium", ema_alpha=0.3, count_failures="calls", count_cycles="calls", tool_limits={},
    switches={}, limit=None,
)  # fmt: skip
def test_any_session_equals_the_reference(rounds, preset, limit, switches, **parameters):
    policy = Policy.preset(preset, **switches, **parameters)
    pair = Pair({"only": policy}, seed=1)
    ids = pair.open(1, private=True, context_limit=100, round_limit=limit)
    for described in rounds:
        pair.step(ids, [described])
    pair.compare_private()


# --- Against itself ------------------------------------------------------------------------------
SESSIONS, STEPS = 5_300, 6


def crowd_fleet(private, threads=1, tie_break="thompson", seed=11):
    """A fleet of two policies and two pools, and its ids."""
    policies = {name: Policy.preset(name, tie_break=tie_break) for name in PRESETS}
    fleet = Fleet(seed=seed, policies=policies, pools=["left", "right"], threads=threads)
    half = {"context_limit": 100_000, "round_limit": 20, "private": private}
    quarters = [
        fleet.open(SESSIONS // 4, policy=policy, pool=pool, **half)
        for policy in PRESETS
        for pool in ("left", "right")
    ]
    return fleet, np.concatenate(quarters)


def run_crowd(rounds, private, tie_break="thompson", threads=1, order=None, pieces=1):
    """(decisions of each round in the order of opening, the fleet)."""
    fleet, ids = crowd_fleet(private, threads, tie_break)
    order = np.arange(len(ids)) if order is None else order
    history = []
    for batch in rounds:
        parts = [
            (part, fleet.step(ids[part], take(batch, part)))
            for part in np.array_split(order, pieces)
        ]
        whole = {}
        for name in COLUMNS:
            column = np.concatenate([getattr(decisions, name) for _, decisions in parts])
            whole[name] = np.empty_like(column)
            whole[name][np.concatenate([part for part, _ in parts])] = column
        history.append(whole)
    return history, fleet


@pytest.fixture(scope="module")
def rounds():
    rng = Seeded(77)
    return [crowd(rng.arrays, SESSIONS // 4 * 4) for _ in range(STEPS)]


@pytest.fixture(scope="module")
def plain(rounds):
    """The plain run of each kind, to which the others are compared."""
    return {
        (private, tie_break): run_crowd(rounds, private, tie_break)
        for private, tie_break in ((True, "thompson"), (False, "thompson"), (False, "first"))
    }


def assert_same_run(left, right, compare_learning=True):
    for t, (expected, found) in enumerate(zip(left[0], right[0], strict=True)):
        for name in COLUMNS:
            assert same_bits(expected[name], found[name]), f"round {t + 1}: {name}"
    assert same_bits(left[1]._memory.sessions, right[1]._memory.sessions)
    if compare_learning:
        for pool in ("left", "right"):
            for name, value in left[1].posterior(pool).items():
                assert np.array_equal(value, right[1].posterior(pool)[name]), (pool, name)


def test_the_crowd_breaks_ties_and_learns(plain):
    history, fleet = plain[True, "thompson"]
    assert sum(decisions["tiebreak"].sum() for decisions in history) > 5_000
    learned = fleet._memory.sessions["updates"][: SESSIONS // 4 * 4].sum(axis=0)
    assert np.all(learned[:4] > 0)
    shared = plain[False, "thompson"][1]
    assert np.all(shared.posterior("left")["updates"][:4] > 0)
    for action in Action:
        assert any(np.any(decisions["action"] == action) for decisions in history)


@pytest.mark.parametrize("private", [True, False])
def test_a_permuted_batch_decides_and_learns_the_same(rounds, plain, private, rng):
    order = rng.arrays.permutation(SESSIONS // 4 * 4)
    found = run_crowd(rounds, private, order=order)
    assert_same_run(plain[private, "thompson"], found)


@pytest.mark.parametrize(("private", "tie_break"), [(True, "thompson"), (False, "first")])
def test_a_batch_in_pieces_decides_and_learns_the_same(rounds, plain, private, tie_break, rng):
    # With Thompson sampling a shared pool would learn between the pieces.
    order = rng.arrays.permutation(SESSIONS // 4 * 4)
    found = run_crowd(rounds, private, tie_break, order=order, pieces=7)
    assert_same_run(plain[private, tie_break], found)


def test_a_batch_in_pieces_lets_a_shared_pool_learn_between(rounds, plain):
    found = run_crowd(rounds, False, pieces=2)
    draws = [plain[False, "thompson"][0][t]["draws"] for t in (0, STEPS - 1)]
    assert same_bits(found[0][0]["draws"][:2_000], draws[0][:2_000])
    assert not same_bits(found[0][STEPS - 1]["draws"], draws[1])


@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize("threads", [2, 8])
def test_threads_do_not_show(rounds, plain, private, threads):
    assert_same_run(plain[private, "thompson"], run_crowd(rounds, private, threads=threads))


@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize(("chunk", "threads"), [(1, 1), (7, 1), (7, 3), (1_024, 2), (10**9, 2)])
def test_the_size_of_a_chunk_does_not_show(rounds, plain, private, chunk, threads, monkeypatch):
    monkeypatch.setattr(pipeline, "CHUNK", chunk)
    assert_same_run(plain[private, "thompson"], run_crowd(rounds, private, threads=threads))


def test_another_seed_decides_differently(rounds, plain):
    fleet, ids = crowd_fleet(True, seed=12)
    draws = fleet.step(ids, rounds[0]).draws
    expected = plain[True, "thompson"][0][0]["draws"]
    drawn = ~np.isnan(expected)
    assert np.array_equal(drawn, ~np.isnan(draws))
    assert not np.any(draws[drawn] == expected[drawn])


# --- One session at a time -----------------------------------------------------------------------
def as_object(described):
    """A described round as objects; the event is told by a call of the session."""
    calls = [
        ToolCall(
            f"tool {one['tool']}",
            {"n": one["signature"]},
            "" if one["empty"] else f"answer {one['result']}" + "." * one["size"],
            error=one["error"],
        )
        for one in described["calls"]
    ]
    text = described.get("text")
    rest = {name: described.get(name) for name in
            ("context_tokens", "context_limit", "progress", "reward", "success")}  # fmt: skip
    return Round(calls, text=None if text is None else f"text {text}", **rest)


@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize("preset", PRESETS)
def test_one_session_at_a_time_equals_the_batch(preset, private, rng):
    sessions, steps = 25, 30
    scalar = Fleet(seed=5, policies={"only": preset})
    batched = Fleet(seed=5, policies={"only": preset})
    limits = {"context_limit": 30_000, "round_limit": 25, "private": private}
    handles = [scalar.session(str(place), **limits) for place in range(sessions)]
    ids = batched.open(sessions, **limits)
    agents = [Agent(rng) for _ in range(sessions)]
    ties = 0
    for _ in range(steps):
        described = [agent.round() for agent in agents]
        for one in described[::2]:  # nearly full, at times relieved: `default` ties there
            one["context_tokens"] = rng.choice([20_000, 24_000])
        objects = [as_object(one) for one in described]
        events = np.array([one.get("event", 0) for one in described], np.uint8)
        # A shared pool learns after each call, so there the batches are of one session.
        size = sessions if private else 1
        for start in range(0, sessions, size):
            part = slice(start, start + size)
            batch = RoundBatch.from_rounds(objects[part], events=events[part])
            decisions = batched.step(ids[part], batch)
            ties += int(decisions.tiebreak.sum())
            for place, handle in enumerate(handles[part]):
                event = events[part][place]
                if event:
                    (handle.user_message if event == 1 else handle.compacted)()
                compare_scalar(handle.step(objects[start + place]), decisions, place)
    assert ties > 20
    assert same_bits(scalar._memory.sessions, batched._memory.sessions)
    for name, value in scalar.posterior().items():
        assert np.array_equal(value, batched.posterior()[name]), name


def compare_scalar(decision, decisions, place):
    """A scalar decision equals a row of a batch, in its own words and bit for bit."""
    same = decisions[place]
    for name in ("action", "candidates", "rules", "tiebreak", "reward", "draws", "bias", "scores"):
        assert getattr(decision, name) == getattr(same, name), name
    row = decisions.features[place]
    for name, value in zip(decision.features._fields, decision.features, strict=True):
        assert np.array_equal(value, row[name]), name
    assert int(decisions.action[place]) == decision.action
    assert sum(action.mask for action in decision.candidates) == decisions.candidates[place]
    assert float(decisions.reward[place]) == decision.reward


# --- Sessions come and go ------------------------------------------------------------------------
def test_policies_pools_and_reused_slots_side_by_side(rng):
    policies = {
        "a": Policy(),
        "b": Policy.preset("cellium"),
        "c": random_policy(rng, "default", n_step=2, gamma=0.5, learn_from="all"),
    }
    pair = Pair(policies, pools=["x", "y", "z"], seed=3)
    agents, uids, seen = {}, 0, set()
    for _ in range(60):
        count = rng.randrange(4)
        options = {"policy": rng.choice("abc"), "pool": rng.choice("xyz"),
                   "private": rng.random() < 0.4}  # fmt: skip
        for one in pair.open(count, context_limit=30_000, round_limit=15, **options):
            assert one not in seen, "an id is never used again"
            seen.add(one)
            agents[one] = Agent(rng)
        uids += count
        ids = rng.sample(sorted(agents), rng.randrange(len(agents) + 1))
        pair.step(ids, [agents[one].round() for one in ids])
        if rng.random() < 0.3 and ids:
            pair.user_message(ids[:2])
        pair.compare_pools(tolerance=1e-4)
        pair.compare_private()
        leaving = [one for one in agents if rng.random() < 0.06]
        pair.close(leaving, [rng.choice([None, True, False]) for _ in leaving])
        for one in leaving:
            del agents[one]
        assert len(pair.fleet) == len(agents)
    slots = {one & 0xFFFFFFFF for one in seen}
    assert len(slots) < len(seen) == uids, "no slot was used again"
    assert len(pair.fleet._memory.sessions) == 64, "memory stays what so many sessions need"
    assert pair.compared > 250, "too little happened to tell"


def test_a_reused_slot_remembers_nothing():
    fleet = Fleet()
    bad = pack([{"calls": [call(error=True)] * 9, "text": 1, "context_tokens": 99}])
    first = fleet.open(1, context_limit=100, private=True)
    for _ in range(5):
        fleet.step(first, bad)
    fleet.close(first, success=True)
    again = fleet.open(1)
    assert first[0] & 0xFFFFFFFF == again[0] & 0xFFFFFFFF
    fresh = Fleet()
    left, right = fleet.step(again, bad), fresh.step(fresh.open(1), bad)
    for name in ("candidates", "rules", "reward", "features", "bias"):
        assert same_bits(getattr(left, name), getattr(right, name)), name
    assert left.draws.tolist() != right.draws.tolist(), "the session's number is another one"


@pytest.mark.parametrize("threads", [1, 4])
def test_an_empty_batch_is_a_call_like_any_other(threads):
    fleet = Fleet(threads=threads)
    ids = fleet.open(0)
    assert len(fleet.step(ids, RoundBatch())) == len(fleet.step([], [])) == 0
    fleet.user_message(ids)
    fleet.close(ids)
    assert fleet.open(1).tolist() == [0]
