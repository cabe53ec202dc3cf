"""What a fleet's state must be like: each promise that kernels rely on, and that fleets keep it."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from lively_fleets import MOST, Run, Script, new_fleet

from cellium_fast import (
    Fleet,
    LearnedPosterior,
    Policy,
    Posterior,
    Round,
    RoundBatch,
    ToolCall,
    _records,
    snapshot,
)
from cellium_fast._memory import LAST_GENERATION
from cellium_fast.pool_history import PoolHistory
from cellium_fast.state import (
    FEATURE_BOUNDS,
    OUTCOME_BOUNDS,
    POOL_BOUNDS,
    SESSION_BOUNDS,
    impossible,
)

# Fields that may hold whatever their type can, and those that are checked by more than bounds.
ANY_SESSION = {
    "sketch", "calls", "error", "output", "round_limit", "stuck", "error_bits", "empty_bits",
    "no_information", "little_information", "error_repeats", "transient_rounds", "idle_rounds",
    "blank_rounds", "text_repeats", "unheeded_redirects", "exhausted_rounds", "compress_wait",
    "compress_tries", "round_repeats", "round_periods", "compressed_tokens", "round_hashes",
    "round", "counted_error", "decision_stuck", "size", "signature", "call", "tool", "result",
    "updates", "advice_age",
}  # fmt: skip
OTHERWISE_SESSION = {
    "uid", "errors", "empties", "twins", "policy", "pool", "pending", "alpha", "beta",
}  # fmt: skip
ANY_FEATURE = {
    "round", "run_tool", "error_result", "recent_tools", "own_limit", "no_information",
    "little_information", "round_repeats", "error_repeats", "transient_rounds", "text_repeats",
    "idle_rounds", "blank_rounds", "unheeded_redirects", "exhausted_rounds", "compress_wait",
    "compress_tries",
}  # fmt: skip


def small_state():
    """Of a fleet with an open session that has a handle, and a closed one."""
    fleet = Fleet(pools=["one", "two"], max_sessions=2)
    closed = fleet.open(1)
    session = fleet.session("ticket", tools=["ls"])
    session.step(Round([ToolCall("ls", "-l", "a b")]))
    fleet.close(closed)
    return fleet._state()


def state_with_choices():
    """Of a fleet that chose a policy for two sessions: one closed in slot 0, an open one in 1."""
    fleet = Fleet(pools=["one", "two"])
    closed, going_on = fleet.open(2, policy="auto", pool="two").tolist()
    fleet.step([going_on], RoundBatch(reward=np.array([0.5], np.float32)))
    fleet.close([closed], True)
    return fleet._state()


# --- what is checked -----------------------------------------------------------------------------
def test_every_field_of_a_record_is_checked_or_may_be_anything():
    assert {*SESSION_BOUNDS, *OTHERWISE_SESSION, *ANY_SESSION} == set(_records.SESSION.names)
    assert not ANY_SESSION & {*SESSION_BOUNDS, *OTHERWISE_SESSION}
    assert {*POOL_BOUNDS, "alpha", "beta", "updates", "prior"} == set(_records.POOL.names)
    assert {*FEATURE_BOUNDS, *ANY_FEATURE} == set(_records.FEATURES.names)
    otherwise = {"features", "draws", "bias", "propensity", "reward", "advice_age"}
    assert {*OUTCOME_BOUNDS, *otherwise} == set(
        small_state().outcomes().dtype.names
    )


def put(array, place, value):
    """A change of a state: array[name][row] = value, or of the array itself."""
    def change(state):
        records = getattr(state, array)
        if isinstance(place, tuple):
            name, row = place
            records[name][row] = value
        else:
            records[place] = value
    return change


def outcome(name, value, within=None):
    """A change of the newest decision of the only handle."""
    def change(state):
        records = state.outcomes()
        (records if within is None else records[within])[name] = value
        state.handles[0] = dataclasses.replace(state.handles[0], outcome=records.tobytes())
    return change


def handle(**changes):
    """A change of the only handle."""
    def change(state):
        state.handles[0] = dataclasses.replace(state.handles[0], **changes)
    return change


def assign(name, value):
    """A change of a field of the state."""
    def change(state):
        setattr(state, name, value(state) if callable(value) else value)
    return change


def assign_all(**values):
    """A change of several fields of the state."""
    def change(state):
        for name, value in values.items():
            setattr(state, name, value)
    return change


def opened_again(state):
    """A change: the closed session is open, one more than there may be."""
    state.sessions[0] = state.sessions[1]
    state.sessions["uid"][0] = state.sessions["generation"][0] = 0
    state.free, state.max_sessions = state.free[:0], 1


def began(settings=None, closed=0, updates=0):
    """A change: the pool `two` has begun with this."""
    def change(state):
        arm = {"alpha": 2.0, "beta": 2.0, "updates": updates}
        start = LearnedPosterior.from_fields({
            "version": 1, "pool": "two", "settings": (settings or state.pools["two"]).model_dump(),
            "closed": closed, "actions": dict.fromkeys(_records.ACTIONS, arm),
        })
        state.histories["two"] = PoolHistory.begun(start)
    return change


# The session in slot 0 is closed, the one in slot 1 is open.
IMPOSSIBLE = {
    "seed": (assign("seed", 2**64), "seed"),
    "opened negative": (assign("opened", -1), "opened"),
    "opened too few": (assign("opened", 1), "uid"),
    "opened too many": (assign("opened", 3), "slots were used 2 times"),
    "no policy": (assign("policies", {}), "policies: wanted 1"),
    "a policy called auto": (
        assign("policies", lambda state: {"auto": state.policies["default"]}),
        "policies: 'auto' is no name of one since format version 3, but asks the fleet "
        "to choose one; go on with the package that wrote this, or export there what the pools "
        "learned, and import it here into a new fleet",
    ),
    "no pool": (assign("pools", {}), "pools: wanted 1"),
    "free not there": (put("free", 0, 2), "free slots: wanted slots below 2"),
    "free negative": (put("free", 0, -1), "free slots: wanted slots below 2"),
    "free open": (put("free", 0, 1), "session 0: wanted slots to be free"),
    "free twice": (assign("free", np.zeros(2, np.int64)), "stands twice"),
    "not free": (assign("free", np.zeros(0, np.int64)), "session 0: wanted slots to be free"),
    "given up": (put("sessions", ("generation", 0), LAST_GENERATION), "wanted slots to be free"),
    "never used": (put("sessions", ("generation", 0), 0), "times closed"),
    "same uid": (put("sessions", ("uid", 1), 0), "same uid"),
    "uid": (put("sessions", ("uid", 1), 2), "session 1: wanted below 2 sessions; uid"),
    "generation": (put("sessions", ("generation", 1), 1), "slots were used 3 times"),
    "closed flags": (put("sessions", ("flags", 0), 2), "wanted slots to be free"),
    "flags not open": (put("sessions", ("flags", 1), 2), "an open session; flags"),
    "flags unknown": (put("sessions", ("flags", 1), 33), "flags"),
    "policy": (put("sessions", ("policy", 1), 1), "0 to 0; policy"),
    "pool": (put("sessions", ("pool", 1), 2), "0 to 1; pool"),
    "errors": (put("sessions", ("errors", 1), 2), "no more than there were calls; errors"),
    "empties": (put("sessions", ("empties", 1), 2), "no more than there were calls; empties"),
    "twins": (put("sessions", ("twins", 1), 0x0C00), "twins"),
    "pending": (put("sessions", ("pending", 1), 0xF5FF), "pending"),
    "alpha 0": (put("sessions", ("alpha", (1, 4)), 0.0), "finite, above 0; alpha"),
    "beta NaN": (put("sessions", ("beta", (1, 0)), math.nan), "finite, above 0; beta"),
    "progress NaN": (put("sessions", ("progress", 1), math.nan), "0 to 1; progress"),
    "history": (put("sessions", ("history", (1, 8)), 1.5), "0 to 1; history"),
    "history_count": (put("sessions", ("history_count", 1), 0), "1 to 10; history_count"),
    "pool alpha": (put("posteriors", ("alpha", (1, 2)), -1.0), "pool 1: wanted finite, above 0"),
    "pool beta": (put("posteriors", ("beta", (0, 2)), math.inf), "finite, above 0; beta"),
    "pool closed": (put("posteriors", ("closed", 0), 2**63), "closed"),
    "pools": (assign("posteriors", lambda state: state.posteriors[:1]), "wanted 2 posteriors"),
    "prior": (
        assign("pools", {"one": Posterior(decay=0.5), "two": Posterior()}),
        "pool 0: wanted what its settings say; decay",
    ),
    "no limit": (assign("max_sessions", None), "last_use: wanted it with max_sessions"),
    "no last use": (assign("last_use", None), "last_use: wanted it with max_sessions"),
    "calls without a limit": (
        assign_all(max_sessions=None, last_use=None, calls=1), "wanted 0 without max_sessions"
    ),
    "evicted without a limit": (
        assign_all(max_sessions=None, last_use=None, calls=0, evicted=1), "wanted 0 without"
    ),
    "limit 0": (assign("max_sessions", 0), "max_sessions: wanted a number in [1, 2**31)"),
    "limit large": (assign("max_sessions", 2**31), "max_sessions: wanted a number in [1, 2**31)"),
    "open beyond the limit": (
        opened_again, "sessions: 2 are open, with max_sessions 1"
    ),
    "evicted": (assign("evicted", 2), "evicted: wanted at most 1"),
    "evicted negative": (assign("evicted", -1), "evicted: wanted at most 1"),
    "calls": (assign("calls", 2), "last_use"),
    "calls negative": (assign("calls", -1), "calls: wanted a number in [0, 2**64)"),
    "calls large": (assign("calls", 2**64), "calls: wanted a number in [0, 2**64)"),
    "last use never": (put("last_use", 0, 0), "session 0: wanted 1 to 3 calls; last_use"),
    "last use short": (put("last_use", 1, 4), "session 1: wanted 1 to 3 calls; last_use"),
    "last uses": (
        assign("last_use", np.ones(1, np.uint64)), "last_use: wanted 2, one a slot, got 1"
    ),
    "history missing": (
        assign("histories", lambda state: {"one": state.histories["one"]}), "histories: wanted"
    ),
    "history twice": (
        assign("histories", lambda state: dict.fromkeys(state.pools, state.histories["one"])),
        "two pools are the same source",
    ),
    "history of other settings": (began(Posterior(decay=0.5)), "'two' began with"),
    "learned too much": (
        put("posteriors", ("alpha", (1, 2)), 3.0), "'two': learned state: actions.redirect"
    ),
    "history of more closed": (began(closed=2), "histories: 'two': learned state: closed"),
    "history of more updates": (began(updates=1), "histories: 'two': actions.continue.updates"),
    "names": (assign("tools", dict.fromkeys(range(10_001), "x")), "at most 10,000 tools"),
    "hash": (assign("errors", {2**32: "x"}), "hashes of errors in [0, 2**32)"),
    "forgotten": (assign("forgotten", -1), "forgotten"),
    "handle of none": (handle(id=7), "is of session 7, which is not open"),
    "handle below 0": (handle(id=-(2**32) + 1), "which is not open"),
    "handle of closed": (handle(id=0), "is of session 0, which is not open"),
    "handle of later": (handle(id=2**32 + 1), "which is not open"),
    "handle tools": (handle(used_tools=frozenset(["cat"])), "used tools that it does not have"),
    "handle twice": (assign("handles", lambda state: state.handles * 2), "of the same session"),
    "action": (outcome("action", 5), "0 to 4; action"),
    "action no candidate": (outcome("action", 3), "one of its candidates; action"),
    "candidates": (outcome("candidates", 0x21), "1 to 31; candidates"),
    "reward": (outcome("reward", 1.5), "reward"),
    "draws": (outcome("draws", -0.5), "draws"),
    "bias": (outcome("bias", math.inf), "bias"),
    "user_rules": (outcome("user_rules", 1 << 16), "0 to 65535; user_rules"),
    "propensity": (outcome("propensity", 1.25), "0 to 1, or NaN; propensity"),
    "flag": (outcome("plateau", 2, "features"), "0 to 1; plateau"),
    "feature NaN": (outcome("error_rate", math.nan, "features"), "0 to 1; error_rate"),
}  # fmt: skip


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_what_no_fleet_can_be_is_found(name):
    change, words = IMPOSSIBLE[name]
    state = small_state()
    assert impossible(state) is None
    change(state)
    assert words in str(impossible(state))


def nothing_chosen(state):
    """A change: there is room for choices, and none was made."""
    state.choices[:], state.trials[:] = np.zeros((), _records.CHOICE), np.zeros((), _records.TRIAL)


IMPOSSIBLE_CHOICES = {
    "choices alone": (assign("trials", None), "wanted both or none"),
    "trials alone": (assign("choices", None), "wanted both or none"),
    "choices of one pool": (
        assign("choices", lambda state: state.choices[:1]), "choices: wanted (2, 1), pools"
    ),
    "trials of one slot": (
        assign("trials", lambda state: state.trials[:1]), "trials: wanted 2, one a slot, got 1"
    ),
    "learned": (put("choices", ("learned", 1), 2**32), "at most 4294967295; learned"),
    "won": (put("choices", ("won", 1), 2**31 + 1), "choices 1: wanted at most 2**31 for each"),
    "opened too few": (put("choices", ("opened", 1), 1), "choices 1: wanted no fewer than"),
    "opened too many": (put("choices", ("opened", 0), 1), "wanted 1 to 2 sessions opened, got 3"),
    "nothing chosen": (nothing_chosen, "wanted 1 to 2 sessions opened, got 0"),
    "of a closed session": (put("trials", ("chosen", 0), 1), "trial 0: wanted an open session"),
    "of another policy": (put("trials", ("chosen", 1), 2), "trial 1: wanted an open session"),
    "rounds": (put("trials", ("rounds", 1), 2), "trial 1: wanted the rounds of the session"),
    "reward": (put("trials", ("reward", 1), 2**31 + 1), "at most 2**31 for each round; reward"),
    "reward of none": (put("trials", ("reward", 0), 1), "at most 2**31 for each round; reward"),
}  # fmt: skip


@pytest.mark.parametrize("name", IMPOSSIBLE_CHOICES)
def test_choices_that_no_fleet_can_have_made_are_found(name):
    change, words = IMPOSSIBLE_CHOICES[name]
    state = state_with_choices()
    assert impossible(state) is None
    change(state)
    assert words in str(impossible(state))


@pytest.mark.parametrize("name", [*SESSION_BOUNDS])
def test_sessions_beyond_each_bound_are_found(name):
    least, most = SESSION_BOUNDS[name]
    kind = _records.SESSION[name].base
    beyond = [least - 1, most + 1] if kind.kind == "i" else [most + 1]
    beyond += [least - 1] if kind.kind == "f" else []
    highest = math.inf if kind.kind == "f" else np.iinfo(kind).max
    for value in [value for value in beyond if value <= highest]:
        state = small_state()
        state.sessions[name][1] = value
        assert name in str(impossible(state)) or name == "generation"
        assert impossible(state) is not None


def test_closed_sessions_may_hold_what_they_held():
    state = small_state()
    state.sessions["window_count"][0] = 200
    state.sessions["pending"][0] = 0x7777
    assert impossible(state) is None


@pytest.mark.parametrize("most", [None, MOST])
@pytest.mark.parametrize("seed", range(3))
def test_no_state_that_a_fleet_is_in_is_impossible(seed, most):
    run = Run(new_fleet(seed, max_sessions=most))
    for step in Script(seed, most).steps:
        assert impossible(run.fleet._state()) is None
        run.play([step])


def test_slots_that_are_given_up_are_possible():
    fleet = Fleet()
    fleet.open(1)
    fleet._memory.sessions["generation"][0] = LAST_GENERATION - 1
    fleet._memory.opened += LAST_GENERATION - 1
    fleet.close([(LAST_GENERATION - 1) << 32])
    state = fleet._state()
    assert len(state.free) == 0
    assert impossible(state) is None
    assert Fleet._from_state(state).open(1).tolist() == [1]


# --- every byte ----------------------------------------------------------------------------------
def changed(byte, how):
    """A byte changed: one bit, all bits, the highest and the lowest value."""
    return {"low": byte ^ 1, "high": byte ^ 0x80, "all": byte ^ 0xFF, "one": 1, "most": 0xFF,
            "none": 0}[how]  # fmt: skip


HOW = ("low", "high", "all", "one", "most", "none")


def rounds(count, rng):
    """Any rounds for so many sessions."""
    calls = rng.integers(0, 4, count)
    total = int(calls.sum())
    return RoundBatch(
        call_offsets=np.concatenate([[0], np.cumsum(calls)]).astype(np.int64),
        call_tool=rng.integers(1, 5, total).astype(np.uint64),
        call_signature=rng.integers(1, 5, total).astype(np.uint64),
        call_result=rng.integers(1, 5, total).astype(np.uint64),
        call_flags=rng.choice([0, 0, 1, 2, 5, 8, 10], total).astype(np.uint8),
        text=rng.integers(0, 3, count).astype(np.uint64),
        context_tokens=rng.integers(-1, 10_000, count),
        event=rng.choice([0, 0, 0, 0, 0, 0, 1, 2], count).astype(np.uint8),
    )


def check_decisions(decisions):
    """They are what decisions can be."""
    assert (decisions.action < 5).all()
    assert (decisions.candidates >> decisions.action & 1 == 1).all()
    assert ((decisions.reward >= 0) & (decisions.reward <= 1)).all()
    check_features(decisions.features)
    compared = ~np.isnan(decisions.draws)
    assert (compared == ~np.isnan(decisions.bias)).all()
    assert ((decisions.draws[compared] >= 0) & (decisions.draws[compared] <= 1)).all()
    assert (compared.any(axis=1) <= decisions.tiebreak).all()


def check_features(features):
    """They are what features can be: those of a batch, or of one decision."""
    for name, (least, most) in FEATURE_BOUNDS.items():
        values = features[name] if isinstance(features, np.ndarray) else getattr(features, name)
        assert np.all((values >= least) & (values <= most)), name


def go_on(state, path, rng, steps=50):
    """Take a state through a file and 50 rounds; its decisions and then it are possible."""
    snapshot.write(path, state)
    fleet = Fleet.load(path, threads=1)
    ids = np.arange(len(state.sessions)) | state.sessions["generation"].astype(np.int64) << 32
    ids = ids[state.sessions["flags"] != 0]
    for place in range(steps):
        some = ids if place % 4 else ids[rng.random(len(ids)) < 0.5]     # in groups, and alone
        check_decisions(fleet.step(some, rounds(len(some), rng)))
    for one in ids[:50].tolist():
        check_features(fleet.attach(one).step(Round([ToolCall("ls", "-l", "a b")])).features)
    fleet.close(ids[::2])
    assert impossible(fleet._state()) is None


def lively_sessions(seed, count):
    """A state with a few sessions in the midst of their runs, private ones and others."""
    run = Run(new_fleet(seed))
    run.play(Script(seed).steps[:15])
    state = run.fleet._state()
    open_ones = state.sessions[state.sessions["flags"] != 0]
    private = open_ones["flags"] & _records.SESSION_PRIVATE != 0
    return state, joined([open_ones[private][:count], open_ones[~private][:count]])


def joined(parts):
    """Records one after the other; of its own NumPy would leave out what pads them."""
    return np.concatenate(parts, dtype=parts[0].dtype)


def of_sessions(state, sessions):
    """A state of these sessions alone, just as they are."""
    return dataclasses.replace(
        state, sessions=sessions, free=np.empty(0, np.int64), handles=[], opened=len(sessions),
        choices=None, trials=None,
    )


def begun(pools):
    """Histories of new pools."""
    return {name: PoolHistory.begun() for name in pools}


def alterations(records, how, is_possible):
    """Copies of the first record with one byte changed: those that are possible; and how many are
    not."""
    possible, refused = [], 0
    for place, kind in itertools.product(range(records.itemsize), how):
        other = records[:1].copy()
        raw = other.view(np.uint8)
        raw[place] = changed(raw[place], kind)
        if is_possible(other):
            possible.append(other)
        else:
            refused += 1
    return joined(possible), refused


def check_every_byte_of_sessions(tmp_path, rng, count, how):
    state, sessions = lively_sessions(7, count)
    assert len(sessions) == 2 * count
    altered, refused = [], 0
    for place in range(len(sessions)):
        one = sessions[place : place + 1].copy()
        one["uid"], one["generation"] = 0, 0
        assert impossible(of_sessions(state, one)) is None
        more, others = alterations(
            one, how, lambda other: impossible(of_sessions(state, other)) is None
        )
        altered.append(more)
        refused += others
    altered = joined(altered)
    assert len(altered) + refused == len(sessions) * _records.SESSION.itemsize * len(how)
    assert refused > len(altered) / 10
    altered["uid"] = np.arange(len(altered))
    go_on(of_sessions(state, altered), tmp_path / "altered", rng.arrays)


def test_every_byte_of_a_session_is_refused_or_does_no_harm(tmp_path, rng):
    check_every_byte_of_sessions(tmp_path, rng, 1, HOW[:3])


@pytest.mark.long
def test_every_byte_of_sessions_is_refused_or_does_no_harm(tmp_path, rng):
    check_every_byte_of_sessions(tmp_path, rng, 4, HOW)


def test_every_byte_of_a_pool_is_refused_or_does_no_harm(tmp_path, rng):
    state, sessions = lively_sessions(7, 1)
    one = np.repeat(sessions[sessions["flags"] & _records.SESSION_PRIVATE == 0], 1)
    one["uid"], one["generation"], one["pool"] = 0, 0, 0
    name, settings = next(iter(state.pools.items()))
    state = dataclasses.replace(
        of_sessions(state, one), pools={name: settings}, histories=begun([name])
    )

    def is_possible(pool):
        return impossible(dataclasses.replace(state, posteriors=pool)) is None

    assert is_possible(state.posteriors[:1])
    altered, refused = alterations(state.posteriors[:1], HOW, is_possible)
    assert len(altered) + refused == _records.POOL.itemsize * len(HOW)
    assert min(len(altered), refused) > 100
    many = np.repeat(one, len(altered))
    many["uid"] = many["pool"] = np.arange(len(altered))
    pools = {f"{name} {place}": settings for place in range(len(altered))}
    state = dataclasses.replace(
        of_sessions(state, many), pools=pools, posteriors=altered, histories=begun(pools)
    )
    go_on(state, tmp_path / "altered", rng.arrays)


@pytest.mark.parametrize("name", ["choices", "trials"])
def test_every_byte_of_a_choice_is_refused_or_does_no_harm(name):
    size, counted = getattr(state_with_choices(), name).dtype.itemsize, [0, 0]
    for place, how in itertools.product(range(2 * size), HOW):
        state = state_with_choices()
        raw = getattr(state, name).view(np.uint8).reshape(-1)
        raw[place] = changed(raw[place], how)
        counted[impossible(state) is None] += 1
        if impossible(state) is None:
            fleet = Fleet._from_state(state)
            fleet.open(3, policy="auto", pool="two")
            fleet.step(fleet.ids, RoundBatch(reward=np.zeros(4, np.float32)))
            fleet.close(fleet.ids)
            known = fleet.policy_choice("two")["default"]
            assert known.alpha >= 1 and known.beta >= 1 and 4 <= known.learned <= known.opened
    assert min(counted) > size


def test_resumed_policies_are_those_that_were_saved(tmp_path):
    policy = Policy(tool_limits={"ls": "poll"}, frequent_tools=("cat",), n_step=4)
    fleet = Fleet(policies={"mine": policy, "other": "cellium"})
    fleet.save(tmp_path / "fleet")
    resumed = Fleet.load(tmp_path / "fleet")
    assert resumed.policies == fleet.policies
    assert resumed._memory.policies.tobytes() == fleet._memory.policies.tobytes()
