"""Environments: the built-in population against plain Python, random numbers, refusals, no JIT."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference_population
from numpy.typing import NDArray

import cellium_fast.simulate
from cellium_fast import InputError, _philox
from cellium_fast.simulate import (
    FAILED,
    RUNNING,
    STATES,
    SUCCEEDED,
    Environment,
    Tables,
    environment,
    population,
)
from cellium_fast.simulate.controls import new_columns
from cellium_fast.simulate.environments import Columns
from cellium_fast.simulate.loop import Play, Words

SHIPPED = Path(cellium_fast.simulate.__file__).with_name("population.toml")
STANDS = {"running": RUNNING, "succeeded": SUCCEEDED, "failed": FAILED}
SEED = 11


def shown(columns: Columns, place: int) -> dict[str, int]:
    """The round in one row of the columns."""
    start, stop = columns.call_offsets[place : place + 2].tolist()
    named = {
        "tool": "call_tool", "signature": "call_signature", "result": "call_result",
        "flags": "call_flags", "size": "call_size",
    }
    calls = {
        name: int(getattr(columns, column)[start]) for name, column in named.items()
    } if stop > start else {}
    return {
        "calls": stop - start, **calls,
        "text": int(columns.text[place]), "tokens": int(columns.context_tokens[place]),
    }


def compare(seed: int, agents: int, rounds: int, tables: dict[str, Any]) -> set[str]:
    """Play agents beside those of the reference, told this and that; return the states they met."""
    chance = np.random.default_rng(seed)
    play = Play(population(Tables(**tables)), seed, agents)
    rows, columns = np.arange(agents), new_columns(agents)
    play.begin(rows)
    expected = [reference_population.Agent(tables, seed, number) for number in range(agents)]
    met = set()
    for number in range(1, rounds + 1):
        told = np.where(chance.random(len(rows)) < 0.4, chance.integers(1, 4, len(rows)), 0)
        play.play(rows, rows, np.full(len(rows), number), told.astype(np.uint8), columns)
        running = []
        for place, row in enumerate(rows.tolist()):
            agent = expected[row]
            stands, one = agent.play(reference_population.ACTIONS[told[place]])
            if not one["calls"]:
                one = {name: one[name] for name in ("calls", "text", "tokens")}
            where = f"seed {seed}, agent {row}, round {number}"
            assert shown(columns, place) == one, where
            assert play.ended[place] == STANDS[stands], where
            assert STATES[play.agents["state"][row]] == agent.state, where
            assert play.agents["left"][row] == agent.left, where
            met.add(agent.state)
            if stands == "running":
                running.append(row)
        rows = np.array(running, np.int64)
    return met


def test_the_population_is_that_of_the_reference() -> None:
    tables = tomllib.loads(SHIPPED.read_text())
    assert compare(SEED, 600, 40, tables) == set(STATES)


def test_other_tables_too() -> None:
    tables = tomllib.loads(SHIPPED.read_text())
    for state in STATES:
        tables["reactions"][state]["worse_into"] = "polling"
        tables["reactions"][state]["compress"] = {"out": 0.0, "worse": 0.5, "cost": 4}
    tables["rates"]["profiles"] = {
        "one": {**tables["rates"]["profiles"]["coding"], "tokens": 9_000.0, "error": 0.3},
        "other": {**tables["rates"]["profiles"]["assistant"], "share": 3.0},
    }
    for profile in tables["rates"]["profiles"].values():
        profile["entering"] = dict.fromkeys(profile["entering"], 0.1)
    assert compare(SEED + 1, 300, 30, tables) == set(STATES)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20))
def test_the_population_is_that_of_the_reference_at_length(seed: int) -> None:
    compare(seed, 5_000, 100, tomllib.loads(SHIPPED.read_text()))


# --- random numbers ------------------------------------------------------------------------------
def test_words_are_those_of_the_agent_and_the_round() -> None:
    agents, numbers = np.array([0, 5, 2**31 + 7]), np.array([1, 9, 2**32 - 1])
    words = Words(2**63 - 1, 4, 3)(agents, numbers) / 2**32
    for row, agent, number in zip(words, agents.tolist(), numbers.tolist(), strict=True):
        assert row.tolist() == reference_population.draws(2**63 - 1, agent, number)


def test_more_draws_come_behind_those_there_are() -> None:
    agents, numbers = np.arange(5), np.full(5, 3)
    few, many = (Words(7, draws, 5)(agents, numbers).copy() for draws in (3, 9))
    assert few.shape == (5, 4) and many.shape == (5, 12)
    assert (many[:, :4] == few).all()
    assert len(np.unique(many)) == many.size


@pytest.mark.parametrize("agents", [1, 127, 128, 129, 300])
def test_words_made_side_by_side_are_those_made_one_by_one(agents: int) -> None:
    chance = np.random.default_rng(agents)
    uids, numbers = chance.integers(0, 2**40, agents), chance.integers(0, 2**32, agents)
    words = Words(SEED, 12, agents)(uids, numbers)
    for block in range(3):
        high = np.full(agents, reference_population.PURPOSE << 24 | block)
        counters = np.stack([uids & 0xFFFFFFFF, uids >> 32, numbers, high], axis=1)
        expected = np.empty((agents, 4), np.uint32)
        _philox.random_words(counters.astype(np.uint32), SEED, expected)
        assert (words[:, 4 * block : 4 * block + 4] == expected).all()


# --- environments of one's own -------------------------------------------------------------------
COUNTER = np.dtype([("state", np.int64), ("count", np.int16), ("half", np.float32)])


def count_up(agent: Any, action: int, random: Any, round: Any) -> int:
    agent.count += 1 + action
    agent.half = agent.count / 2
    round.calls = agent.count % 2
    round.tool = 3
    round.signature = 200 + agent.count
    round.tokens = int(agent.half * 3)
    round.text = int(random[4] * 2**32)
    return SUCCEEDED if agent.count >= 5 else RUNNING


def counting(**options: Any) -> Environment:
    return environment(agent=COUNTER, states=["all"], draws=5, **options)(count_up)


def played(env: Environment, actions: NDArray[np.uint8]) -> tuple[Play, Columns]:
    play, columns = Play(env, SEED, len(actions)), new_columns(len(actions))
    rows = np.arange(len(actions))
    play.begin(rows)
    play.play(rows, rows, np.ones(len(actions), np.int64), actions, columns)
    return play, columns


def test_an_environment_fills_in_rounds() -> None:
    play, columns = played(counting(), np.array([0, 1, 2, 3], np.uint8))
    assert play.agents["count"].tolist() == [1, 2, 3, 4]
    assert play.agents["half"].tolist() == [0.5, 1, 1.5, 2]
    assert columns.call_offsets.tolist() == [0, 1, 1, 2, 2]
    assert columns.call_signature[:2].tolist() == [201, 203]
    assert columns.call_tool[:2].tolist() == [3, 3]
    assert columns.context_tokens.tolist() == [1, 3, 4, 6]
    assert play.tokens.tolist() == [1, 3, 4, 6]
    assert play.told.tolist() == [[1, 1, 1, 1, 0]]
    assert play.ended.tolist() == [RUNNING] * 4
    for agent in range(4):
        bits = reference_population.block_bits(SEED, agent, 1, reference_population.PURPOSE, 1)
        assert columns.text[agent] == bits >> 96


def test_rounds_begin_empty() -> None:
    @environment(agent=COUNTER, states=["all"])
    def quiet(agent: Any, action: int, random: Any, round: Any) -> int:
        agent.count += 1
        if agent.count == 1:
            round.calls = round.tool = round.signature = round.result = round.size = 1
            round.text = round.flags = round.tokens = 1
        return RUNNING

    play, columns = Play(quiet, 0, 1), new_columns(1)
    rows, told = np.arange(1), np.zeros(1, np.uint8)
    for number in (1, 2):
        play.play(rows, rows, np.full(1, number), told, columns)
    assert shown(columns, 0) == {"calls": 0, "text": 0, "tokens": -1}
    assert play.tokens.tolist() == [1]


def test_parameters_are_changed_without_compiling() -> None:
    def beginning(agent: Any, random: Any, parameters: Any) -> None:
        agent.count = parameters.first

    @environment(
        agent=COUNTER, states=["all"], begin=beginning,
        parameters=np.array([(7, 1)], [("first", np.int64), ("step", np.int64)]),
    )
    def stepping(agent: Any, action: int, random: Any, round: Any, parameters: Any) -> int:
        agent.count += parameters.step
        return RUNNING

    other = stepping.with_parameters(np.array([(9, 2)], stepping.parameters.dtype))     # type: ignore[union-attr]
    told = np.zeros(1, np.uint8)
    assert played(stepping, told)[0].agents["count"].tolist() == [8]
    assert played(other, told)[0].agents["count"].tolist() == [11]
    assert other.kernels is stepping.kernels


def adding(step: int) -> Environment:
    @environment(agent=COUNTER, states=["all"])
    def play(agent: Any, action: int, random: Any, round: Any) -> int:
        agent.count += step
        return RUNNING

    return play


def test_the_cache_tells_functions_of_one_place_apart() -> None:
    for step in (2, 5, 2):
        play, _ = played(adding(step), np.zeros(1, np.uint8))
        assert play.agents["count"].tolist() == [step]


def test_what_no_file_holds_is_not_cached() -> None:
    names: dict[str, Any] = {"RUNNING": RUNNING}
    exec(
        "def play(agent, action, random, round):\n    agent.count += 7\n    return RUNNING", names
    )
    env = environment(agent=COUNTER, states=["all"])(names["play"])
    assert played(env, np.zeros(1, np.uint8))[0].agents["count"].tolist() == [7]


@pytest.mark.parametrize(("options", "words"), [
    ({"agent": np.dtype(np.int64)}, "agent: wanted a structured dtype"),
    ({"agent": np.dtype([("state", np.float64)])}, "agent: wanted a structured dtype"),
    ({"agent": np.dtype([("count", np.int64)])}, "agent: wanted a structured dtype"),
    ({"states": []}, "states: wanted at least one name"),
    ({"draws": 0}, "draws: wanted a whole number in"), ({"draws": 65}, "draws: wanted"),
    ({"draws": 1.5}, "draws: wanted"),
    ({"parameters": np.zeros(1)}, "parameters: wanted a"),
    ({"parameters": np.zeros(2, COUNTER)}, "parameters: wanted a"),
])
def test_what_is_no_environment_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        environment(**{"agent": COUNTER, "states": ["all"], **options})


WITHOUT_JIT = """
import json
from cellium_fast.simulate import Cap, EqualCalls, simulate
import cellium_fast.simulate.simulation as simulation
simulation.SEARCHED = 40
result = simulate(60, 12, seed=5, controls={"cap": Cap(4), "calls": EqualCalls(2)})
plain = result.as_json()
del plain["seconds"]
for control in plain["controls"].values():
    del control["rounds_per_second"]
print(json.dumps(plain))
"""


def test_without_compiling_all_is_the_same() -> None:
    results = []
    for disabled in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-c", WITHOUT_JIT], capture_output=True, check=False,
            env={**os.environ, "NUMBA_DISABLE_JIT": disabled},
        )
        assert done.returncode == 0, done.stderr.decode()
        results.append(json.loads(done.stdout))
    assert results[0] == results[1]
    assert results[0]["controls"]["cap"]["ends"]["stopped"] > 0
