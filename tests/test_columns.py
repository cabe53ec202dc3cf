"""Columns of a step: which are wanted, which are used again, which are refused."""

import math

import numpy as np
import pytest
from conftest import same_bits

from cellium_fast import (
    Fleet,
    HardConstraintRenderer,
    InputError,
    MissingColumnError,
    Policy,
    Round,
    RoundBatch,
    ToolCall,
    _columns,
    _records,
    pipeline,
)
from cellium_fast.arguments import usable_cpus
from cellium_fast.decision import ALWAYS, COLUMNS

SESSIONS = 700


def some_rounds(chance, count=SESSIONS):
    """Rounds of few different calls, so that loops, failures, stagnation and ties come up."""
    calls = chance.integers(0, 4, count)
    total = int(calls.sum())
    return RoundBatch(
        call_offsets=np.concatenate([[0], np.cumsum(calls)]),
        call_tool=chance.integers(1, 4, total).astype(np.uint64),
        call_signature=chance.integers(1, 4, total).astype(np.uint64),
        call_result=chance.integers(1, 4, total).astype(np.uint64),
        call_flags=(chance.random(total) < 0.3).astype(np.uint8),
        call_size=chance.integers(0, 500, total).astype(np.uint32),
        text=chance.integers(0, 4, count).astype(np.uint64),
        context_tokens=chance.integers(0, 100, count),
    )


