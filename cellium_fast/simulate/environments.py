"""Environments: what an agent does next, as a Numba function over packed records.

An environment is a function ``play(agent, action, random, round)``: it moves one agent on by one
round, after the agent was told an action, and fills in that round. The agent is a record of a
dtype of the environment's own. `@environment` makes one:

>>> import numpy as np
>>> from cellium_fast.simulate import FAILED, RUNNING, SUCCEEDED, environment, simulate
>>> AGENT = np.dtype([("state", np.uint8), ("left", np.int64)])
>>> def begin(agent, random):
...     agent.left = 3 + int(10 * random[0])
>>> @environment(agent=AGENT, states=("walking", "lost"), begin=begin)
... def walk(agent, action, random, round):
...     if agent.state == 1 and action == 2:        # lost, and told to take another way
...         agent.state = 0
...     elif agent.state == 0 and random[0] < 0.1:
...         agent.state = 1
...     agent.left -= agent.state == 0
...     round.calls = 1
...     round.tool = 1
...     round.signature = agent.left                # lost: the same call again and again,
...     round.result = agent.left                   # with the same result
...     return SUCCEEDED if agent.left == 0 else RUNNING
>>> result = simulate(200, 30, environment=walk, seed=1)
>>> result["default"].success > result["none"].success
True
"""

from __future__ import annotations

import marshal
import types
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from cellium_fast.compiled_code import digest_of
from cellium_fast.errors import InputError, shown
from cellium_fast.simulate.compiled import OPTIONS, compiled

# What `play` returns: how things stand after the round.
RUNNING = 0
SUCCEEDED = 1
FAILED = 2

# A round as `play` fills it in. Integers are 64 bits, so that arithmetic is the same as Python's.
ROUND = np.dtype([
    ("calls", np.int64),        # tool calls, 0 or 1
    ("tool", np.int64),         # of the call, as the columns of `RoundBatch`
    ("signature", np.int64),
    ("result", np.int64),
    ("flags", np.int64),
    ("size", np.int64),
    ("text", np.int64),         # hash of the model's text, 0 = none
    ("tokens", np.int64),       # in the context after the round, negative = not told
])

Function = Callable[..., Any]


@dataclass(frozen=True)
class Environment:
    """What agents do; made by `@environment`.

    Attributes
    ----------
    play
        The Python function.
    begin
        Fills in an agent before its first round: ``begin(agent, random)``.
    agent
        dtype of an agent, with the integer field ``state``.
    states
        Names of the hidden states, by the value of ``state``.
    draws
        Random numbers a round.
    context_limit
        Tokens, for the sessions of the agents; None: unknown.
    parameters
        (1,) structured array, or None: a record that `play` and `begin` get as last argument.
    """

    play: Function
    begin: Function
    agent: np.dtype[Any]
    states: tuple[str, ...]
    draws: int = 4
    context_limit: int | None = None
    parameters: NDArray[Any] | None = field(default=None, repr=False)

    def with_parameters(self, parameters: NDArray[Any]) -> Environment:
        """The same environment with other parameters; nothing is compiled anew."""
        other = replace(self, parameters=parameters)
        other.__dict__["kernels"] = self.kernels
        return other

    def arguments(self) -> tuple[Any, ...]:
        """What `play` and `begin` get beside the rest: the record of parameters, if any."""
        if self.parameters is None:
            return ()
        record = self.parameters[0]
        plain = numba.config.DISABLE_JIT        # type: ignore[attr-defined]
        return (_PlainRecord(record) if plain else record,)

    @cached_property
    def kernels(self) -> Kernels:
        """The loops over agents, compiled for this environment when they first run."""
        return Kernels(
            begin=_loop_of(_begin_agents, self.begin, self.draws),
            play=_loop_of(_play_rounds, self.play, self.draws),
        )


@dataclass(frozen=True, slots=True)
class Kernels:
    """Loops over the functions of an environment."""

    begin: Function
    play: Function


def environment(
    *,
    agent: np.dtype[Any],
    states: Sequence[str],
    begin: Function | None = None,
    draws: int = 4,
    context_limit: int | None = None,
    parameters: NDArray[Any] | None = None,
) -> Callable[[Function], Environment]:
    """Make an environment of a function ``play(agent, action, random, round)``.

    The function is compiled by numba when agents first play, and returns `RUNNING`, `SUCCEEDED`
    or `FAILED`. With ``NUMBA_DISABLE_JIT=1`` it runs as it stands, on Python numbers, and gives
    the same.

    Parameters
    ----------
    agent
        Structured dtype of an agent: what `play` reads and writes as ``agent.name``. It has an
        integer field ``state``, the place of the agent's hidden state in `states`. An agent is all
        zeros before `begin`.
    states
        Names of the hidden states.
    begin
        ``begin(agent, random)`` fills in an agent before its first round; None: nothing to do.
    draws
        How many random numbers a round has, 1 to 64.
    context_limit
        Tokens, of the sessions that control the agents; None: unknown.
    parameters
        (1,) structured array: `play` and `begin` get its record as one more argument. Other
        parameters need no new compilation (`Environment.with_parameters`).

    Notes
    -----
    `action` is the code of what the agent was told: continue, retry, redirect or compress. An
    agent that is told to terminate plays no more; its run failed.

    ``random`` is (draws,) float64 in [0, 1): Philox numbers of the seed, the agent, the round and
    the place, so they do not depend on what agents are told. Read one always at the same place for
    the same purpose, and runs under several controls can be compared round by round.

    ``round`` has the fields of `ROUND`; before each call they are 0, ``tokens`` -1.
    """
    names = agent.names or ()
    if "state" not in names or not np.issubdtype(agent["state"], np.integer):
        raise InputError(f"agent: wanted a structured dtype with an integer `state`, got {agent}")
    if parameters is not None and (parameters.shape != (1,) or parameters.dtype.names is None):
        raise InputError(f"parameters: wanted a (1,) structured array, got {shown(parameters)}")
    if not isinstance(draws, int) or not 1 <= draws <= MOST_DRAWS:
        raise InputError(f"draws: wanted a whole number in [1, {MOST_DRAWS}], got {shown(draws)}")
    named = tuple(states)
    if not named:
        raise InputError("states: wanted at least one name, got none")

    def made(play: Function) -> Environment:
        return Environment(play, begin or _nothing, agent, named, draws, context_limit, parameters)

    return made


