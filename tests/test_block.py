"""Blocks of sessions: they step as the fleet does, and nothing that is written into them harms."""

import gc
import os
import threading
import time
from itertools import pairwise
from pathlib import Path

import numba
import numpy as np
import pytest
from conftest import Seeded, pack, same_bits, take
from lively_fleets import new_fleet
from random_agents import Agent
from test_interrupts import state_of

from cellium_fast import (
    BlockError,
    Fleet,
    InputError,
    Policy,
    ReentryError,
    RoundBatch,
    SessionError,
    UserCodeError,
    bias,
    reward,
    rule,
)
from cellium_fast import block as blocks
from cellium_fast.block import DecisionColumns, RoundColumns
from cellium_fast.decision import COLUMNS
from cellium_fast.rounds import CALL_COLUMNS, ROUND_COLUMNS

ALL = ("call_offsets", *CALL_COLUMNS, *ROUND_COLUMNS)
SIZE = 1_300     # more than a chunk


def fill(block, batch, start=0):
    """Write the rounds of a batch into the rows of a block from `start` on."""
    size = len(batch.call_offsets) - 1
    calls = batch.call_offsets[-1]
    first = block.rounds.call_offsets[start]
    block.rounds.call_offsets[start : start + size + 1] = first + batch.call_offsets
    for name in CALL_COLUMNS:
        getattr(block.rounds, name)[first : first + calls] = getattr(batch, name)
    for name in ROUND_COLUMNS:
        column, given = getattr(block.rounds, name), getattr(batch, name)
        column[start : start + size] = blocks.UNTOLD.get(name, 0) if given is None else given


def lively(seed, **options):
    """A fleet of all kinds of sessions, private ones among them, and their ids."""
    fleet, rng = new_fleet(seed, **options), Seeded(seed)
    ids = [
        fleet.open(
            rng.randrange(1, 40), policy=rng.choice(list(fleet.policies)),
            pool=rng.choice(list(fleet.pools)), private=rng.random() < 0.4,
            context_limit=rng.choice([None, 20_000, 100_000]), round_limit=rng.choice([None, 30]),
        )
        for _ in range(24)
    ]
    return fleet, np.concatenate(ids)


def rounds_of(rng, size, count):
    agents = [Agent(rng) for _ in range(size)]
    return [pack([agent.round() for agent in agents]) for _ in range(count)]


# --- the same as the fleet -----------------------------------------------------------------------
@pytest.mark.parametrize("options", [{}, {"max_sessions": 2_000}], ids=["any", "limited"])
def test_a_block_steps_as_the_fleet_does(options, rng):
    seed = rng.randrange(1_000)
    plain, ids = lively(seed, threads=1, **options)
    fleet, _ = lively(seed, **options)
    order = rng.arrays.permutation(len(ids))
    rounds = rounds_of(rng, len(ids), 12)
    with fleet.block(ids[order], calls=20, given=ALL) as block:
        for batch in rounds:
            expected = plain.step(ids[order], batch)
            fill(block, batch)
            block.step()
            for name in COLUMNS:
                assert same_bits(getattr(expected, name), getattr(block.decisions, name)), name
    assert state_of(fleet) == state_of(plain)
    uses = plain._memory.last_uses(), fleet._memory.last_uses()
    assert (uses[0] is None) == ("max_sessions" not in options)
    assert uses[0] is None or np.array_equal(*uses)
    assert fleet._memory.calls == plain._memory.calls


def test_a_block_in_parts_steps_as_the_fleet_does(rng):
    seed = rng.randrange(1_000)
    plain, ids = lively(seed)
    fleet, _ = lively(seed)
    parts = [0, 1, 2, 9, 9, 60, len(ids)]       # fewer rows than pools, too
    with fleet.block(ids, calls=20, given=ALL) as block:
        for whole in rounds_of(rng, len(ids), 6):
            for start, stop in pairwise(parts):
                batch = take(whole, np.arange(start, stop))
                expected = plain.step(ids[start:stop], batch)
                fill(block, batch, start)
                block.step(start, stop)
                for name in COLUMNS:
                    found = getattr(block.decisions, name)[start:stop]
                    assert same_bits(getattr(expected, name), found), name
    assert state_of(fleet) == state_of(plain)


