"""The compiled formulas, for arrays of your own: each is what the fleet itself computes with.

Every function takes ``out=``, an array (or a tuple of arrays) to fill instead of a new one, and
raises `InputError` for a wrong dtype, shape or value. Floats are float64.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cellium_fast import (
    _bandit,
    _features,
    _learning,
    _philox,
    _propensity,
    _records,
    _window,
)
from cellium_fast.checks import all_good, array, as_given, every, number, output, whole_number
from cellium_fast.errors import InputError, shown

Floats = NDArray[np.float64]
ARMS = len(_records.ACTIONS)
KEYS = 2**64 - 1


def ema(
    values: ArrayLike, state: ArrayLike, alpha: ArrayLike, *, out: Floats | None = None
) -> Floats:
    """Exponential moving average, one update: alpha * values + (1 - alpha) * state.

    Parameters
    ----------
    values, state
        (N,) float64.
    alpha
        In [0, 1], one number or (N,).
    out
        (N,) float64; may be `state`.

    Examples
    --------
    >>> ema([1.0, 0.0], [0.0, 1.0], 0.25)
    array([0.25, 0.75])
    """
    values = array("values", values, np.float64, (None,))
    state = array("state", state, np.float64, values.shape)
    alphas = _one_each("alpha", alpha, values.shape)
    every("alpha", (alphas >= 0) & (alphas <= 1), alphas, "a number in [0, 1]")
    out = output("out", out, np.float64, values.shape)
    _features.ema(values, state, alphas, out)
    return out


def repetition_score(
    signatures: NDArray[np.uint64], lengths: ArrayLike | None = None, *, out: Floats | None = None
) -> Floats:
    """Repetition score of call sequences: 0 below a run of three, 1 from a run of six.

    With m the longest run of equal signatures among the last ten calls: min((m - 2) / 4, 1), or 0
    if m < 3. Signatures are compared by 32 bits mixed from them, as in a session's record.

    Parameters
    ----------
    signatures
        (N, k) uint64, newest last.
    lengths
        (N,) calls given in each row, in [0, k]; None: all k.
    out
        (N,) float64 in [0, 1].

    Examples
    --------
    >>> repetition_score(np.array([[1, 7, 7, 7], [1, 2, 3, 4]], np.uint64))
    array([0.25, 0.  ])
    """
    signatures = array("signatures", signatures, np.uint64, (None, None))
    rows, longest = signatures.shape
    counts = _lengths(lengths, rows, longest)
    out = output("out", out, np.float64, (rows,))
    _window.repetition_scores(signatures, counts, out)
    return out


def sample_beta(
    alpha: ArrayLike, beta: ArrayLike, key: int, counter: int = 0, *, out: Floats | None = None
) -> Floats | float:
    """Draws from Beta(alpha, beta); numbers in give a number out.

    Exact in law for shapes in [1e-3, 1e6]; for any other finite positive shape a finite number in
    [0, 1]. The draw at flat position i is a function of `key`, ``counter + i`` and its shapes, and
    of nothing else. Two gamma variates by Marsaglia and Tsang, "A simple method for generating
    gamma variables", ACM TOMS 26(3), 2000; Philox 4x32-10, Salmon et al., SC'11, section 4.3.

    Parameters
    ----------
    alpha, beta
        Finite, > 0, any shapes that broadcast.
    key
        In [0, 2**64): the seed.
    counter
        In [0, 2**64): number of the first draw; it wraps around.
    out
        float64 of the broadcast shape.

    Examples
    --------
    >>> draws = sample_beta([2.0, 50.0], 2.0, key=7)
    >>> draws.shape, sample_beta(2.0, 2.0, key=7) == float(draws[0])
    ((2,), True)
    """
    alphas, betas = _broadcast(alpha=alpha, beta=beta)
    for name, shapes in (("alpha", alphas), ("beta", betas)):
        all_good(name, _philox.first_no_shape(shapes.reshape(-1)), shapes, "a finite number > 0")
    key = whole_number("key", key, 0, KEYS)
    counter = whole_number("counter", counter, 0, KEYS)
    scalar = out is None and alphas.ndim == 0
    out = output("out", out, np.float64, alphas.shape)
    alphas, betas = (
        shapes.copy() if np.may_share_memory(shapes, out) else shapes for shapes in (alphas, betas)
    )
    _philox.sample_beta(alphas.reshape(-1), betas.reshape(-1), key, counter, out.reshape(-1))
    return float(out) if scalar else out


def thompson(
    alpha: Floats, beta: Floats, candidates: NDArray[np.uint8], bias: Floats, key: int,
    ids: NDArray[np.uint64], round: ArrayLike, *, out: NDArray[np.uint8] | None = None,
) -> NDArray[np.uint8]:
    """The action with the highest draw plus bias among each row's candidates.

    Ties go to the earlier of continue, retry, compress, redirect, terminate. Thompson, "On the
    likelihood that one unknown probability exceeds another", Biometrika 25, 1933.

    Parameters
    ----------
    alpha, beta
        (N, 5) float64, finite, > 0: the posterior of each action, by code.
    candidates
        (N,) uint8, masks of actions, none empty.
    bias
        (N, 5) float64, finite.
    key
        In [0, 2**64): the seed.
    ids
        (N,) uint64, what makes the rows' draws differ; a fleet uses the number of the session in
        opening order.
    round
        In [0, 2**32), one number or (N,).
    out
        (N,) uint8, codes of `Action`.

    Examples
    --------
    >>> posterior = np.full((1, 5), 2.0)
    >>> thompson(posterior, posterior, np.array([0b01000], np.uint8), np.zeros((1, 5)), 7,
    ...          np.array([0], np.uint64), 1)
    array([3], dtype=uint8)
    """
    alpha, beta, candidates, bias = _ties(alpha, beta, candidates, bias)
    rows = len(alpha)
    key = whole_number("key", key, 0, KEYS)
    ids = array("ids", ids, np.uint64, (rows,))
    if as_given("round", round).ndim == 0:
        round = np.full(rows, whole_number("round", round, 0, 2**32 - 1), np.uint32)
    rounds = array("round", round, np.uint32, (rows,))
    out = output("out", out, np.uint8, (rows,))
    _bandit.thompson(alpha, beta, candidates, bias, key, ids, rounds, out)
    return out


def propensity(
    alpha: Floats, beta: Floats, candidates: NDArray[np.uint8], bias: Floats,
    *, out: Floats | None = None,
) -> Floats:
    """The probability with which `thompson` chooses each action of each row.

    That is P(draw + bias is the highest among the candidates), the integral of the action's density
    times the distribution functions of all others; by quadrature, with an error below 1e-8 for
    shapes in [1e-3, 1e6]. For any other finite positive shape a number in [0, 1]. A row adds up
    to 1. The law is that of exact draws: near 1, doubles lie 1e-16 apart, so draws for a shape
    `beta` below 0.3 are rounded to 1 with a probability of about 1e-16 ** `beta`, and of equal
    scores the milder action wins; near the lowest score it is the same with `alpha`. Thompson, "On
    the likelihood that one unknown probability exceeds another", Biometrika 25, 1933.

    Parameters
    ----------
    alpha, beta
        (N, 5) float64, finite, > 0: the posterior of each action, by code.
    candidates
        (N,) uint8, masks of actions, none empty.
    bias
        (N, 5) float64, finite.
    out
        (N, 5) float64 in [0, 1]; 0 for actions that are not among the candidates.

    Examples
    --------
    P(Beta(3, 1) > Beta(1, 1)) is 3/4:

    >>> alpha, beta = np.array([[3.0, 1, 1, 1, 1]]), np.ones((1, 5))
    >>> propensity(alpha, beta, np.array([0b00011], np.uint8), np.zeros((1, 5))).round(6)
    array([[0.75, 0.25, 0.  , 0.  , 0.  ]])
    """
    alpha, beta, candidates, bias = _ties(alpha, beta, candidates, bias)
    out = output("out", out, np.float64, alpha.shape)
    alpha, beta, bias = (
        given.copy() if np.may_share_memory(given, out) else given
        for given in (alpha, beta, bias)
    )
    _propensity.win_probabilities(alpha, beta, candidates, bias, out)
    return out


def nstep_returns(
    rewards: Floats, n: int, gamma: float = 1.0, lengths: ArrayLike | None = None,
    *, out: Floats | None = None,
) -> Floats:
    """Normalised n-step return of each step: sum(gamma^k r[t+k]) / sum(gamma^k), k < n.

    Near the end of a row the return is over the rewards that exist. Sutton and Barto,
    "Reinforcement Learning", 2nd ed., section 7.1 (there without the normalisation).

    Parameters
    ----------
    rewards
        (N, T) float64, finite; rewards[i, t] is what step t of row i led to.
    n
        Rewards looked at, >= 1.
    gamma
        In (0, 1].
    lengths
        (N,) rewards given in each row, in [0, T]; None: all T.
    out
        (N, T) float64; NaN beyond a row's length.

    Examples
    --------
    >>> nstep_returns([[0.0, 1.0, 1.0]], 3)
    array([[0.66666667, 1.        , 1.        ]])
    """
    rewards = array("rewards", rewards, np.float64, (None, None))
    rows, steps = rewards.shape
    n = whole_number("n", n, 1, 2**31 - 1)
    gamma = number("gamma", gamma, 0, 1)
    if gamma == 0:
        raise InputError("gamma: wanted a number in (0, 1], got 0")
    counts = _lengths(lengths, rows, steps)
    given = np.arange(steps) < counts[:, None]
    every("rewards", (np.isfinite(rewards) | ~given).ravel(), rewards, "a finite number")
    out = output("out", out, np.float64, (rows, steps))
    _learning.nstep_returns(rewards, n, gamma, counts, out)
    out[~given] = np.nan
    return out


def decay(
    alpha: ArrayLike, beta: ArrayLike, factor: float, target: float | tuple[float, float],
    times: ArrayLike = 1, *, out: tuple[Floats, Floats] | None = None,
) -> tuple[Floats, Floats]:
    """Move posteriors towards `target`: target + factor * (value - target), `times` times.

    Parameters
    ----------
    alpha, beta
        float64, finite, > 0, shapes that broadcast.
    factor
        In (0, 1]; 1 leaves all as it is.
    target
        > 0; one number for both, or one for alpha and one for beta.
    times
        >= 0, one number or int64 of the broadcast shape.
    out
        Two float64 arrays of the broadcast shape; they may be `alpha` and `beta`.

    Examples
    --------
    >>> decay([12.0], [2.0], 0.5, 2.0)
    (array([7.]), array([2.]))
    """
    alphas, betas = _broadcast(alpha=alpha, beta=beta)
    factor = number("factor", factor, 0, 1)
    if factor == 0:
        raise InputError("factor: wanted a number in (0, 1], got 0")
    targets = target if isinstance(target, tuple) else (target, target)
    if len(targets) != 2:
        raise InputError(f"target: wanted one number or two, got {shown(target)}")
    if as_given("times", times).ndim == 0:
        times = np.full(alphas.shape, whole_number("times", times, 0, 2**63 - 1), np.int64)
    counts = array("times", times, np.int64, alphas.shape).reshape(-1)
    every("times", counts >= 0, counts, "a whole number >= 0")
    wanted = out if out is not None else (None, None)
    if not isinstance(wanted, tuple) or len(wanted) != 2:
        raise InputError(f"out: wanted two arrays, got {type(out).__name__}")
    results = []
    for name, values, place, goal in zip(
        ("alpha", "beta"), (alphas.copy(), betas.copy()), wanted, targets, strict=True
    ):
        every(name, np.isfinite(values) & (values > 0), values, "a finite number > 0")
        goals = np.full(values.size, number("target", goal, np.nextafter(0, 1), 1e300))
        filled = output("out", place, np.float64, values.shape)
        results.append((filled, values, goals))
    for filled, values, goals in results:
        filled[...] = values
        _learning.decay(filled.reshape(-1), factor, goals, counts)
    return results[0][0], results[1][0]


def _ties(
    alpha: Floats, beta: Floats, candidates: NDArray[np.uint8], bias: Floats
) -> tuple[Floats, Floats, NDArray[np.uint8], Floats]:
    alpha = array("alpha", alpha, np.float64, (None, ARMS))
    rows = len(alpha)
    beta = array("beta", beta, np.float64, (rows, ARMS))
    for name, shapes in (("alpha", alpha), ("beta", beta)):
        every(name, (np.isfinite(shapes) & (shapes > 0)).ravel(), shapes, "a finite number > 0")
    candidates = array("candidates", candidates, np.uint8, (rows,))
    every("candidates", (candidates > 0) & (candidates < 1 << ARMS), candidates, "a mask in 1..31")
    bias = array("bias", bias, np.float64, (rows, ARMS))
    every("bias", np.isfinite(bias).ravel(), bias, "a finite number")
    return alpha, beta, candidates, bias


def _one_each(name: str, value: ArrayLike, shape: tuple[int, ...]) -> Floats:
    if as_given(name, value).ndim == 0:
        value = np.full(shape, number(name, value, -np.inf, np.inf))
    return array(name, value, np.float64, shape)


def _lengths(lengths: ArrayLike | None, rows: int, longest: int) -> NDArray[np.int64]:
    if lengths is None:
        return np.full(rows, longest, np.int64)
    counts = array("lengths", lengths, np.int64, (rows,))
    every("lengths", (counts >= 0) & (counts <= longest), counts, f"a number in [0, {longest}]")
    return counts


def _broadcast(**arguments: ArrayLike) -> tuple[Floats, ...]:
    """As C-contiguous float64 arrays of one shape; those that are so already are not copied."""
    given: dict[str, NDArray[Any]] = {}
    for name, value in arguments.items():
        given[name] = as_given(name, value)
        if given[name].dtype.kind not in "fiu":
            raise InputError(f"{name}: wanted float64 values, got {given[name].dtype}")
    together: Iterable[NDArray[Any]] = given.values()
    try:
        if len({value.shape for value in together}) > 1:
            together = np.broadcast_arrays(*together)
    except ValueError:
        shapes = " and ".join(f"{name} {value.shape}" for name, value in given.items())
        raise InputError(f"wanted shapes that broadcast, got {shapes}") from None
    return tuple(np.asarray(values, np.float64, order="C") for values in together)
