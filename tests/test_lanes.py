"""Stages 1 and 2 over groups of sessions: every variant has the bits of one session alone."""

from functools import partial

import numpy as np
import pytest
from conftest import TOOL_HASHES, Seeded, fresh_rng, random_policy, same_bits

from cellium_fast import Fleet, Policy, RoundBatch, _features, _records, _rules, pipeline

VARIANTS = _features.variants()
LANES = _features.LANES
POLICIES = ("default", "cellium", "varied", "other")
ROUNDS = 24
COLUMNS = ("action", "candidates", "rules", "reward")
MORE = ("features", "draws", "bias")
CALLS = ("call_tool", "call_signature", "call_result", "call_flags", "call_size")
SESSIONS = ("text", "context_tokens", "progress", "event")
LEFT_OUT = ("call_result", "call_flags", "call_size", "text", "context_tokens", "progress")


def crowd(rng, sessions, unusual):
    """A random round of each session: one call, but for an `unusual` share."""
    arrays = rng.arrays
    counts = np.where(
        arrays.random(sessions) < unusual, arrays.choice([0, 2, 4, 15], sessions), 1
    )
    total = int(counts.sum())
    few = arrays.integers(0, 3, total)
    columns = {
        "call_result": arrays.integers(0, 2, total).astype(np.uint64),
        "call_flags": arrays.choice([0, 0, 0, 1, 2], total).astype(np.uint8),
        "call_size": arrays.choice([0, 10, 500, 2**31, 2**32 - 1], total).astype(np.uint32),
        "text": arrays.integers(0, 3, sessions).astype(np.uint64),
        "context_tokens": arrays.choice([-1, 0, 40_000, 80_000, 96_000, 2**62], sessions),
        "progress": np.where(
            arrays.random(sessions) < unusual, arrays.random(sessions), np.nan
        ).astype(np.float32),
    }
    for name in LEFT_OUT:
        if rng.random() < 0.1:
            del columns[name]
    return RoundBatch(
        call_offsets=np.concatenate([[0], np.cumsum(counts)]),
        call_tool=np.array(TOOL_HASHES, np.uint64)[few],
        call_signature=few.astype(np.uint64),
        event=np.where(
            arrays.random(sessions) < unusual / 4, arrays.integers(0, 3, sessions), 0
        ).astype(np.uint8),
        **columns,
    )  # fmt: skip


@pytest.fixture(scope="module")
def policies():
    rng = Seeded(5)
    return {
        "default": Policy(), "cellium": Policy.preset("cellium"),
        "varied": random_policy(rng, "default", newest_run_only=False, frequent_tools=["search"]),
        "other": random_policy(rng, "cellium", newest_run_only=True),
    }  # fmt: skip


def opened(policies, sizes):
    """A fleet with runs of sessions of one policy, and their ids."""
    fleet = Fleet(seed=3, policies=policies)
    ids = [
        fleet.open(
            size, policy=name, context_limit=100_000, round_limit=ROUNDS - 4 if limited else None,
            private=True,
        )
        for name, size, limited in sizes
    ]  # fmt: skip
    return fleet, np.concatenate(ids)


def run(fleet, ids, rounds, want, piece):
    """What each round decided, by column, stepping `piece` sessions in a call."""
    history = []
    for batch in rounds:
        parts = [
            fleet.step(ids[start : start + piece], take_part(batch, start, piece), want=want)
            for start in range(0, len(ids), piece)
        ]
        history.append({
            name: np.concatenate([getattr(part, name) for part in parts]) for name in want
        })  # fmt: skip
    return history


def take_part(batch, start, piece):
    """The rounds [start, start + piece), without the columns that the batch is without."""
    sessions = np.arange(len(batch.call_offsets) - 1)[start : start + piece]
    calls = slice(batch.call_offsets[start], batch.call_offsets[sessions[-1] + 1])
    columns = {"call_offsets": batch.call_offsets[start : sessions[-1] + 2] - calls.start}
    for name in CALLS + SESSIONS:
        column = getattr(batch, name)
        if column is not None:
            columns[name] = column[calls if name in CALLS else sessions]
    return RoundBatch(**columns)