def test_columns_left_out_are_as_left_out_of_a_batch(rng):
    given = ("call_signature", "context_tokens")
    plain, fleet = Fleet(), Fleet()
    ids = plain.open(SIZE, context_limit=1_000)
    with fleet.block(fleet.open(SIZE, context_limit=1_000), given=given, want=["rules"]) as block:
        assert block.rounds.call_shape is block.rounds.text is block.decisions.draws is None
        block.rounds.call_offsets[:] = np.arange(SIZE + 1)
        for _ in range(8):
            tool, signature = rng.arrays.integers(0, 3, (2, SIZE)).astype(np.uint64)
            tokens = rng.arrays.integers(-1, 1_000, SIZE)
            expected = plain.step(ids, RoundBatch(
                call_offsets=np.arange(SIZE + 1), call_tool=tool, call_signature=signature,
                context_tokens=tokens,
            ), want=["rules"])
            block.rounds.call_tool[:] = tool
            block.rounds.call_signature[:] = signature
            block.rounds.context_tokens[:] = tokens
            block.step()
            assert np.array_equal(expected.rules, block.decisions.rules)
            assert np.array_equal(expected.action, block.decisions.action)
    assert state_of(fleet) == state_of(plain)


def test_a_block_says_nothing_at_first():
    plain, fleet = Fleet(), Fleet()
    ids = plain.open(SIZE)
    with fleet.block(fleet.open(SIZE)) as block:
        assert not np.any(block.decisions.action)
        block.step()
    plain.step(ids, RoundBatch())
    assert state_of(fleet) == state_of(plain)


def test_an_empty_block_is_one_like_any_other():
    fleet = Fleet()
    with fleet.block([]) as block:
        block.step()
        assert len(block) == 0
        assert block.decisions.action.shape == (0,)


def test_the_columns_have_the_names_of_the_others():
    assert RoundColumns._fields == ALL
    assert set(DecisionColumns._fields) == set(COLUMNS)


def test_a_block_knows_its_sessions():
    fleet = Fleet(seed=3)
    fleet.close(fleet.open(4))
    ids = fleet.open(5)[::-1]
    block = fleet.block(ids)
    assert repr(block) == "<Block of 0 sessions, not open>"
    with block:
        assert block.ids.tolist() == ids.tolist()
        assert block.uids.tolist() == [8, 7, 6, 5, 4]
        assert block.uids.dtype == np.uint64
        assert repr(block) == "<Block of 5 sessions, open>"
        assert block.is_open
    assert not block.is_open


# --- what is written wrongly ---------------------------------------------------------------------
WRONG = [
    ("progress", 7, 1.5, "in \\[0, 1\\]"), ("progress", 7, -0.5, "in \\[0, 1\\]"),
    ("reward", 0, np.inf, "in \\[0, 1\\]"), ("success", SIZE - 1, 2, "1, 0, or -1"),
    ("success", 5, -2, "1, 0, or -1"), ("event", 9, 3, "0, 1 or 2"),
    ("call_flags", 11, 4, "a sum of 1"), ("call_flags", 11, 16, "a sum of 1"),
    ("call_flags", 0, 9, "a sum of 1"), ("call_offsets", 6, 2, "no fall, and from 0 to 1300"),
    ("call_offsets", 0, -1, "no fall"), ("call_offsets", SIZE, SIZE + 1, "no fall"),
    ("call_offsets", 600, 2**62, "no fall"), ("call_offsets", 600, -(2**63), "no fall"),
]


@pytest.mark.parametrize(("column", "place", "value", "wanted"), WRONG)
def test_nonsense_is_named_and_nothing_is_stepped(column, place, value, wanted):
    fleet = Fleet(max_sessions=SIZE)
    with fleet.block(fleet.open(SIZE), given=ALL) as block:
        block.rounds.call_offsets[:] = np.arange(SIZE + 1)
        block.step()
        block.decisions.action[:] = 77
        before = state_of(fleet)
        array = getattr(block.rounds, column)
        good = array[place]
        array[place] = value
        with pytest.raises(InputError, match=rf"^{column}\[\d+\]: wanted .*{wanted}.*, got "):
            block.step()
        where = block.wrong_at
        if column == "call_offsets":
            assert where in (place, place + 1)
        else:
            assert where == place
        assert state_of(fleet) == before
        assert np.all(block.decisions.action == 77)
        if place > 20:      # the rows before it can be stepped all the same
            block.step(0, 20)
            assert np.all(block.decisions.action[:20] != 77)
        array[place] = good
        block.step()


