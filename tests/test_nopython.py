"""The core's functions under Numba and from Python: the same numbers, and the same as elsewhere."""

import math
import os
import subprocess
import sys

import numpy as np
import pytest
import reference
import reference_random
from numba import njit
from numba.core.errors import TypingError

from cellium_fast import Fleet, InputError, Policy, RoundBatch, kernels, nopython

MANY = 200


# --- both ways to call them ----------------------------------------------------------------------
@njit
def many_uniforms(keys, uids, rounds, purposes):
    return [
        nopython.uniform(keys[i], uids[i], rounds[i], purposes[i]) for i in range(len(keys))
    ]


@njit
def many_betas(alphas, betas, keys, uids, rounds, purposes):
    return [
        nopython.sample_beta(alphas[i], betas[i], keys[i], uids[i], rounds[i], purposes[i])
        for i in range(len(keys))
    ]


@njit
def many_averages(values, states, alphas):
    return [nopython.ema(values[i], states[i], alphas[i]) for i in range(len(values))]


@njit
def many_scores(signatures, lengths):
    return [nopython.repetition_score(signatures[i, : lengths[i]]) for i in range(len(lengths))]


@njit
def many_returns(rewards, lengths, gamma):
    return [nopython.nstep_return(rewards[i, : lengths[i]], gamma) for i in range(len(lengths))]


def both(function, *columns):
    """What a compiled function gives, which is what it gives in Python."""
    compiled = np.array(function(*columns))
    plain = np.array(function.py_func(*columns))
    assert np.array_equal(compiled, plain, equal_nan=True)
    return compiled


def streams(rng, purposes):
    """Columns of keys, session numbers, rounds and purposes."""
    return (
        np.array([rng.getrandbits(64) for _ in range(MANY)], np.uint64),
        np.array([rng.choice([rng.getrandbits(64), 0, 3]) for _ in range(MANY)], np.uint64),
        np.array([rng.choice([rng.getrandbits(32), 1]) for _ in range(MANY)], np.uint32),
        np.array([rng.choice(purposes) for _ in range(MANY)], np.uint32),
    )


# --- the same as the second writing, the kernels and the fleet -----------------------------------
def test_uniform_numbers_are_those_of_the_contract(rng):
    columns = streams(rng, [0, 1, 2**24 - 1, rng.getrandbits(24)])
    found = both(many_uniforms, *columns)
    for key, uid, round, purpose, value in zip(*(one.tolist() for one in columns), found.tolist(),
                                               strict=True):
        bits = reference_random.block_bits(key, uid, round, 255, purpose)
        assert value == (bits >> 75) / 2**53


def test_uniform_numbers_fill_the_unit_interval():
    found = np.array([nopython.uniform(5, uid, 1, 0) for uid in range(4_000)])
    assert 0 <= found.min() < 0.002
    assert 0.998 < found.max() < 1
    assert abs(found.mean() - 0.5) < 5 * math.sqrt(1 / 12 / 4_000)


def test_draws_are_those_of_the_second_writing(rng):
    shapes = [0.01, 0.5, 1.0, 2.0, 30.0, 1e6]
    alphas, betas = (np.array([rng.choice(shapes) for _ in range(MANY)]) for _ in range(2))
    columns = streams(rng, [0, 4, 128, 254])
    found = both(many_betas, alphas, betas, *columns)
    expected = [
        reference_random.beta(*one)
        for one in zip(*(part.tolist() for part in (alphas, betas, *columns)), strict=True)
    ]
    np.testing.assert_allclose(found, expected, rtol=2e-12, atol=1e-300)


def test_draws_are_those_of_the_kernels(rng):
    alphas, betas = rng.arrays.random((2, MANY)) * 5
    key, nothing = rng.getrandbits(64), np.zeros(MANY, np.uint32)
    found = both(
        many_betas, alphas, betas, np.full(MANY, key, np.uint64),
        np.arange(MANY, dtype=np.uint64), nothing, nothing,
    )
    assert np.array_equal(found, kernels.sample_beta(alphas, betas, key))


def test_draws_are_those_of_a_fleet():
    policy = Policy(rules={"progressing": {"actions": [0, 1, 2]}})
    fleet = Fleet(seed=11, policies={"only": policy})
    fleet.close(fleet.open(4))
    ids = fleet.open(50, private=True)
    compared = 0
    for round in range(1, 8):
        posteriors = [fleet.private_posterior(int(one)) for one in ids]
        draws = fleet.step(ids, RoundBatch(progress=np.ones(50, np.float32))).draws
        for place, action in np.argwhere(~np.isnan(draws)):
            before = posteriors[place]
            assert draws[place, action] == nopython.sample_beta(
                before["alpha"][action], before["beta"][action], 11, 4 + place, round, action
            )
            compared += 1
    assert compared >= 300


@pytest.mark.parametrize("shape", [0.0, -1.0, math.nan, math.inf])
def test_a_shape_that_is_none_draws_nothing(shape):
    for shapes in ((shape, 1.0), (1.0, shape)):
        alphas, betas = (np.array([one]) for one in shapes)
        one = np.ones(1, np.uint32)
        if math.isnan(shape):
            assert np.isnan(many_betas(alphas, betas, one, one, one, one)[0])
        else:
            assert np.isnan(both(many_betas, alphas, betas, one, one, one, one)[0])