def shuffled(batch, order):
    """The same rounds, of one call each, in another order."""
    columns = {
        name: getattr(batch, name)[order]
        for name in CALLS + SESSIONS
        if getattr(batch, name) is not None
    }  # fmt: skip
    return RoundBatch(call_offsets=batch.call_offsets, **columns)


def assert_same(expected, found):
    for t, (one, other) in enumerate(zip(expected[0], found[0], strict=True)):
        for name in one:
            assert same_bits(one[name], other[name]), f"round {t + 1}: {name}"
    assert expected[1]._memory.sessions.tobytes() == found[1]._memory.sessions.tobytes()


def by_variant(monkeypatch, variant):
    one = {
        _features.extract: partial(_features.extract_with, variant),
        _rules.evaluate: partial(_rules.evaluate_with, variant),
    }
    assert one.keys() <= set(pipeline.STAGES)
    stages = tuple(one.get(stage, stage) for stage in pipeline.STAGES)
    monkeypatch.setattr(pipeline, "STAGES", stages)


@pytest.fixture(scope="module", params=[0.0, 0.03, 0.6])
def alone(request, policies):
    """Sizes of groups, their rounds, and what each session decides when stepped alone."""
    rng = fresh_rng()
    sizes = [
        (name, size, rng.random() < 0.5)
        for name in POLICIES
        for size in (5 * LANES, rng.randrange(1, 2 * LANES), 1)
    ]
    total = sum(size for _, size, _ in sizes)
    rounds = [crowd(rng, total, request.param) for _ in range(ROUNDS)]
    fleet, ids = opened(policies, sizes)
    return sizes, rounds, (run(fleet, ids, rounds, COLUMNS + MORE, 1), fleet)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("want", [COLUMNS, COLUMNS + MORE], ids=["few", "all"])
def test_a_group_has_the_bits_of_its_sessions_alone(variant, want, alone, policies, monkeypatch):
    sizes, rounds, (history, one_by_one) = alone
    expected = [{name: columns[name] for name in want} for columns in history], one_by_one
    by_variant(monkeypatch, variant)
    for piece in (sum(size for _, size, _ in sizes), LANES + 1):
        fleet, ids = opened(policies, sizes)
        assert_same(expected, (run(fleet, ids, rounds, want, piece), fleet))


@pytest.mark.parametrize("count", [1, LANES - 1, LANES, LANES + 1, 3 * LANES + 2])
def test_any_number_of_sessions(count, policies, rng):
    rounds = [crowd(rng, count, 0.1) for _ in range(ROUNDS)]
    sizes = [("default", count, False)]
    alone, ids = opened(policies, sizes)
    fleet, same_ids = opened(policies, sizes)
    expected = run(alone, ids, rounds, COLUMNS, 1), alone
    assert_same(expected, (run(fleet, same_ids, rounds, COLUMNS, count), fleet))


def test_a_group_in_any_order_of_slots(policies, rng):
    count = 4 * LANES + 3
    sizes = [("default", count, False)]
    fleet, ids = opened(policies, sizes)
    other, _ = opened(policies, sizes)
    for _ in range(ROUNDS):
        batch = crowd(rng, count, 0.0)
        order = rng.arrays.permutation(count)
        expected = fleet.step(ids, batch, want=COLUMNS)
        found = other.step(ids[order], shuffled(batch, order), want=COLUMNS)
        for name in COLUMNS:
            assert same_bits(getattr(expected, name)[order], getattr(found, name))
    assert fleet._memory.sessions.tobytes() == other._memory.sessions.tobytes()


def test_plain_code_is_always_there():
    assert VARIANTS[0] == 0


@pytest.mark.parametrize("variant", [3, 99])
def test_a_variant_that_is_not_there_is_refused(variant):
    assert variant not in VARIANTS
    for stage_with in (_features.extract_with, _rules.evaluate_with):
        with pytest.raises(ValueError, match=f"cannot run variant {variant}"):
            stage_with(variant, _records.Batch(), 0, 0)