def test_what_lies_before_offsets_that_rise_is_not_looked_at():
    fleet = Fleet()
    with fleet.block(fleet.open(4), calls=3, given=["call_flags"]) as block:
        block.rounds.call_offsets[:] = 2, 3, 3, 8, 12
        block.rounds.call_flags[:2] = 255
        block.step()
        block.rounds.call_flags[11] = 255
        with pytest.raises(InputError, match=r"call_flags\[11\]"):
            block.step()
        block.step(0, 3)


def test_random_bytes_in_all_columns_never_harm(rng):
    fleet = Fleet()
    wrong = 0
    with fleet.block(fleet.open(40), calls=2, given=ALL) as block:
        for turn in range(400):
            for place, one in enumerate(block.rounds):
                if turn % (place + 2) == 0:
                    some = rng.arrays.integers(0, 256, one.nbytes, np.uint8)
                    one.view(np.uint8)[:] = some
                elif rng.random() < 0.7:
                    one[:] = 0
            code = block.run(0, 40)
            wrong += code != 0
            if code:
                with pytest.raises(InputError):
                    block.check(code)
    assert 100 < wrong < 400
    fleet.step(fleet.ids, RoundBatch())


@pytest.mark.parametrize("rows", [(-1, 2), (0, 6), (3, 2), (6, 6), (-(2**63), 2**63 - 1)])
def test_rows_that_are_not_there(rows):
    fleet = Fleet()
    with fleet.block(fleet.open(5)) as block:
        before = state_of(fleet)
        code = block.run(*rows)
        assert code != 0
        with pytest.raises(InputError, match="rows in order from 0 to 5"):
            block.check(code)
        assert state_of(fleet) == before
        with pytest.raises(InputError, match=r"start|stop"):
            block.step(*rows)
        assert block.check(block.run(5, 5)) is None


def test_a_code_that_no_step_returns():
    fleet = Fleet()
    with fleet.block(fleet.open(5)) as block:
        for code in (-99, 1, "x", 1.5):
            with pytest.raises(InputError, match=f"got '?{code}"):
                block.check(code)


@pytest.mark.parametrize(("keywords", "message"), [
    ({"calls": -1}, "calls: wanted a whole number"), ({"calls": 1.5}, "calls: wanted"),
    ({"given": ["txt"]}, "given: there is no column 'txt'; there is call_offsets"),
    ({"given": "text"}, "given: wanted names"), ({"want": ["x"]}, "want: there is no column 'x'"),
    ({"ids": [[1]]}, "ids: wanted shape"),
])
def test_arguments_that_make_no_sense(keywords, message):
    fleet = Fleet()
    ids = fleet.open(3)
    with pytest.raises(InputError, match=message):
        fleet.block(**{"ids": ids, **keywords})


# --- which sessions ------------------------------------------------------------------------------
def test_sessions_that_are_not_there():
    fleet = Fleet()
    ids = fleet.open(3)
    fleet.close(ids[2:])
    for wrong, message in (
        ([0, 2], r"ids\[1\]: session 2 is closed"), ([0, 0], "stands twice"), ([9], "no session 9"),
    ):
        block = fleet.block(wrong)
        with pytest.raises(SessionError, match=message), block:
            pass
        assert len(fleet) == 2      # the turn was given back
    with fleet.block([0, 1]):
        pass


def test_sessions_with_handles_are_refused():
    fleet = Fleet()
    ids = fleet.open(3)
    fleet.attach(int(ids[1]))
    with (
        pytest.raises(SessionError, match=r"ids\[1\]: session 1 has a `Session` object, which"),
        fleet.block(ids),
    ):
        pass
    with fleet.block(ids[[0, 2]]) as block:
        block.step()


def test_a_durable_fleet_is_refused(tmp_path):
    with Fleet.open_durable(tmp_path / "fleet") as fleet:
        ids = fleet.open(2)
        with pytest.raises(InputError, match="fleet: every step of a durable fleet goes into"):
            fleet.block(ids)