def test_averages_are_those_of_the_kernels(rng):
    values, states, alphas = rng.arrays.random((3, MANY))
    found = both(many_averages, values, states, alphas)
    assert np.array_equal(found, kernels.ema(values, states, alphas))
    assert np.array_equal(found, alphas * values + (1 - alphas) * states)


def test_scores_are_those_of_the_kernels(rng):
    signatures = rng.arrays.integers(0, 2, (MANY, 13)).astype(np.uint64)
    lengths = rng.arrays.integers(0, 14, MANY)
    found = both(many_scores, signatures, lengths)
    assert np.array_equal(found, kernels.repetition_score(signatures, lengths))
    for row, length, score in zip(signatures.tolist(), lengths, found, strict=True):
        newest, longest, run = row[:length][-10:], 0, 0
        for before, one in zip([None, *newest], newest, strict=False):
            run = run + 1 if one == before else 1
            longest = max(longest, run)
        assert score == (min((longest - 2) / 4, 1) if longest >= 3 else 0)
    assert len(set(found)) == 5


def test_returns_are_those_of_the_kernels(rng):
    rewards, lengths = rng.arrays.random((MANY, 6)), rng.arrays.integers(1, 7, MANY)
    for gamma in (0.3, 0.9, 1):
        found = both(many_returns, rewards, lengths, gamma)
        expected = kernels.nstep_returns(rewards, 6, gamma, lengths=lengths)[:, 0]
        assert np.array_equal(found, expected)
        for row, length, value in zip(rewards.tolist(), lengths, found, strict=True):
            weights = [gamma**k for k in range(length)]
            total = sum(w * r for w, r in zip(weights, row, strict=False))
            assert math.isclose(value, total / sum(weights))
            if gamma == 1:
                assert math.isclose(value, reference.nstep_return(row[:length], 6, gamma))
    assert math.isnan(both(many_returns, rewards[:1], np.zeros(1, int), 0.5)[0])


def test_rows_that_are_not_contiguous():
    columns = np.array([[7, 7, 7, 1], [1, 2, 3, 1]], np.uint64).T

    @njit
    def score(columns, place):
        return nopython.repetition_score(columns[:, place])

    assert score(columns, 0) == nopython.repetition_score(columns[:, 0]) == 0.25
    assert score(np.ascontiguousarray(columns), 1) == 0


# --- stepping ------------------------------------------------------------------------------------
@njit
def play(block, rounds, decisions, key, uids, turns, by_one):
    """A loop in which what an agent does depends on what was decided, and on chance."""
    size = len(decisions.action)
    code = 0
    for turn in range(turns):
        for row in range(size):
            chance = nopython.uniform(key, uids[row], turn, 0)
            stuck = chance < 0.7 and decisions.action[row] != 2
            rounds.call_offsets[row + 1] = row + 1
            rounds.call_tool[row] = 5
            rounds.call_signature[row] = 1 if stuck else 2 + turn
            rounds.context_tokens[row] = 1_000 * (turn + 1)
        if by_one:
            for row in range(size):
                code |= nopython.step_session(block, row)
        else:
            code |= nopython.step(block, 0, size)
    return code


def played_in_python(fleet, ids, turns):
    """The same loop, by `Fleet.step`."""
    size, action = len(ids), np.zeros(len(ids), np.uint8)
    for turn in range(turns):
        chance = np.array([nopython.uniform(fleet.seed, uid, turn, 0) for uid in range(size)])
        stuck = (chance < 0.7) & (action != 2)
        action = fleet.step(ids, RoundBatch(
            call_offsets=np.arange(size + 1), call_tool=np.full(size, 5, np.uint64),
            call_signature=np.where(stuck, 1, 2 + turn).astype(np.uint64),
            context_tokens=np.full(size, 1_000 * (turn + 1)),
        ), want=["rules", "features"]).action
    return action


@pytest.mark.parametrize("by_one", [False, True])
def test_a_loop_under_numba_is_the_loop_by_the_fleet(by_one):
    plain, fleet = Fleet(seed=9), Fleet(seed=9)
    expected = played_in_python(plain, plain.open(700, context_limit=60_000, private=True), 40)
    ids = fleet.open(700, context_limit=60_000, private=True)
    with fleet.block(ids, want=["features", "rules"]) as block:
        given = block.address, block.rounds, block.decisions, np.uint64(9), block.uids
        assert play(*given, 40, by_one) == 0
        assert np.array_equal(block.decisions.action, expected)
    assert len(set(expected.tolist())) >= 3
    left, right = plain._memory.sessions, fleet._memory.sessions
    assert left.tobytes() == right.tobytes()


