"""The kernels for users' own arrays: hand values, `out`, read-only input, and every guard."""

import math
import tracemalloc

import numpy as np
import pytest
import reference

from cellium_fast import InputError, kernels

F, U64, U32, U8 = np.float64, np.uint64, np.uint32, np.uint8


def floats(*values):
    return np.array(values, F)


def posterior(rows=2):
    return np.full((rows, 5), 2.0)


def tie():
    """Sound arguments of `propensity`."""
    return {
        "alpha": posterior(),
        "beta": posterior(),
        "candidates": np.array([31, 6], U8),
        "bias": np.zeros((2, 5)),
    }


def arguments(**changes):
    """Sound arguments of `thompson`, with some changed."""
    sound = {
        **tie(),
        "key": 7,
        "ids": np.array([1, 2], U64),
        "round": 3,
    }
    return {**sound, **changes}


# --- Values --------------------------------------------------------------------------------------
def test_ema():
    assert kernels.ema([1.0, 0.0, 2.0], [0.0, 1.0, 2.0], 0.25).tolist() == [0.25, 0.75, 2.0]
    found = kernels.ema(floats(1, 1), floats(0, 0), floats(0, 1))
    assert found.tolist() == [0.0, 1.0]
    assert kernels.ema(floats(), floats(), 0.5).shape == (0,)


@pytest.mark.parametrize(
    ("row", "score"),
    [
        ([], 0.0),
        ([1], 0.0),
        ([7, 7], 0.0),
        ([7, 7, 7], 0.25),
        ([1, 7, 7, 7, 7, 2], 0.5),
        ([7] * 20, 1.0),
        ([7] * 6 + list(range(1, 7)), 0.5),  # the last ten: four are left
        ([0, 0, 0], 0.25),  # zero is a signature too
    ],
)
def test_repetition_score(row, score):
    assert kernels.repetition_score(np.array([row], U64)).tolist() == [score]


def test_repetition_score_of_rows_with_lengths(rng):
    rows = np.array([[rng.randrange(2) for _ in range(14)] for _ in range(300)], U64)
    lengths = [rng.randrange(15) for _ in range(300)]
    found = kernels.repetition_score(rows, lengths)
    policy = reference.policy("cellium")
    for row, length, score in zip(rows.tolist(), lengths, found, strict=True):
        calls = [{"signature": value, "tool": 0} for value in row[:length]][-10:]
        assert score == reference.repetition_score(calls, policy), (row, length)


def test_sample_beta_broadcasts():
    alpha, beta = np.array([[0.5], [3.0]]), np.array([1.0, 2.0, 30.0])
    drawn = kernels.sample_beta(alpha, beta, 7, 100)
    assert drawn.shape == (2, 3)
    for place, (row, column) in enumerate(np.ndindex(2, 3)):
        one = kernels.sample_beta(alpha[row, 0], beta[column], 7, 100 + place)
        assert isinstance(one, float)
        assert one == drawn[row, column]
    assert kernels.sample_beta(2, 2, 7) == kernels.sample_beta(2.0, 2.0, 7)


def test_the_counter_wraps_around():
    top = 2**64 - 1
    drawn = kernels.sample_beta([2.0, 2.0], 2.0, top, top)
    assert drawn[1] == kernels.sample_beta(2.0, 2.0, top, 0)


def test_thompson_takes_a_round_for_all_or_one_each():
    alike = kernels.thompson(**arguments(round=np.array([3, 3], U32)))
    assert alike.tolist() == kernels.thompson(**arguments()).tolist()
    many = np.arange(200, dtype=U32)
    rows = {
        "alpha": posterior(200), "beta": posterior(200), "candidates": np.full(200, 31, U8),
        "bias": np.zeros((200, 5)), "ids": np.zeros(200, U64),
    }  # fmt: skip
    assert len(set(kernels.thompson(**arguments(**rows, round=many)).tolist())) == 5
    assert len(set(kernels.thompson(**arguments(**rows)).tolist())) == 1, "one id, one round"


def test_thompson_adds_the_bias():
    bias = np.zeros((2, 5))
    bias[0, 4] = bias[1, 2] = 2.0
    assert kernels.thompson(**arguments(bias=bias)).tolist() == [4, 2]


@pytest.mark.parametrize(
    ("rewards", "n", "gamma", "expected"),
    [
        ([0.0, 1.0, 1.0], 3, 1.0, [2 / 3, 1, 1]),
        ([1.0, 0.0, 0.5], 2, 0.5, [2 / 3, 0.5 * 0.5 / 1.5, 0.5]),
        ([0.25], 4, 1.0, [0.25]),
        ([5.0, -1.0], 1, 1.0, [5, -1]),
        ([], 2, 1.0, []),
    ],
)
def test_nstep_returns(rewards, n, gamma, expected):
    found = kernels.nstep_returns(np.array([rewards], F).reshape(1, -1), n, gamma)
    assert found[0] == pytest.approx(expected)


