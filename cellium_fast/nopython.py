"""Functions of the compiled core for code that Numba compiles: step a fleet, draw, learn.

Each of them can be called from functions under ``@numba.njit``, ``cache=True`` or not, where it
is a call of the core's own machine code, and from Python, where it is the same code. So they give
the same with ``NUMBA_DISABLE_JIT=1``.

>>> from numba import njit
>>> from cellium_fast import nopython
>>> @njit
... def mean_of_draws(key, count):
...     total = 0.0
...     for agent in range(count):
...         total += nopython.uniform(key, agent, 1, 0)
...     return total / count
>>> round(mean_of_draws(7, 10_000), 2)
0.5

Inside compiled code, an argument of a wrong type is a ``numba.TypingError`` that names it; whole
numbers are cut to the bits that a parameter has. Nothing else is checked, unless said otherwise.
From Python, an argument that makes no sense is an `InputError`.

Importing this module imports Numba, and makes the functions known to it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import binding  # type: ignore[import-untyped]
from numba import types
from numba.core.errors import TypingError
from numba.extending import overload
from numpy.typing import NDArray

from cellium_fast import _nopython, checks

__all__ = [
    "ema", "nstep_return", "repetition_score", "sample_beta", "step", "step_session", "uniform",
]

ADDRESSES = _nopython.addresses()
KEYS = 2**64 - 1
ROUNDS = 2**32 - 1
DRAWS = 2**24 - 1
WORDS: Any = types.CPointer(types.uint64)  # type: ignore[no-untyped-call]
REALS: Any = types.CPointer(types.float64)  # type: ignore[no-untyped-call]
OF_C: dict[Any, Any] = {
    types.int32: ctypes.c_int, types.int64: ctypes.c_int64, types.uint32: ctypes.c_uint32,
    types.uint64: ctypes.c_uint64, types.float64: ctypes.c_double, WORDS: ctypes.c_void_p,
    REALS: ctypes.c_void_p,
}


def _core(name: str, result: Any, *parameters: Any) -> tuple[Any, Callable[..., Any]]:
    """A function of the core as compiled code calls it, and as Python does.

    Numba keeps the symbol in its cache, and looks it up when it loads what it kept.
    """
    symbol = f"cellium_fast_{name}"
    binding.add_symbol(symbol, ADDRESSES[name])
    kind = ctypes.CFUNCTYPE(OF_C[result], *(OF_C[one] for one in parameters))
    return types.ExternalFunction(symbol, result(*parameters)), kind(ADDRESSES[name])


_compiled_step, _called_step = _core(
    "step", types.int32, types.uint64, types.int64, types.int64
)
_compiled_uniform, _called_uniform = _core(
    "uniform", types.float64, types.uint64, types.uint64, types.uint32, types.uint32
)
_compiled_beta, _called_beta = _core(
    "sample_beta", types.float64, types.float64, types.float64, types.uint64, types.uint64,
    types.uint32, types.uint32,
)
_compiled_ema, _called_ema = _core(
    "ema", types.float64, types.float64, types.float64, types.float64
)
_compiled_score, _called_score = _core("repetition_score", types.float64, WORDS, types.int64)
_compiled_return, _called_return = _core(
    "nstep_return", types.float64, REALS, types.int64, types.float64
)


# --- stepping ------------------------------------------------------------------------------------
def step(block: int, start: int, stop: int) -> int:
    """One round of each session in the rows [start, stop) of a block, as `Block.step`.

    Parameters
    ----------
    block
        ``block.address`` of a `Block` that exists; of one that is not open, nothing is stepped.
        Any other number may end the process.
    start, stop
        Rows; 0 and ``len(block)`` are all of them.

    Returns
    -------
    0; or a code of what is wrong with the block, the rows or a column: then nothing was stepped,
    and ``block.check(code)`` raises what it means.

    Examples
    --------
    >>> import numpy as np
    >>> from numba import njit
    >>> from cellium_fast import Fleet, nopython
    >>> @njit
    ... def rounds_until_compressed(block, rounds, decisions, growth):
    ...     for turn in range(1, 1000):
    ...         for row in range(len(decisions.action)):
    ...             rounds.context_tokens[row] = growth * turn
    ...         if nopython.step(block, 0, len(decisions.action)) != 0:
    ...             return -1
    ...         if decisions.action[0] == 3:
    ...             return turn
    ...     return 0
    >>> fleet = Fleet(seed=7)
    >>> with fleet.block(fleet.open(1, context_limit=100_000), want=[]) as block:
    ...     rounds_until_compressed(block.address, block.rounds, block.decisions, 10_000)
    9
    """
    return int(_called_step(
        checks.whole_number("block", block, 1, KEYS), _row("start", start), _row("stop", stop)
    ))


def step_session(block: int, row: int) -> int:
    """One round of the session in one row of a block; otherwise as `step`."""
    row = _row("row", row)
    return int(_called_step(checks.whole_number("block", block, 1, KEYS), row, row + 1))


@overload(step)
def _compile_step(block: Any, start: Any, stop: Any) -> Callable[..., Any]:
    _want_integers("step", block=block, start=start, stop=stop)

    def step(block: Any, start: Any, stop: Any) -> Any:
        return _compiled_step(np.uint64(block), np.int64(start), np.int64(stop))

    return step


@overload(step_session)
def _compile_step_session(block: Any, row: Any) -> Callable[..., Any]:
    _want_integers("step_session", block=block, row=row)

    def step_session(block: Any, row: Any) -> Any:
        return _compiled_step(np.uint64(block), np.int64(row), np.int64(row) + np.int64(1))

    return step_session


# --- random numbers ------------------------------------------------------------------------------
def uniform(key: int, uid: int, round: int, purpose: int) -> float:
    """A random number from [0, 1), a multiple of 2^-53, for an environment.

    It depends on the four numbers and on nothing else, and is independent of what a fleet of the
    same key draws: of the counters of Philox 4x32-10 (Salmon et al., SC'11, section 4.3), those
    of purpose 255 are for this function, see "Bandit" in `docs/semantics.md`.

    Parameters
    ----------
    key
        In [0, 2**64): a seed, such as ``fleet.seed``.
    uid
        In [0, 2**64): which agent, such as ``block.uids[row]``.
    round
        In [0, 2**32).
    purpose
        In [0, 2**24): which draw of that round, a number of your own.
    """
    return float(_called_uniform(*_stream(key, uid, round), _number("purpose", purpose, DRAWS)))


def sample_beta(
    alpha: float, beta: float, key: int, uid: int, round: int, purpose: int
) -> float:
    """A draw from Beta(alpha, beta), as `cellium_fast.kernels.sample_beta` describes it.

    Parameters
    ----------
    alpha, beta
        Finite and > 0; for anything else the draw is NaN.
    key, uid, round
        As in `uniform`.
    purpose
        In [0, 256): the arm's code for the draw of a fleet's own session. For draws of your own
        there are 128 to 254, which no fleet uses.
    """
    return float(_called_beta(
        checks.number("alpha", alpha, -np.inf, np.inf),
        checks.number("beta", beta, -np.inf, np.inf),
        *_stream(key, uid, round), _number("purpose", purpose, 255),
    ))


@overload(uniform)
def _compile_uniform(
    key: Any, uid: Any, round: Any, purpose: Any
) -> Callable[..., Any]:
    _want_integers("uniform", key=key, uid=uid, round=round, purpose=purpose)

    def uniform(key: Any, uid: Any, round: Any, purpose: Any) -> Any:
        return _compiled_uniform(
            np.uint64(key), np.uint64(uid), np.uint32(round), np.uint32(purpose)
        )

    return uniform


@overload(sample_beta)
def _compile_sample_beta(
    alpha: Any, beta: Any, key: Any, uid: Any, round: Any,
    purpose: Any,
) -> Callable[..., Any]:
    _want_numbers("sample_beta", alpha=alpha, beta=beta)
    _want_integers("sample_beta", key=key, uid=uid, round=round, purpose=purpose)

    def sample_beta(
        alpha: Any, beta: Any, key: Any, uid: Any, round: Any, purpose: Any
    ) -> Any:
        return _compiled_beta(
            np.float64(alpha), np.float64(beta), np.uint64(key), np.uint64(uid), np.uint32(round),
            np.uint32(purpose),
        )

    return sample_beta


# --- formulas ------------------------------------------------------------------------------------
def ema(value: float, state: float, alpha: float) -> float:
    """Exponential moving average, one update: alpha * value + (1 - alpha) * state."""
    value, state, alpha = (
        checks.number(name, given, -np.inf, np.inf)
        for name, given in (("value", value), ("state", state), ("alpha", alpha))
    )
    return float(_called_ema(value, state, alpha))


def repetition_score(signatures: NDArray[np.uint64]) -> float:
    """Repetition score of calls, (k,) uint64, the newest last: 0 below a run of three, 1 from six.

    As a row of `cellium_fast.kernels.repetition_score`, which has the formula; 0 for no calls.
    """
    signatures = checks.array("signatures", signatures, np.uint64, (None,))
    return float(_called_score(signatures.ctypes.data, len(signatures)))


def nstep_return(rewards: NDArray[np.float64], gamma: float) -> float:
    """n-step return of n rewards, (n,) float64, the oldest first: their weighted mean.

    The k-th one weighs gamma^k, gamma in [0, 1], as in `cellium_fast.kernels.nstep_returns`. Of no
    rewards: NaN.
    """
    rewards = checks.array("rewards", rewards, np.float64, (None,))
    gamma = checks.number("gamma", gamma, 0, 1)
    return float(_called_return(rewards.ctypes.data, len(rewards), gamma))


@overload(ema)
def _compile_ema(value: Any, state: Any, alpha: Any) -> Callable[..., Any]:
    _want_numbers("ema", value=value, state=state, alpha=alpha)

    def ema(value: Any, state: Any, alpha: Any) -> Any:
        return _compiled_ema(np.float64(value), np.float64(state), np.float64(alpha))

    return ema


@overload(repetition_score)
def _compile_repetition_score(signatures: Any) -> Callable[..., Any]:
    _want_row("repetition_score", "signatures", signatures, types.uint64)

    def repetition_score(signatures: Any) -> Any:
        row = np.ascontiguousarray(signatures)
        return _compiled_score(row.ctypes, len(row))

    return repetition_score


@overload(nstep_return)
def _compile_nstep_return(rewards: Any, gamma: Any) -> Callable[..., Any]:
    _want_row("nstep_return", "rewards", rewards, types.float64)
    _want_numbers("nstep_return", gamma=gamma)

    def nstep_return(rewards: Any, gamma: Any) -> Any:
        row = np.ascontiguousarray(rewards)
        return _compiled_return(row.ctypes, len(row), np.float64(gamma))

    return nstep_return


# --- arguments -----------------------------------------------------------------------------------
def _number(name: str, value: int, most: int) -> int:
    return checks.whole_number(name, value, 0, most)


def _row(name: str, value: int) -> int:
    return checks.whole_number(name, value, -(2**62), 2**62)     # the step says what is wrong


def _stream(key: int, uid: int, round: int) -> tuple[int, int, int]:
    return _number("key", key, KEYS), _number("uid", uid, KEYS), _number("round", round, ROUNDS)


def _want_integers(function: str, **given: types.Type) -> None:
    for name, kind in given.items():
        if not isinstance(kind, types.Integer):
            raise TypingError(f"{function}: {name}: wanted an integer, got {kind}")


def _want_numbers(function: str, **given: types.Type) -> None:
    for name, kind in given.items():
        if not isinstance(kind, types.Integer | types.Float):
            raise TypingError(f"{function}: {name}: wanted a number, got {kind}")


def _want_row(function: str, name: str, kind: types.Type, dtype: types.Type) -> None:
    if not isinstance(kind, types.Array) or kind.ndim != 1 or kind.dtype != dtype:
        raise TypingError(f"{function}: {name}: wanted an array of {dtype}, 1d, got {kind}")