def test_a_code_comes_back_from_compiled_code():
    @njit
    def step(block, start, stop):
        return nopython.step(block, start, stop), nopython.step_session(block, stop)

    fleet = Fleet()
    with fleet.block(fleet.open(3)) as block:
        block.rounds.success[1] = 5
        address = block.address
        found = step(address, 0, 3)
        assert found == (nopython.step(address, 0, 3), nopython.step_session(address, 3))
        with pytest.raises(InputError, match=r"start, stop: wanted rows"):
            block.check(found[1])
        code = nopython.step(block.address, 0, 3)
        with pytest.raises(InputError, match=r"success\[1\]: wanted 1, 0, or -1 .* got 5"):
            block.check(code)
        assert nopython.step(block.address, 2, 3) == 0
    assert step(block.address, 0, 3)[0] != 0        # not open any more


# --- wrong arguments -----------------------------------------------------------------------------
@pytest.mark.parametrize(("call", "arguments", "message"), [
    (nopython.step, (1.5, 0, 1), "step: block: wanted an integer, got float64"),
    (nopython.step_session, (1, "x"), "step_session: row: wanted an integer"),
    (nopython.uniform, (1, 2, 3, None), "uniform: purpose: wanted an integer, got none"),
    (nopython.sample_beta, ("a", 1.0, 1, 1, 1, 1), "sample_beta: alpha: wanted a number"),
    (nopython.sample_beta, (1.0, 1.0, 1, 1, 1.5, 1), "sample_beta: round: wanted an integer"),
    (nopython.ema, (1, 2, 1j), "ema: alpha: wanted a number, got complex128"),
    (nopython.repetition_score, (np.zeros(3),), "repetition_score: signatures: wanted an array of"),
    (nopython.repetition_score, (np.zeros((3, 3), np.uint64),), "wanted an array of uint64, 1d"),
    (nopython.nstep_return, (np.zeros(3, np.float32), 1), "rewards: wanted an array of float64"),
])
def test_wrong_types_are_named_where_they_are_compiled(call, arguments, message):
    @njit
    def compiled(arguments):
        return call(*arguments)

    with pytest.raises(TypingError, match=message):
        compiled(arguments)
    with pytest.raises(InputError):
        call(*arguments)


@pytest.mark.parametrize(("call", "arguments", "message"), [
    (nopython.uniform, (-1, 0, 0, 0), r"key: wanted a whole number in \[0, 18,446,"),
    (nopython.uniform, (0, 0, 2**32, 0), "round: wanted"),
    (nopython.uniform, (0, 0, 0, 2**24), r"purpose: wanted a whole number in \[0, 16,777,215\]"),
    (nopython.sample_beta, (1, 1, 0, 2**64, 0, 0), "uid: wanted"),
    (nopython.sample_beta, (1, 1, 0, 0, 0, 256), r"purpose: wanted a whole number in \[0, 255\]"),
    (nopython.nstep_return, ([0.5], 1.5), r"gamma: wanted a number in \[0, 1\]"),
    (nopython.step, (0, 0, 1), "block: wanted a whole number"),
])
def test_wrong_values_are_named_in_python(call, arguments, message):
    with pytest.raises(InputError, match=message):
        call(*arguments)


# --- other processes -----------------------------------------------------------------------------
PROGRAM = """
import numpy as np
from numba import njit
from cellium_fast import Fleet, nopython

@njit(cache=True)
def play(block, rounds, decisions, key):
    code = 0
    total = 0.0
    recent = np.zeros(4, np.uint64)
    for turn in range(12):
        for row in range(len(decisions.action)):
            chance = nopython.uniform(key, row, turn, 0)
            rounds.context_tokens[row] = int(chance * 100)
            total += nopython.ema(chance, total, 0.5)
            total += nopython.sample_beta(2.0, 3.0, key, row, turn, 200)
            total += decisions.features["progress_score"][row]
        code |= nopython.step(block, 0, len(decisions.action) - 1)
        code |= nopython.step_session(block, len(decisions.action) - 1)
        total += nopython.repetition_score(recent) + nopython.nstep_return(np.ones(2), 0.5)
    return code, total

fleet = Fleet(seed=4)
with fleet.block(fleet.open(5, context_limit=100)) as block:
    code, total = play(block.address, block.rounds, block.decisions, 4)
    print(code, float(total), block.decisions.action.tolist())
hits = sum(play.stats.cache_hits.values()) if hasattr(play, "stats") else "none"
print("from the cache:", hits)
"""


def run_program(path, **environment):
    done = subprocess.run(
        [sys.executable, "-W", "error", str(path)], capture_output=True, text=True, check=False,
        env={**os.environ, "NUMBA_CACHE_DIR": str(path.parent / "cache"), **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_compiled_code_comes_out_of_the_cache_and_python_gives_the_same(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    first, cached = run_program(path), run_program(path)
    plain = run_program(path, NUMBA_DISABLE_JIT="1")
    assert first[0] == cached[0] == plain[0]
    assert first[0].startswith("0 ")
    assert [first[1][-1], cached[1][-1]] == ["0", "1"]
    assert plain[1] == "from the cache: none"


def test_only_this_module_imports_numba():
    code = (
        "import sys; from cellium_fast import Fleet; f = Fleet()\n"
        "with f.block(f.open(2)) as block: block.step()\n"
        "print('numba' in sys.modules); import cellium_fast.nopython; print('numba' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "True"]