MOST_DRAWS = 64


def _nothing(agent: Any, random: Any, *parameters: Any) -> None:
    """Leave an agent as it is."""


# --- compilation ---------------------------------------------------------------------------------
def _loop_of(loop: Function, of: Function, draws: int) -> Function:
    """A loop that calls a function, compiled for it, and cached beside its file.

    Numba's cache goes by the code of a function and the age of its file. So the loop becomes a
    function of that file, which calls the other as a global, and a digest of it is in its name.
    """
    place = of.__code__
    code = loop.__code__.replace(
        co_filename=place.co_filename, co_firstlineno=place.co_firstlineno
    )
    called = numba.njit(**OPTIONS)(of)
    function = types.FunctionType(code, {**loop.__globals__, "_call": called, "_DRAWS": draws})
    if numba.config.DISABLE_JIT:        # type: ignore[attr-defined]
        return _on_plain_records(function)
    version = zlib.crc32(marshal.dumps(code) + digest_of(function).encode())
    function.__name__ = function.__qualname__ = f"{of.__name__}{loop.__name__}_{version:08x}"
    return compiled(function)


class _PlainRecord:
    """A record as compiled code sees it: fields by attribute, as Python numbers."""

    __slots__ = ("_record",)

    def __init__(self, record: np.void) -> None:
        object.__setattr__(self, "_record", record)

    def __getattr__(self, name: str) -> Any:
        value = self._record[name]
        return value if isinstance(value, np.ndarray) else value.item()

    def __setattr__(self, name: str, value: Any) -> None:
        self._record[name] = value


class _PlainRecords:
    """An array of records without numba."""

    __slots__ = ("_records",)

    def __init__(self, records: NDArray[Any]) -> None:
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, place: int) -> _PlainRecord:
        return _PlainRecord(self._records[place])


def _on_plain_records(loop: Function) -> Function:
    def run(*arguments: Any) -> Any:
        return loop(*(
            _PlainRecords(one) if isinstance(one, np.ndarray) and one.dtype.names else one
            for one in arguments
        ))

    return run


# --- the loops; `_loop_of` puts in the function that they call, and how many numbers it gets -----
_call: Any = None
_DRAWS = 0
WORD = 2.0**-32


class Columns(NamedTuple):
    """The columns of `RoundBatch` that environments fill in, for as many rounds as there are."""

    call_offsets: NDArray[np.int64]
    call_tool: NDArray[np.uint64]
    call_signature: NDArray[np.uint64]
    call_result: NDArray[np.uint64]
    call_flags: NDArray[np.uint8]
    call_size: NDArray[np.uint32]
    text: NDArray[np.uint64]
    context_tokens: NDArray[np.int64]


def _begin_agents(agents: Any, words: Any, luck: Any, parameters: Any) -> None:
    """Fill in agents before their first round."""
    for i in range(len(agents)):
        for j in range(_DRAWS):
            luck[j] = words[i, j] * WORD
        _call(agents[i], luck, *parameters)


def _play_rounds(
    agents: Any, rows: Any, actions: Any, words: Any, luck: Any, scratch: Any, parameters: Any,
    columns: Any, ended: Any, tokens: Any, told: Any,
) -> None:
    """The next round of the agents in `rows`, who were told `actions`."""
    calls = 0
    columns.call_offsets[0] = 0
    for k in range(len(rows)):
        row = rows[k]
        agent = agents[row]
        for j in range(_DRAWS):
            luck[j] = words[k, j] * WORD
        round = scratch[0]
        round.calls = 0
        round.tool = 0
        round.signature = 0
        round.result = 0
        round.flags = 0
        round.size = 0
        round.text = 0
        round.tokens = -1
        told[agent.state, actions[k]] += 1
        ended[k] = _call(agent, actions[k], luck, round, *parameters)
        if round.calls > 0:
            columns.call_tool[calls] = round.tool
            columns.call_signature[calls] = round.signature
            columns.call_result[calls] = round.result
            columns.call_flags[calls] = round.flags
            columns.call_size[calls] = round.size
            calls += 1
        columns.call_offsets[k + 1] = calls
        columns.text[k] = round.text
        columns.context_tokens[k] = round.tokens
        tokens[row] += max(round.tokens, 0)
