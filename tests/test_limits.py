"""Nothing grows without end: memory, ids, tables; and batches of nothing or of very much work."""

import sys

import numpy as np
import pytest
from conftest import Agent, Pair, call, pack, same_bits

from cellium_fast import Fleet, InputError, Policy, Round, RoundBatch, SessionError, ToolCall
from cellium_fast._memory import LAST_GENERATION
from cellium_fast.names import Names

KINDS = 50      # of rounds: after as many, all tables of known texts are full


def blocks_more(work, times):
    """Blocks of memory that Python holds more after so many times than after the first few."""
    for _ in range(3):
        work()
    before = sys.getallocatedblocks()
    for _ in range(times):
        work()
    return sys.getallocatedblocks() - before


# --- Rounds --------------------------------------------------------------------------------------
def rounds_of_kinds():
    return [
        Round([ToolCall(f"tool {k % 7}", {"n": k}, f"result {k}", error=k % 5 == 0)],
              text=f"text {k}", context_tokens=100 * k)
        for k in range(KINDS)
    ]  # fmt: skip


def check_scalar_rounds(count):
    fleet = Fleet()
    session = fleet.session(context_limit=100_000, tools=["tool 1"])
    record = fleet._memory.sessions.nbytes
    rounds = rounds_of_kinds()

    def work():
        for given in rounds:
            session.step(given)

    assert blocks_more(work, count // KINDS - 3) < 200
    assert session.decision.features.round == count
    assert fleet._memory.sessions.nbytes == record == 64 * 384


def check_batch_rounds(count, sessions=10):
    fleet = Fleet(threads=1)
    ids = fleet.open(sessions, context_limit=100_000)
    record = fleet._memory.sessions.nbytes
    rng = np.random.default_rng(1)
    few = rng.integers(1, 9, (KINDS, sessions)).astype(np.uint64)
    offsets = np.arange(sessions + 1)
    batches = [
        RoundBatch(call_offsets=offsets, call_tool=row, call_signature=row, call_result=row)
        for row in few
    ]

    def work():
        for given in batches:
            fleet.step(ids, given, want=["reward"])

    assert blocks_more(work, count // KINDS - 3) < 200
    assert set(fleet._memory.sessions["round"][:sessions]) == {count}
    assert fleet._memory.sessions.nbytes == record


def test_memory_is_fixed_over_a_hundred_thousand_rounds():
    check_scalar_rounds(100_000)
    check_batch_rounds(20_000)


@pytest.mark.long
def test_memory_is_fixed_over_ten_million_rounds():
    check_scalar_rounds(10_000_000)
    check_batch_rounds(1_000_000)


def test_what_grows_is_seen():
    kept = []
    assert blocks_more(lambda: kept.append(object()), 1_000) > 900


# --- Opening and closing -------------------------------------------------------------------------
def check_opens_in_batches(times, sessions=1_000):
    fleet = Fleet(threads=1)
    seen = []

    def work():
        ids = fleet.open(sessions)
        fleet.close(ids, True)
        seen.append(ids)

    # The arrays of ids kept here are a few blocks each.
    assert blocks_more(work, times - 3) < 10 * times
    assert fleet._memory.used == sessions
    assert len(np.unique(np.concatenate(seen))) == times * sessions
    assert len(fleet._memory.sessions) < 2 * sessions
    assert len(fleet) == 0


def check_opens_one_by_one(times):
    fleet = Fleet()
    given = Round([ToolCall("read", "a", "b")])

    def work():
        with fleet.session("agent", tools=["read"]) as session:
            session.step(given)

    assert blocks_more(work, times - 3) < 200
    assert fleet._memory.used == 1
    assert fleet._memory.sessions["generation"][0] == times
    assert fleet.open(1).tolist() == [times << 32]


def test_a_million_opens_and_closes():
    check_opens_in_batches(1_000)
    check_opens_one_by_one(20_000)


@pytest.mark.long
def test_a_million_opens_and_closes_one_by_one():
    check_opens_one_by_one(1_000_000)


def test_slots_whose_ids_have_run_out_are_given_up_one_by_one():
    fleet = Fleet()
    fleet.close(fleet.open(8))
    fleet._memory.sessions["generation"][:8:2] = LAST_GENERATION - 2
    seen = []
    for _ in range(5):
        ids = fleet.open(8)
        seen += ids.tolist()
        fleet.close(ids)
        with pytest.raises(SessionError, match="closed"):
            fleet.step(ids[:1], RoundBatch())
    assert len(set(seen)) == len(seen)
    assert fleet._memory.used == 12, "four slots were given up and four came new"
    assert np.all(fleet._memory.sessions["generation"] <= LAST_GENERATION)
    assert np.all(np.array(seen) >= 0)


# --- Nothing -------------------------------------------------------------------------------------
@pytest.mark.parametrize("threads", [1, 8])
def test_no_sessions(threads):
    fleet = Fleet(threads=threads)
    ids = fleet.open(0)
    assert (ids.dtype, ids.shape) == (np.int64, (0,))
    for rounds in (RoundBatch(), [], pack([])):
        assert len(fleet.step(ids, rounds)) == 0
    fleet.user_message(ids)
    fleet.compacted(ids)
    fleet.use_policy(ids, "default")
    assert fleet.done(ids).shape == (0,)
    fleet.close(ids)
    fleet.close(ids, np.empty(0, np.int8))
    assert len(fleet) == 0
    assert fleet.posterior()["updates"].sum() == 0


def test_no_rounds():
    fleet = Fleet()
    with fleet.session() as session:
        assert session.decision.features.round == 0
    ids = fleet.open(5)
    fleet.user_message(ids)
    fleet.close(ids, True)
    assert len(fleet) == 0


def test_no_calls():
    pair = Pair({"only": Policy()})
    ids = pair.open(20)
    for _ in range(20):
        pair.step(ids, [{"calls": []}] * 20)
    assert pair.compared == 400


# --- Very much at once ---------------------------------------------------------------------------
MANY = 10_000


@pytest.mark.parametrize("preset", ["default", "cellium"])
def test_ten_thousand_calls_in_a_round_equal_the_reference(preset, rng):
    pair = Pair({"only": Policy.preset(preset)})
    ids = pair.open(3, context_limit=30_000)
    agent = Agent(rng)
    for _ in range(4):
        # All equal; any; and one call among sessions that have many.
        rounds = [
            {"calls": [call(1, result=1)] * MANY}, {"calls": [agent.call() for _ in range(MANY)]},
            {"calls": [call(2, result=2)]},
        ]  # fmt: skip
        pair.step(ids, rounds)
    assert pair.compared == 12
    assert pair.fleet._memory.sessions["calls"][:3].tolist() == [4 * MANY, 4 * MANY, 4]


def test_ten_thousand_calls_as_objects_are_those_of_columns():
    calls = [
        ToolCall(f"tool {k % 9}", {"n": k % 900}, k % 7, error=k % 4 == 0) for k in range(MANY)
    ]
    given = Round(calls, text="enough", context_tokens=5)
    fleets = [Fleet(seed=3) for _ in range(3)]
    session = fleets[0].session()
    ids = [fleet.open(1) for fleet in fleets[1:]]
    for _ in range(3):
        decision = session.step(given)
        of_objects = fleets[1].step(ids[0], [given])
        of_columns = fleets[2].step(ids[1], RoundBatch.from_rounds([given]))
        assert decision.features.error_rate == 0.25
        assert of_objects.action[0] == of_columns.action[0] == decision.action
        assert same_bits(of_objects.features, of_columns.features)
    records = [fleet._memory.sessions[0] for fleet in fleets]
    assert records[0] == records[1] == records[2]
    assert records[0]["calls"] == 3 * MANY


@pytest.mark.long
def test_texts_of_a_hundred_megabytes():
    size = 100_000_000
    fleet = Fleet()
    session = fleet.session()
    words = "one two three " * (size // 14 + 1)
    huge = Round(
        [ToolCall("read", {"path": words[:size]}, words[:size]),
         ToolCall("read", "b", error=words[:size])],
        text=words[:size],
    )  # fmt: skip
    for _ in range(6):
        decision = session.step(huge)
    assert set(fleet._memory.sessions["size"][0].tolist()) == {size}
    assert decision.features.round_repeats == 6
    assert len(decision.explain()) < 2_000
    assert len(decision.prompt) <= 600


# --- Tables --------------------------------------------------------------------------------------
MOST = 2**16


def check_pools(count):
    fleet = Fleet(pools=[f"pool {k}" for k in range(count)])
    last = f"pool {count - 1}"
    ids = fleet.open(1, pool=last)
    fleet.step(ids, RoundBatch())
    fleet.close(ids, True)
    assert fleet._memory.pools["closed"][-1] == 1
    assert fleet._memory.pools["closed"].sum() == 1
    assert fleet.posterior(last)["alpha"].shape == (5,)


def test_more_pools_than_a_byte_can_name():
    check_pools(300)


@pytest.mark.long
def test_as_many_pools_as_a_record_can_name():
    check_pools(MOST)


@pytest.mark.long
def test_as_many_policies_as_a_record_can_name():
    policies = {f"policy {k}": Policy() for k in range(MOST - 1)}
    fleet = Fleet(policies={**policies, "last": Policy.preset("cellium")})
    session = fleet.session(policy="last")
    session.step(Round([ToolCall("read", "a", "b")]))
    assert fleet._memory.sessions["policy"][0] == MOST - 1


@pytest.mark.parametrize("what", ["pools", "policies"])
def test_more_than_a_record_can_name_are_refused(what):
    names = [f"name {k}" for k in range(MOST + 1)]
    given = names if what == "pools" else dict.fromkeys(names, "default")
    with pytest.raises(InputError, match=f"{what}: wanted .*65,536.*, got 65,537"):
        Fleet(**{what: given})


LETTERS = str.maketrans("0123456789", "ghijklmnop")


def check_names(count):
    fleet = Fleet()
    session = fleet.session()
    places = iter(range(10**9))

    def work():
        k = next(places)
        # In letters: numbers are not told apart in errors.
        text = str(k).translate(LETTERS)
        session.step(Round([ToolCall(f"tool {k}", "", f"error {text}", error=True)]))

    # Tables of names and errors, and those that packers know texts by, 10,000 each.
    for _ in range(12_000):
        work()
    assert blocks_more(work, count - 12_000) < 2_000
    assert len(fleet.names._tools) == len(fleet.names._errors) == 10_000
    assert fleet.names.forgotten >= 2 * (count - 10_000)
    assert session.decision.features.recent_tools[0] != 0


def test_names_are_bounded():
    check_names(20_000)
    names = Names(capacity=100)
    for k in range(100_000):
        names.learn({k + 1: f"tool {k}"}, {})
    assert len(names._tools) == 100
    assert names.forgotten == 100_000 - 100


@pytest.mark.long
def test_names_are_bounded_over_a_million_tools():
    check_names(1_000_000)