# --- closing -------------------------------------------------------------------------------------
def test_closing_in_a_block_is_closing_in_the_fleet(rng):
    seed = rng.randrange(1_000)
    plain, ids = lively(seed)
    fleet, _ = lively(seed)
    agents = np.array([Agent(rng) for _ in ids], object)
    with fleet.block(ids, calls=30, given=ALL) as block:
        while len(ids):
            batch = pack([agent.round() for agent in agents])
            expected = plain.step(ids, batch)
            fill(block, batch)
            block.step()
            rows = rng.arrays.permutation(len(ids))[: rng.randrange(1, 90)]
            outcomes = rng.arrays.integers(-1, 2, len(rows)).astype(np.int8)
            plain.close(ids[rows], outcomes)
            kept = block.close(rows, outcomes)
            assert kept.tolist() == sorted(set(range(len(ids))) - set(rows.tolist()))
            ids, agents = ids[kept], agents[kept]
            assert block.ids.tolist() == ids.tolist()
            assert len(block) == len(ids)
            for name in COLUMNS:
                found = getattr(block.decisions, name)
                assert same_bits(getattr(expected, name)[kept], found), name
            for name in ROUND_COLUMNS:
                told = getattr(batch, name)
                if told is not None:
                    assert same_bits(told[kept], getattr(block.rounds, name)), name
            assert block.run(0, len(ids) + 1) != 0
    assert state_of(fleet) == state_of(plain)


def test_rows_that_cannot_be_closed():
    fleet = Fleet()
    with fleet.block(fleet.open(4)) as block:
        before = state_of(fleet)
        for rows, success, message in (
            ([4], None, r"rows\[0\]: wanted a row from 0 to 3"), ([-1], None, r"rows\[0\]"),
            ([1, 1], None, "rows: wanted each row once"), ([1], [1, 0], "success: wanted"),
            ([1.5], None, "rows: wanted int64"),
        ):
            with pytest.raises(InputError, match=message):
                block.close(rows, success)
        assert state_of(fleet) == before
        assert len(block) == 4
    with pytest.raises(BlockError, match="not open"):
        block.close([0])


# --- the fleet's turn ----------------------------------------------------------------------------
def test_calls_of_the_same_thread_are_refused():
    fleet = Fleet()
    ids = fleet.open(3)
    with fleet.block(ids) as block:
        for call in (
            lambda: fleet.step(ids, RoundBatch()), lambda: fleet.open(1), lambda: fleet.close(ids),
            lambda: fleet.session(), lambda: fleet.ids,
            lambda: fleet.block(ids).__enter__(),
        ):
            with pytest.raises(ReentryError, match="inside the `with` of a block"):
                call()
        block.step()
    fleet.step(ids, RoundBatch())


def test_another_thread_waits_for_the_block():
    fleet = Fleet()
    ids = fleet.open(3)
    order = []

    def step():
        started.set()
        fleet.step(ids, RoundBatch())
        order.append("fleet")

    started = threading.Event()
    thread = threading.Thread(target=step)
    with fleet.block(ids) as block:
        thread.start()
        started.wait()
        time.sleep(0.05)
        block.step()
        order.append("block")
    thread.join()
    assert order == ["block", "fleet"]
    assert fleet._memory.sessions["round"][:3].tolist() == [2, 2, 2]


def test_the_turn_is_given_back_when_the_block_ends_in_an_error():
    fleet = Fleet()
    ids = fleet.open(3)
    block = fleet.block(ids)
    with pytest.raises(ZeroDivisionError), block:
        block.step()
        raise ZeroDivisionError
    fleet.step(ids, RoundBatch())
    with pytest.raises(BlockError, match="not open"):
        block.step(0, 0)
    with pytest.raises(BlockError, match="entered once"), block:
        pass
    fleet.step(ids, RoundBatch())


def test_a_block_is_not_stepped_before_it_is_entered():
    block = Fleet().block([])
    with pytest.raises(BlockError, match="not open"):
        block.step()


def test_one_thread_at_a_time_steps_a_block():
    # While one steps, the others are told so, and what is stepped is stepped once.
    fleet = Fleet(threads=1)
    size, turns = 20_000, 40
    codes = []
    with fleet.block(fleet.open(size, private=True), want=[]) as block:

        def work():
            for _ in range(turns):
                codes.append(block.run(0, size))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        stepped = fleet._memory.sessions["round"][:size]
        assert len(codes) == 4 * turns
        assert np.all(stepped == codes.count(0))
        busy = [code for code in codes if code != 0]
        for code in busy:
            with pytest.raises(BlockError, match="another thread"):
                block.check(code)
    assert codes.count(0) >= turns      # one of them at least got through every time