@pytest.fixture
def fleets(rng):
    """Two fleets alike, their ids, and the rounds that they go through."""
    chance = np.random.default_rng(rng.getrandbits(64))
    pair = [Fleet(seed=5, policies={"a": Policy(), "b": "cellium"}) for _ in range(2)]
    ids = [np.concatenate([
        fleet.open(SESSIONS // 2, context_limit=100, policy=name, round_limit=12, private=private)
        for name, private in (("a", False), ("b", True))
    ]) for fleet in pair]
    assert np.array_equal(*ids)
    return *pair, ids[0], [some_rounds(chance) for _ in range(14)]


# --- want -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("chunk", [1, 7, 256, 512])
@pytest.mark.parametrize("want", [
    [], ["action"], ["rules", "reward"], ["features"], ["draws"], ["bias", "tiebreak"],
    ["candidates", "rules", "features"],
])
def test_what_is_not_wanted_changes_nothing(fleets, want, chunk, monkeypatch):
    monkeypatch.setattr(pipeline, "CHUNK", chunk)
    every, some, ids, rounds = fleets
    for batch in rounds:
        expected, found = every.step(ids, batch), some.step(ids, batch, want=want)
        assert set(found.columns()) == {*want, *ALWAYS}
        for name, column in found.columns().items():
            assert same_bits(column, getattr(expected, name)), name
    assert expected.tiebreak.any()
    assert every._memory.sessions.tobytes() == some._memory.sessions.tobytes()
    assert every._memory.pools.tobytes() == some._memory.pools.tobytes()


def test_a_column_that_is_missing_says_so(fleets):
    fleet, _, ids, rounds = fleets
    decisions = fleet.step(ids, rounds[0], want=["rules"])
    for name in sorted(set(COLUMNS) - {"rules", *ALWAYS}):
        assert not hasattr(decisions, name)
        with pytest.raises(MissingColumnError, match=f"^{name}: this step was not asked for it"):
            getattr(decisions, name)
    for look in (lambda: decisions[0], lambda: decisions.scores,
                 lambda: HardConstraintRenderer().render_many(decisions)):
        with pytest.raises(MissingColumnError, match="want="):
            look()
    with pytest.raises(AttributeError, match="no attribute 'actions'"):
        _ = decisions.actions
    assert repr(decisions).startswith(f"<Decisions of {SESSIONS}: ")


@pytest.mark.parametrize(("want", "words"), [
    ("rules", "want: wanted names"), (["rule"], "no column 'rule'; there is action, candidates"),
    ([1], "want: wanted names"), (5, "want: wanted names"),
])
def test_wants_that_are_refused(fleets, want, words):
    fleet, _, ids, rounds = fleets
    before = fleet._memory.sessions.tobytes()
    with pytest.raises(InputError, match=words):
        fleet.step(ids, rounds[0], want=want)
    assert fleet._memory.sessions.tobytes() == before


def test_a_handle_gets_a_whole_decision_whatever_the_batch_wants():
    fleet, twin = Fleet(seed=1), Fleet(seed=1)
    handles = [fleet.session(context_limit=100) for _ in range(3)]
    ids = [handle.id for handle in handles]
    twin.open(3, context_limit=100)
    rounds = [Round([ToolCall("a", 1, "x", error=True)], context_tokens=80)] * 3
    out = fleet.step(ids, rounds, want=["reward"])
    whole = twin.step(ids, rounds)
    for _ in range(6):
        assert fleet.step(ids, rounds, out=out) is out
        whole = twin.step(ids, rounds)
    assert set(out.columns()) == {"reward", *ALWAYS}
    assert out.action.tolist() == whole.action.tolist()
    for place, handle in enumerate(handles):
        assert handle.decision.features == whole[place].features
        assert handle.decision.draws == whole[place].draws


# --- out ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("want", [None, ["reward", "features"]])
def test_decisions_are_used_again(fleets, want):
    every, again, ids, rounds = fleets
    out = again.step(ids, rounds[0], want=want)
    places = {name: column.ctypes.data for name, column in out.columns().items()}
    every.step(ids, rounds[0])
    for batch in rounds[1:]:
        expected = every.step(ids, batch)
        assert again.step(ids, batch, want=want, out=out) is out
        for name, column in out.columns().items():
            assert same_bits(column, getattr(expected, name)), name
            assert column.ctypes.data == places[name]
    if want is None:
        assert repr(out[3]) == repr(expected[3])


def test_decisions_of_another_fleet_are_used_again_as_ones_of_this():
    one = Fleet(policies={"a": Policy()})
    other = Fleet(policies={"a": Policy(), "b": "cellium"})
    out = one.step(one.open(2), RoundBatch(text=np.ones(2, np.uint64)))
    ids = np.concatenate([other.open(1), other.open(1, policy="b")])
    other.step(ids, RoundBatch(text=np.ones(2, np.uint64)), out=out)
    assert [decision.setting.policy for decision in out] == [Policy(), Policy.preset("cellium")]


@pytest.mark.parametrize(("make", "words"), [
    (lambda fleet, ids: "out", "wanted Decisions of an earlier step, got 'out'"),
    (lambda fleet, ids: fleet.step(ids[:2], [Round()] * 2),
     "wanted Decisions of 3 sessions, got 2"),
    (lambda fleet, ids: fleet.step(ids, [Round()] * 3, want=["rules"]),
     "wanted the columns action, candidates, reward, got action, candidates, rules"),
])
def test_outs_that_are_refused(make, words):
    fleet = Fleet()
    ids = fleet.open(3)
    out = make(fleet, ids)
    before = fleet._memory.sessions.tobytes()
    with pytest.raises(InputError, match=f"^out: {words}"):
        fleet.step(ids, [Round()] * 3, want=["reward"], out=out)
    assert fleet._memory.sessions.tobytes() == before


@pytest.mark.parametrize(("spoil", "words"), [
    (lambda column: column.setflags(write=False), "wanted a writable C-contiguous array"),
    (lambda column: setattr(column, "dtype", np.int32), "wanted an array float32 .3,., got int32"),
    (lambda column: setattr(column, "shape", (3, 1)), "wanted an array float32 .3,., got .*3, 1"),
])
def test_outs_whose_arrays_were_changed_are_refused(spoil, words):
    fleet = Fleet()
    ids = fleet.open(3)
    out = fleet.step(ids, [Round()] * 3, want=["reward"])
    spoil(out.reward)
    with pytest.raises(InputError, match=f"^out.reward: {words}"):
        fleet.step(ids, [Round()] * 3, out=out)
    assert fleet._memory.sessions["round"][:3].tolist() == [1, 1, 1]


def test_a_column_is_not_put_in_anothers_place():
    decisions = Fleet().step([], [])
    for name in COLUMNS:
        with pytest.raises(AttributeError):
            setattr(decisions, name, np.zeros(0, np.uint8))


# --- Checks of columns ----------------------------------------------------------------------------
@pytest.mark.parametrize(("check", "good", "bad"), [
    (_columns.first_above, np.full(70, 3, np.uint8), 4),
    (_columns.first_no_fraction, np.linspace(0, 1, 70, dtype=np.float32), 1.1),
    (_columns.first_no_fraction, np.full(70, np.nan, np.float32), -0.1),
    (_columns.first_no_fraction, np.full(70, 0.5, np.float32), math.inf),
    (_columns.first_outside, np.resize(np.array([-1, 0, 1], np.int8), 70), 2),
    (_columns.first_outside, np.resize(np.array([-1, 0, 1], np.int8), 70), -2),
    (_columns.first_fall, np.resize(np.array([5]), 70), 4),
    (_columns.first_fall, np.full(70, 2**62), -(2**62)),
])
def test_the_first_bad_element_is_found(check, good, bad):
    limits = {_columns.first_above: (3,), _columns.first_outside: (-1, 1)}.get(check, ())
    assert check(good, *limits) == -1
    assert check(good[:0], *limits) == -1
    first = 1 if check is _columns.first_fall else 0    # nothing stands before the first one
    for place in (first, 31, 69):
        column = good.copy()
        column[place] = bad
        column[-1] = bad
        assert check(column, *limits) == place


# --- Memory and threads ---------------------------------------------------------------------------
def test_a_session_takes_six_lines_of_cache():
    assert _records.SESSION.itemsize <= 6 * 64
    memory = Fleet()._memory
    for count in (1, 100, 5_000):
        memory.slots_for(count, np.empty(0, np.int64))
        assert memory.sessions.ctypes.data % 64 == 0
    assert memory.free.nbytes + memory.watched.nbytes == 0


def test_a_fleet_uses_the_cpus_of_its_process_unless_told_otherwise():
    assert Fleet()._threads == usable_cpus() >= 1
    assert Fleet(threads=3)._threads == 3


def test_small_batches_are_not_cut():
    enough = pipeline.CHUNK * pipeline.SPAN
    assert pipeline.span_count(0, 8) == pipeline.span_count(2 * enough - 1, 8) == 1
    assert pipeline.span_count(2 * enough, 8) == 2
    assert pipeline.span_count(10**6, 8) == 8
    assert pipeline.span_count(10**6, 1) == 1
