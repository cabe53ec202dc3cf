"""B69: what a session decides does not depend on threads, batches, their order, or the run."""

import numpy as np
import pytest
from conftest import COLUMNS, Seeded, same_bits, take
from random_agents import crowd

from cellium_fast import Fleet, Policy, pipeline

SESSIONS, ROUNDS, SEED = 1_000, 50, 7
# Decisions of sessions that learn alone; and of such that share a pool which no decision reads.
KINDS = {"private": ("thompson", True), "shared": ("first", False)}


@pytest.fixture(scope="module")
def rounds():
    arrays = Seeded(69).arrays
    return [crowd(arrays, SESSIONS) for _ in range(ROUNDS)]


def traces(rounds, kind, threads=1, size=SESSIONS, shuffled=False):
    """All decisions, each round in the order of opening; the records at the end; the pool."""
    tie_break, private = KINDS[kind]
    policies = {"only": Policy.preset("default", tie_break=tie_break)}
    fleet = Fleet(seed=SEED, policies=policies, threads=threads)
    ids = fleet.open(SESSIONS, context_limit=100_000, round_limit=80, private=private)
    arrays, decided = np.random.default_rng(size), []
    for given in rounds:
        order = arrays.permutation(SESSIONS) if shuffled else np.arange(SESSIONS)
        found = {}
        for first in range(0, SESSIONS, size):
            part = order[first : first + size]
            decisions = fleet.step(ids[part], take(given, part))
            for name in COLUMNS:
                column = getattr(decisions, name)
                room = np.empty((SESSIONS, *column.shape[1:]), column.dtype)
                whole = found.setdefault(name, room)
                whole[part] = column
        decided.append(found)
    return decided, fleet._memory.sessions[:SESSIONS].copy(), fleet.posterior()


@pytest.fixture(scope="module")
def expected(rounds):
    return {kind: traces(rounds, kind) for kind in KINDS}


def assert_same(found, expected):
    for t, (one, other) in enumerate(zip(found[0], expected[0], strict=True), 1):
        for name in COLUMNS:
            assert same_bits(one[name], other[name]), (t, name)
    assert same_bits(found[1], expected[1])
    for name, value in found[2].items():
        assert np.array_equal(value, expected[2][name]), name


def test_there_is_something_to_compare(expected):
    for decided, records, posterior in expected.values():
        ties = sum(int(found["tiebreak"].sum()) for found in decided)
        assert ties > 1_000
        assert records["updates"].sum() + posterior["updates"].sum() > 1_000
        assert len(np.unique(np.concatenate([found["action"] for found in decided]))) == 5


@pytest.mark.parametrize("kind", KINDS)
def test_run_twice(rounds, expected, kind):
    assert_same(traces(rounds, kind), expected[kind])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("threads", [1, 2, 8])
@pytest.mark.parametrize("size", [64, 1_000])
def test_threads_and_batches(rounds, expected, kind, shuffled, threads, size, monkeypatch):
    # Batches as small as these would be stepped by one thread.
    monkeypatch.setattr(pipeline, "CHUNK", 8)
    monkeypatch.setattr(pipeline, "SPAN", 1)
    assert pipeline.span_count(size, threads) == threads
    assert_same(traces(rounds, kind, threads, size, shuffled), expected[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_batches_of_one(rounds, expected, kind):
    # Which are stepped by one thread, however many there may be.
    assert pipeline.span_count(1, 8) == 1
    few = rounds[:10]
    found = traces(few, kind, size=1, shuffled=True)
    assert_same(found, traces(few, kind))
    for one, other in zip(found[0], expected[kind][0], strict=False):
        assert same_bits(one["action"], other["action"])


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("threads", [1, 2, 8])
def test_batches_of_one_in_all_rounds(rounds, expected, kind, threads):
    found = traces(rounds, kind, threads=threads, size=1, shuffled=True)
    assert_same(found, expected[kind])


def test_another_seed_is_seen(rounds, expected, monkeypatch):
    monkeypatch.setitem(globals(), "SEED", 8)
    with pytest.raises(AssertionError, match=r"draws|action"):
        assert_same(traces(rounds, "private"), expected["private"])