def test_a_block_is_left_when_the_step_of_another_thread_is_done(monkeypatch):
    # That step works on the fleet's memory, which others may move once it is their turn.
    monkeypatch.setattr(numba.config, "DISABLE_JIT", True)
    stepping, leaving = threading.Event(), threading.Event()
    called = []

    @rule(proposes="retry")
    def waiting(features):
        stepping.set()
        leaving.wait(10)
        time.sleep(0.05)        # by then the block is being left
        called.append(features.round)
        return False

    fleet = Fleet(policies={"waiting": Policy(user_rules=(waiting,))})
    with fleet.block(fleet.open(1)) as block:
        thread = threading.Thread(target=block.step)
        thread.start()
        assert stepping.wait(10)
        leaving.set()
    assert called == [1] and not block.is_open
    thread.join()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_the_child_of_a_fork_inside_a_block_goes_on_with_a_copy():
    fleet = Fleet()
    with fleet.block(fleet.open(3)) as block:
        child = os.fork()
        if child == 0:
            block.step()
            good = fleet._memory.sessions["round"][:3].tolist() == [1, 1, 1]
            os._exit(0 if good else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert fleet._memory.sessions["round"][:3].tolist() == [0, 0, 0]


def test_a_block_outlives_its_fleet_and_its_columns_outlive_it():
    block = Fleet(seed=1).block(Fleet(seed=1).open(0))
    with block:
        block.step()
    fleet = Fleet()
    with fleet.block(fleet.open(1000)) as block:
        columns = block.decisions
        del fleet
        gc.collect()
        block.step()
    del block
    gc.collect()
    assert columns.action.shape == (1000,)


# --- functions of users --------------------------------------------------------------------------
@rule(proposes="redirect")
def half_full(features):
    return features.context_ratio > 0.5


@rule(forces="terminate")
def brittle(features):
    if features.progress_score > 0.9:
        raise ValueError("too good")
    return False


@reward
def of_context(features, outcome):
    return 1.0 - features.context_saturation


@bias("redirect")
def towards_redirect(features):
    return 0.5 * features.context_saturation


def fleet_of_users(**options):
    policy = Policy(
        user_rules=(half_full, brittle), user_reward=of_context, user_bias=(towards_redirect,)
    )
    fleet = Fleet(seed=5, policies={"usual": "default", "mine": policy}, **options)
    ids = [
        fleet.open(count, policy=name, context_limit=1_000, private=private)
        for count, name, private in (
            (700, "usual", False), (600, "mine", True), (90, "mine", False), (30, "usual", True),
        )
    ]
    return fleet, np.concatenate(ids)


def test_functions_of_users_have_their_say(rng):
    (plain, ids), (fleet, _) = fleet_of_users(), fleet_of_users()
    rounds, wanted = rng.arrays.integers(0, 1_000, (6, len(ids))), ["user_rules", "reward", "rules"]
    with fleet.block(ids, given=["context_tokens", "progress"], want=wanted) as block:
        for turn, tokens in enumerate(rounds):
            progress = np.full(len(ids), turn / 10, np.float32)
            told = RoundBatch(context_tokens=tokens, progress=progress)
            expected = plain.step(ids, told, want=wanted)
            block.rounds.context_tokens[:] = tokens
            block.rounds.progress[:] = progress
            block.step()
            for name in (*wanted, "action", "candidates"):
                found = getattr(block.decisions, name)
                assert same_bits(getattr(expected, name), found), name
    assert expected.user_rules.any()
    assert state_of(fleet) == state_of(plain)


def test_a_function_that_fails_is_named_and_nothing_is_stepped():
    fleet, ids = fleet_of_users(max_sessions=5_000)
    with fleet.block(ids, given=["progress", "success"], want=[]) as block:
        block.rounds.progress[:] = 0.5
        block.step()
        block.rounds.progress[900] = 1      # in the middle of a chunk, and not in the first one
        before, uses = state_of(fleet), fleet._memory.last_uses()
        code = block.run(10, len(ids))
        assert code > 0
        assert state_of(fleet) == before
        assert np.array_equal(fleet._memory.last_uses(), uses)
        with pytest.raises(UserCodeError, match="brittle") as raised:
            block.check(code)
        assert "too good" in str(raised.value)
        assert Path(raised.value.filename).name == Path(__file__).name
        block.rounds.success[0] = 9         # what is wrong next is said next
        with pytest.raises(InputError, match=r"success\[0\]"):
            block.step()
        block.step(10, 900)
        block.rounds.success[0] = -1
        block.rounds.progress[900] = 0.5
        block.step()