def test_nstep_returns_end_with_their_row(rng):
    rewards = rng.arrays.random((50, 7))
    lengths = [rng.randrange(8) for _ in range(50)]
    padded = rewards.copy()
    for row, length in zip(padded, lengths, strict=True):
        row[length:] = np.nan
    found = kernels.nstep_returns(padded, 3, 0.8, lengths)
    for i, length in enumerate(lengths):
        assert np.isnan(found[i, length:]).all()
        given = rewards[i, :length].tolist()
        expected = [reference.nstep_return(given[t:], 3, 0.8) for t in range(length)]
        assert found[i, :length] == pytest.approx(expected)


def test_decay():
    alpha, beta = kernels.decay([12.0, 3.0], [2.0, 4.0], 0.5, (2.0, 0.0 + 1.0), [1, 2])
    assert alpha.tolist() == [7.0, 2.25]
    assert beta.tolist() == [1.5, 1.75]
    alpha, beta = kernels.decay(np.full((2, 2), 9.0), 5.0, 0.9, 2.0, 0)
    assert alpha.tolist() == [[9.0, 9.0], [9.0, 9.0]]
    assert beta.shape == (2, 2)


# --- out, read-only input, layout ----------------------------------------------------------------
# A call of each kernel by its array arguments, and the shape and type of its output.
CALLS = {
    "ema": (
        kernels.ema,
        {"values": floats(1, 2), "state": floats(3, 4), "alpha": floats(0.5, 0.25)}, (2,), F,
    ),
    "repetition_score": (
        kernels.repetition_score,
        {"signatures": np.array([[1, 1, 1], [2, 1, 1]], U64), "lengths": np.array([3, 2])},
        (2,), F,
    ),
    "sample_beta": (
        kernels.sample_beta,
        {"alpha": floats(1, 2), "beta": floats(3, 4), "key": 1}, (2,), F,
    ),
    "thompson": (kernels.thompson, arguments(round=np.array([3, 4], U32)), (2,), U8),
    "propensity": (kernels.propensity, tie(), (2, 5), F),
    "nstep_returns": (
        kernels.nstep_returns,
        {"rewards": np.array([[1.0, 0.5], [0.0, 0.25]]), "n": 2, "lengths": np.array([2, 1])},
        (2, 2), F,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_out_is_filled_and_returned(name):
    kernel, given, shape, dtype = CALLS[name]
    out = np.full(shape, 9, dtype)
    found = kernel(**given, out=out)
    assert found is out
    assert np.array_equal(found, kernel(**given), equal_nan=True)
    assert not np.shares_memory(kernel(**given), kernel(**given))


@pytest.mark.parametrize("name", CALLS)
def test_input_may_be_read_only_and_of_any_layout(name):
    kernel, given, _, _ = CALLS[name]
    expected = kernel(**given)
    locked, strided = {}, {}
    for argument, value in given.items():
        locked[argument] = strided[argument] = value
        if isinstance(value, np.ndarray):
            locked[argument] = value.copy()
            locked[argument].flags.writeable = False
            strided[argument] = np.repeat(value, 2, axis=0)[::2]
            assert np.array_equal(strided[argument], value)
    for others in (locked, strided):
        before = {key: np.copy(value) for key, value in others.items()}
        assert np.array_equal(kernel(**others), expected, equal_nan=True)
        for key, value in others.items():
            assert np.array_equal(value, before[key]), f"{key} was changed"


@pytest.mark.parametrize("name", CALLS)
def test_an_out_that_does_not_fit_is_refused(name):
    kernel, given, shape, dtype = CALLS[name]
    locked = np.zeros(shape, dtype)
    locked.flags.writeable = False
    wrong = [
        np.zeros((*shape[:-1], shape[-1] + 1), dtype),
        np.zeros(shape, np.float32),
        np.zeros((*shape[:-1], 2 * shape[-1]), dtype)[..., ::2],
        locked,
        [0.0] * shape[0],
    ]
    for out in wrong:
        with pytest.raises(InputError, match=r"^out"):
            kernel(**given, out=out)


def test_ema_in_place():
    state = floats(0, 1)
    assert kernels.ema(floats(1, 0), state, 0.25, out=state) is state
    assert state.tolist() == [0.25, 0.75]


def test_decay_in_place_and_into_out():
    alpha, beta = floats(12, 3), floats(2, 4)
    found = kernels.decay(alpha, beta, 0.5, 2.0, out=(alpha, beta))
    assert found[0] is alpha
    assert found[1] is beta
    assert alpha.tolist() == [7.0, 2.5]
    assert beta.tolist() == [2.0, 3.0]
    for out in (alpha, (alpha,), (alpha, np.zeros(3)), (np.zeros(2, np.float32), beta)):
        with pytest.raises(InputError, match=r"^out"):
            kernels.decay(floats(12, 3), floats(2, 4), 0.5, 2.0, out=out)


def test_decay_leaves_its_input_alone():
    alpha, beta = floats(12, 3), floats(2, 4)
    alpha.flags.writeable = beta.flags.writeable = False
    kernels.decay(alpha, beta, 0.5, 2.0)
    assert (alpha.tolist(), beta.tolist()) == ([12, 3], [2, 4])


def test_out_spares_the_allocation():
    count = 1_000_000
    values, state, alpha, out = (np.full(count, 0.5) for _ in range(4))
    tracemalloc.start()
    kernels.ema(values, state, alpha, out=out)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # The range check makes masks of a byte an element; no column of floats is made.
    assert peak < 8 * count


# --- Guards --------------------------------------------------------------------------------------
NAN, INF = math.nan, math.inf
GUARDS = [
    # kernel, arguments, the argument named in the message
    (kernels.ema, {"values": np.zeros(2, np.float32)}, "values"),
    (kernels.ema, {"values": np.zeros((2, 1))}, "values"),
    (kernels.ema, {"values": ["a", "b"]}, "values"),
    (kernels.ema, {"state": np.zeros(3)}, "state"),
    (kernels.ema, {"state": np.zeros(2, int)}, "state"),
    (kernels.ema, {"alpha": 1.5}, "alpha"),
    (kernels.ema, {"alpha": -0.1}, "alpha"),
    (kernels.ema, {"alpha": NAN}, "alpha"),
    (kernels.ema, {"alpha": floats(0.5, NAN)}, "alpha"),
    (kernels.ema, {"alpha": floats(0.5)}, "alpha"),
    (kernels.ema, {"alpha": "fast"}, "alpha"),
    (kernels.repetition_score, {"signatures": np.zeros((2, 3), np.int64)}, "signatures"),
    (kernels.repetition_score, {"signatures": np.zeros(3, U64)}, "signatures"),
    (kernels.repetition_score, {"lengths": [3]}, "lengths"),
    (kernels.repetition_score, {"lengths": [4, 0]}, "lengths"),
    (kernels.repetition_score, {"lengths": [-1, 0]}, "lengths"),
    (kernels.repetition_score, {"lengths": [1.5, 0]}, "lengths"),
    (kernels.sample_beta, {"alpha": 0.0}, "alpha"),
    (kernels.sample_beta, {"alpha": -1.0}, "alpha"),
    (kernels.sample_beta, {"alpha": floats(1, NAN)}, "alpha"),
    (kernels.sample_beta, {"beta": INF}, "beta"),
    (kernels.sample_beta, {"beta": floats(1, 0)}, "beta"),
    (kernels.sample_beta, {"beta": "b"}, "beta"),
    (kernels.sample_beta, {"beta": 1j}, "beta"),
    (kernels.sample_beta, {"alpha": np.ones(2), "beta": np.ones(3)}, "alpha"),
    (kernels.sample_beta, {"key": -1}, "key"),
    (kernels.sample_beta, {"key": 2**64}, "key"),
    (kernels.sample_beta, {"key": 1.0}, "key"),
    (kernels.sample_beta, {"counter": -1}, "counter"),
    (kernels.sample_beta, {"counter": 2**64}, "counter"),
    (kernels.thompson, {"alpha": np.ones((2, 4))}, "alpha"),
    (kernels.thompson, {"alpha": np.ones((2, 5), np.float32)}, "alpha"),
    (kernels.thompson, {"alpha": np.zeros((2, 5))}, "alpha"),
    (kernels.thompson, {"beta": np.ones((3, 5))}, "beta"),
    (kernels.thompson, {"beta": np.full((2, 5), NAN)}, "beta"),
    (kernels.thompson, {"candidates": np.array([0, 1], U8)}, "candidates"),
    (kernels.thompson, {"candidates": np.array([32, 1], U8)}, "candidates"),
    (kernels.thompson, {"candidates": np.array([1, 1])}, "candidates"),
    (kernels.thompson, {"candidates": np.array([1], U8)}, "candidates"),
    (kernels.thompson, {"bias": np.full((2, 5), NAN)}, "bias"),
    (kernels.thompson, {"bias": np.full((2, 5), INF)}, "bias"),
    (kernels.thompson, {"bias": np.zeros(5)}, "bias"),
    (kernels.thompson, {"key": 2**64}, "key"),
    (kernels.thompson, {"ids": np.array([1, 2])}, "ids"),
    (kernels.thompson, {"ids": np.array([1], U64)}, "ids"),
    (kernels.thompson, {"round": -1}, "round"),
    (kernels.thompson, {"round": 2**32}, "round"),
    (kernels.thompson, {"round": 1.5}, "round"),
    (kernels.thompson, {"round": np.array([1], U32)}, "round"),
    (kernels.propensity, {"alpha": np.zeros((2, 5))}, "alpha"),
    (kernels.propensity, {"beta": np.full((2, 5), INF)}, "beta"),
    (kernels.propensity, {"candidates": np.array([0, 1], U8)}, "candidates"),
    (kernels.propensity, {"bias": np.full((2, 5), NAN)}, "bias"),
    (kernels.propensity, {"bias": np.zeros((2, 4))}, "bias"),
    (kernels.nstep_returns, {"rewards": floats(1, 2)}, "rewards"),
    (kernels.nstep_returns, {"rewards": np.zeros((1, 2), np.float32)}, "rewards"),
    (kernels.nstep_returns, {"rewards": np.array([[1.0, NAN]])}, "rewards"),
    (kernels.nstep_returns, {"rewards": np.array([[INF, 1.0]])}, "rewards"),
    (kernels.nstep_returns, {"n": 0}, "n"),
    (kernels.nstep_returns, {"n": 1.0}, "n"),
    (kernels.nstep_returns, {"gamma": 0.0}, "gamma"),
    (kernels.nstep_returns, {"gamma": 1.1}, "gamma"),
    (kernels.nstep_returns, {"gamma": NAN}, "gamma"),
    (kernels.nstep_returns, {"lengths": [3]}, "lengths"),
    (kernels.nstep_returns, {"lengths": [1, 1]}, "lengths"),
    (kernels.decay, {"alpha": floats(0, 1)}, "alpha"),
    (kernels.decay, {"alpha": "a"}, "alpha"),
    (kernels.decay, {"beta": floats(1, INF)}, "beta"),
    (kernels.decay, {"alpha": np.ones(2), "beta": np.ones(3)}, "alpha"),
    (kernels.decay, {"factor": 0.0}, "factor"),
    (kernels.decay, {"factor": 1.01}, "factor"),
    (kernels.decay, {"factor": NAN}, "factor"),
    (kernels.decay, {"target": 0.0}, "target"),
    (kernels.decay, {"target": NAN}, "target"),
    (kernels.decay, {"target": (1.0, 2.0, 3.0)}, "target"),
    (kernels.decay, {"target": (1.0, -1.0)}, "target"),
    (kernels.decay, {"times": -1}, "times"),
    (kernels.decay, {"times": 1.5}, "times"),
    (kernels.decay, {"times": [1, 2, 3]}, "times"),
]
SOUND = {
    kernels.ema: {"values": floats(1, 2), "state": floats(3, 4), "alpha": 0.5},
    kernels.repetition_score: {"signatures": np.ones((2, 3), U64)},
    kernels.sample_beta: {"alpha": floats(1, 2), "beta": 1.0, "key": 0},
    kernels.thompson: arguments(),
    kernels.propensity: tie(),
    kernels.nstep_returns: {"rewards": np.array([[1.0, 0.5]]), "n": 2},
    kernels.decay: {"alpha": floats(1, 2), "beta": floats(1, 2), "factor": 0.5, "target": 1.0},
}


@pytest.mark.parametrize("kernel", SOUND, ids=lambda kernel: kernel.__name__)
def test_the_arguments_the_guards_start_from_are_sound(kernel):
    kernel(**SOUND[kernel])


@pytest.mark.parametrize(
    ("kernel", "changes", "named"),
    GUARDS,
    ids=[f"{guard[0].__name__}-{guard[2]}-{place}" for place, guard in enumerate(GUARDS)],
)
def test_guard(kernel, changes, named):
    with pytest.raises(InputError, match=rf"\b{named}\b"):
        kernel(**{**SOUND[kernel], **changes})


@pytest.mark.parametrize("bad", [0.0, NAN, INF])
def test_a_refused_call_changes_nothing(bad):
    alpha, beta = floats(12, 3), floats(2, bad)
    out = (floats(9, 9), floats(9, 9))
    with pytest.raises(InputError, match=r"^beta\[1\]"):
        kernels.decay(alpha, beta, 0.5, 2.0, out=out)
    assert (out[0].tolist(), out[1].tolist()) == ([9, 9], [9, 9])
