"""`simulate`: the closed loop against a plain one, pairs of runs, counterfactuals, its numbers."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference_population
from numpy.typing import NDArray
from reference_population import ACTIONS, Agent

import cellium_fast.simulate
from cellium_fast import (
    Action,
    CelliumError,
    Fleet,
    InputError,
    Policy,
    RoundBatch,
    UnknownNameError,
)
from cellium_fast.simulate import (
    RUNNING,
    STATES,
    SUCCEEDED,
    USUAL,
    Alone,
    Cap,
    Control,
    EqualCalls,
    Estimate,
    PerState,
    SimulationResult,
    Tables,
    UnderPolicy,
    environment,
    population,
    simulate,
    simulation,
)
from cellium_fast.simulate.controls import Setting
from cellium_fast.simulate.counterfactual import Counterfactuals
from cellium_fast.simulate.loop import End, Play, Runs, run

SHIPPED = tomllib.loads(
    Path(cellium_fast.simulate.__file__).with_name("population.toml").read_text()
)
TOLD = np.uint8


def setting(agents: int, rounds: int = 25, seed: int = 3) -> Setting:
    return Setting(agents, rounds, seed, reference_population.LIMIT)


# --- a plain closed loop -------------------------------------------------------------------------
Shown = list[dict[str, Any]]
PlainControl = Callable[[list[int], list[dict[str, Any]], int], list[str]]


def plain_run(
    tables: dict[str, Any], agents: int, rounds: int, seed: int, control: PlainControl
) -> tuple[list[Agent], list[str], list[int], list[int], list[tuple[Agent, str]]]:
    """Agents, their ends, rounds and tokens, and copies of the agents at each intervention."""
    everyone = [Agent(tables, seed, number) for number in range(agents)]
    ends, tokens = ["out_of_rounds"] * agents, [0] * agents
    told, interventions = dict.fromkeys(range(agents), "continue"), []
    running = list(range(agents))
    for number in range(1, rounds + 1):
        stands, shown = {}, []
        for agent in running:
            stands[agent], one = everyone[agent].play(told[agent])
            tokens[agent] += one["tokens"]
            shown.append(one)
        told = dict(zip(running, control(running, shown, number), strict=True))
        left = []
        for agent in running:
            if stands[agent] != "running":
                ends[agent] = stands[agent]
            elif number == rounds:
                pass
            else:
                if told[agent] != "continue":
                    interventions.append((copy.deepcopy(everyone[agent]), told[agent]))
                if told[agent] == "terminate":
                    ends[agent] = "stopped"
                else:
                    left.append(agent)
        running = left
    return everyone, ends, [agent.round for agent in everyone], tokens, interventions


def columns_of(shown: Shown) -> RoundBatch:
    """The rounds as a batch."""
    calls = [one for one in shown if one["calls"]]

    def column(name: str, dtype: type) -> NDArray[Any]:
        return np.array([one[name] for one in calls], dtype)

    return RoundBatch(
        call_offsets=np.cumsum([0, *(one["calls"] for one in shown)]),
        call_tool=column("tool", np.uint64), call_signature=column("signature", np.uint64),
        call_result=column("result", np.uint64), call_flags=column("flags", np.uint8),
        call_size=column("size", np.uint32),
        text=np.array([one["text"] for one in shown], np.uint64),
        context_tokens=np.array([one["tokens"] for one in shown], np.int64),
    )


class PlainPolicy:
    """A fleet that is stepped batch by batch."""

    def __init__(self, agents: int, rounds: int, seed: int, policy: str) -> None:
        self.fleet = Fleet(seed=seed, policies={policy: policy}, threads=1)
        self.ids = self.fleet.open(
            agents, context_limit=reference_population.LIMIT, round_limit=rounds
        )
        self.rounds = rounds
        self.open: dict[int, str] = {}

    def __call__(self, running: list[int], shown: Shown, number: int) -> list[str]:
        decided = self.fleet.step(self.ids[running], columns_of(shown))
        return [str(Action(action)) for action in decided.action.tolist()]


def plain_equal_calls(calls: int, action: str) -> PlainControl:
    rows: dict[int, list[int]] = {}

    def control(running: list[int], shown: Shown, number: int) -> list[str]:
        told = []
        for agent, one in zip(running, shown, strict=True):
            row = rows.setdefault(agent, [])
            told.append("continue")
            if one["calls"]:
                row.append(one["signature"])
                if len(row) >= calls and len(set(row[-calls:])) == 1:
                    told[-1] = action
                    row.clear()
        return told

    return control


def plain_cap(rounds: int) -> PlainControl:
    return lambda running, shown, number: [
        "terminate" if number >= rounds else "continue" for _ in running
    ]


PLAIN: dict[str, tuple[Control, Callable[[], PlainControl]]] = {
    "none": (Alone, lambda: plain_cap(10**9)),
    "cap": (Cap(6), lambda: plain_cap(6)),
    "stop": (EqualCalls(3, Action.TERMINATE), lambda: plain_equal_calls(3, "terminate")),
    "redirect": (EqualCalls(2, Action.REDIRECT), lambda: plain_equal_calls(2, "redirect")),
}


def assert_same_runs(
    runs: Runs, everyone: list[Agent], ends: list[str], rounds: list[int], tokens: list[int]
) -> None:
    assert [End(end).name.lower() for end in runs.end.tolist()] == ends
    assert runs.rounds.tolist() == rounds
    assert runs.tokens.tolist() == tokens
    assert runs.running.sum() == sum(rounds)


@pytest.mark.parametrize("name", PLAIN)
def test_the_loop_is_that_of_plain_python(name: str) -> None:
    control, plain = PLAIN[name]
    runs = run(population(), control, setting(300))
    *expected, _ = plain_run(SHIPPED, 300, 25, 3, plain())
    assert_same_runs(runs, *expected)


@pytest.mark.parametrize("preset", ["default", "cellium"])
def test_policies_decide_as_a_fleet_that_is_stepped(preset: str) -> None:
    """But for what pools learn when sessions close, which a short run does not show."""
    untaught = Policy.preset(preset, tie_break="first")
    runs = run(population(), UnderPolicy(untaught), setting(300))
    plain = PlainPolicy(300, 25, 3, "default")
    plain.fleet.set_policy("default", untaught)
    *expected, interventions = plain_run(SHIPPED, 300, 25, 3, plain)
    assert_same_runs(runs, *expected)
    assert len({told for _, told in interventions}) > 1


# --- the same luck -------------------------------------------------------------------------------
class Noted:
    """Notes who was told what, in which state, before it takes effect."""

    def __init__(self, agents: int) -> None:
        self.told = np.zeros((agents, len(STATES), len(Action)), np.int64)

    def __call__(
        self, play: Play, rows: NDArray[np.int64], number: int, actions: NDArray[np.uint8]
    ) -> None:
        going_on = play.ended[: len(rows)] == RUNNING
        np.add.at(self.told, (rows, play.agents["state"][rows], actions), going_on)

    def others_than_continue(self) -> NDArray[np.bool_]:
        return np.asarray(self.told[:, :, 1:].any(axis=(1, 2)))


def equal(one: Runs, other: Runs) -> NDArray[np.bool_]:
    """Whose runs are the same."""
    return np.asarray(
        (one.end == other.end) & (one.rounds == other.rounds) & (one.tokens == other.tokens)
    )


@pytest.mark.parametrize("name", [name for name in USUAL if name != "none"])
def test_who_is_told_nothing_fares_as_without_control(name: str) -> None:
    alone = run(population(), Alone, setting(2_000))
    noted = Noted(2_000)
    runs = run(population(), USUAL[name], setting(2_000), noted)
    told = noted.others_than_continue()
    assert 0 < told.sum() < 2_000
    assert equal(alone, runs)[~told].all()
    assert not equal(alone, runs)[told].all()


def test_agents_do_not_depend_on_one_another() -> None:
    many = run(population(), Alone, setting(500))
    few = run(population(), Alone, setting(40))
    some = np.array([7, 30, 31, 499])
    chosen = run(population(), Alone, setting(4), identities=some)
    for name in ("end", "rounds", "tokens"):
        assert (getattr(many, name)[:40] == getattr(few, name)).all()
        assert (getattr(many, name)[some] == getattr(chosen, name)).all()


def test_another_reaction_changes_those_who_are_told_so() -> None:
    control = EqualCalls(2, Action.REDIRECT)
    tables = Tables.shipped().replace(reactions={"polling": {"redirect": {"worse": 0.8}}})
    noted = Noted(3_000)
    before = run(population(), control, setting(3_000), noted)
    after = run(population(tables), control, setting(3_000))
    told = noted.told[:, STATES.index("polling"), Action.REDIRECT] > 0
    assert equal(before, after)[~told].all()
    assert (~equal(before, after)[told]).sum() > 20
    alone = [run(population(one), Alone, setting(500)) for one in (None, tables)]
    assert equal(*alone).all()


# --- counterfactuals -----------------------------------------------------------------------------
def left_alone(agent: Agent, told: str, rounds: int) -> tuple[int, int]:
    """Success and rounds of a copy that is told this once and nothing after."""
    agent = copy.deepcopy(agent)
    while agent.round < rounds and told != "terminate":
        stands, _ = agent.play(told)
        told = "continue"
        if stands != "running":
            return int(stands == "succeeded"), agent.round
    return 0, agent.round


@pytest.mark.parametrize("name", ["cap", "redirect"])
def test_effects_are_those_of_plain_python(name: str) -> None:
    control, plain = PLAIN[name]
    following = Counterfactuals(population(), setting(250), 0.01)
    run(population(), control, setting(250), following)
    effects = following.effects()
    *_, interventions = plain_run(SHIPPED, 250, 25, 3, plain())
    expected = {
        field.name: np.zeros((len(STATES), 5)) for field in dataclasses.fields(effects)
    }
    for agent, told in interventions:
        place = STATES.index(agent.state), ACTIONS.index(told)
        success, rounds = left_alone(agent, told, 25)
        before, rounds_before = left_alone(agent, "continue", 25)
        worth = success - before - 0.01 * (rounds - rounds_before)
        for what, by in (
            ("count", 1), ("helped", worth > 0), ("hurt", worth < 0), ("worth", worth),
            ("rescued", success > before), ("spoiled", success < before),
            ("rounds", rounds - rounds_before),
        ):
            expected[what][place] += by
    assert expected["count"].sum() > 50
    for what, values in expected.items():
        assert getattr(effects, what) == pytest.approx(values), what


def test_effects_are_the_same_however_many_are_followed_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = []
    for at_once in (100_000, 30):
        monkeypatch.setattr("cellium_fast.simulate.counterfactual.AT_ONCE", at_once)
        following = Counterfactuals(population(), setting(400), 0.01)
        run(population(), USUAL["default"], setting(400), following)
        found.append(following.effects())
    for field in dataclasses.fields(found[0]):
        values = [getattr(one, field.name) for one in found]
        assert values[0] == pytest.approx(values[1]), field.name
    assert found[0].count.sum() > 100


# --- the best action of each state ---------------------------------------------------------------
PUZZLE = np.dtype([("state", np.uint8), ("left", np.int32)])


def begin_puzzle(agent: Any, random: Any) -> None:
    agent.state = int(4 * random[0])
    agent.left = 3


@environment(agent=PUZZLE, states=["fine", "lost", "hopeless", "never"], begin=begin_puzzle)
def puzzle(agent: Any, action: int, random: Any, round: Any) -> int:
    """Who is lost needs a redirect; the hopeless never succeed; state 3 turns to fine at once."""
    if agent.state == 3 or (agent.state == 1 and action == 2):
        agent.state = 0
    if agent.state == 0:
        agent.left -= 1
        if action != 0:
            agent.left += 2
    return SUCCEEDED if agent.left <= 0 else RUNNING


def test_the_best_actions_of_a_puzzle_are_found() -> None:
    best = simulation.best_of_each_state(puzzle, setting(10, 20), 0.01)
    assert best == (Action.CONTINUE, Action.REDIRECT, Action.TERMINATE, Action.CONTINUE)


def test_without_a_price_stopping_is_no_better() -> None:
    best = simulation.best_of_each_state(puzzle, setting(10, 20), 0.0)
    assert best == (Action.CONTINUE, Action.REDIRECT, Action.CONTINUE, Action.CONTINUE)


def test_regret_is_the_worth_lost_against_the_best_actions() -> None:
    result = simulate(400, 20, environment=puzzle, controls={"cap": Cap(5)}, round_price=0.01)
    best = run(puzzle, PerState((
        Action.CONTINUE, Action.REDIRECT, Action.TERMINATE, Action.CONTINUE,
    )), Setting(400, 20, 0, None))
    cap = run(puzzle, Cap(5), Setting(400, 20, 0, None))
    worth = [(runs.end == End.SUCCEEDED) - 0.01 * runs.rounds for runs in (best, cap)]
    assert result["cap"].regret == Estimate.of(worth[0] - worth[1])
    assert result.best.success.mean == np.mean(best.end == End.SUCCEEDED)
    assert result["cap"].told_best == {
        "fine": 1.0, "lost": 0.0, "hopeless": pytest.approx(1 / 5, abs=0.05), "never": 1.0,
    }


# --- the result ----------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def result() -> SimulationResult:
    return simulate(1_500, 60, seed=1)


def without_times(result: SimulationResult) -> dict[str, Any]:
    plain = result.as_json()
    del plain["seconds"]
    for control in plain["controls"].values():
        del control["rounds_per_second"]
    return plain


def test_the_same_seed_gives_the_same_result(result: SimulationResult) -> None:
    assert without_times(simulate(1_500, 60, seed=1)) == without_times(result)


def test_another_seed_gives_another_result(result: SimulationResult) -> None:
    other = simulate(1_500, 60, seed=2, controls={"default": "default"})
    assert other["none"].figures != result["none"].figures
    assert other["default"].figures != result["default"].figures


def test_a_control_does_not_depend_on_the_others(result: SimulationResult) -> None:
    alone = without_times(simulate(1_500, 60, seed=1, controls={"default": Policy()}))
    assert alone["controls"]["default"] == without_times(result)["controls"]["default"]


def test_no_global_random_state_is_read_or_moved() -> None:
    np.random.seed(1)
    before = np.random.get_state()[1].copy()    # type: ignore[union-attr,index]
    simulate(50, 20, seed=3, controls={})
    assert (np.random.get_state()[1] == before).all()   # type: ignore[index]


def test_the_controls_are_in_their_order(result: SimulationResult) -> None:
    assert list(result) == list(USUAL) == list(result.controls)
    chosen = simulate(20, 5, controls={"b": Cap(3), "a": "cellium"})
    assert list(chosen) == ["none", "b", "a"]


@pytest.mark.parametrize("name", USUAL)
def test_the_numbers_add_up(result: SimulationResult, name: str) -> None:
    one = result[name]
    assert sum(one.ends.values()) == 1_500
    assert one.success == one.figures.success.mean == one.ends["succeeded"] / 1_500
    assert one.running[0] == 1_500 and sum(one.running) == one.played
    assert one.figures.rounds.mean == pytest.approx(one.played / 1_500)
    assert one.figures.worth.mean == pytest.approx(one.success - 0.005 * one.played / 1_500)
    told = {action: sum(of[str(action)] for of in one.told.values()) for action in Action}
    assert sum(told.values()) - told[Action.TERMINATE] == one.played
    assert told[Action.TERMINATE] == one.ends["stopped"]
    assert one.interventions.count == sum(told.values()) - told[Action.CONTINUE]
    assert one.interventions.count == sum(
        effect.count for effects in one.effects.values() for effect in effects.values()
    )
    effect = one.interventions
    assert effect.helped + effect.hurt <= effect.count
    assert effect.rescued <= effect.helped and effect.spoiled <= effect.hurt
    assert one.rounds_per_second > 0
    assert one.regret.mean == pytest.approx(result.best.worth.mean - one.figures.worth.mean)
    for gain, figure, alone in zip(
        dataclasses.astuple(one.gain), dataclasses.astuple(one.figures),
        dataclasses.astuple(result["none"].figures), strict=True,
    ):
        assert gain[0] == pytest.approx(figure[0] - alone[0])


def test_without_control_nothing_is_told(result: SimulationResult) -> None:
    alone = result["none"]
    assert alone.interventions == dataclasses.replace(
        alone.interventions, count=0, helped=0, hurt=0, rescued=0, spoiled=0, worth=0.0, rounds=0.0
    )
    assert alone.effects == {state: {} for state in STATES}
    assert alone.gain.success == Estimate(0.0, 0.0, 0.0)
    assert alone.posterior is None


def test_the_posterior_is_followed(result: SimulationResult) -> None:
    posterior = result["default"].posterior
    assert posterior is not None and len(posterior) == 61
    assert posterior[0] == {str(action): (2.0, 2.0) for action in Action}
    assert posterior[-1] != posterior[0]
    assert posterior[10] != posterior[5]


@pytest.mark.parametrize("seed", [1, 2])
def test_control_beats_no_control(seed: int) -> None:
    result = simulate(3_000, 60, seed=seed, controls={"default": "default"})
    assert result["default"].gain.success.low > 0


def test_pairs_make_intervals_narrow(result: SimulationResult) -> None:
    def width(estimate: Estimate) -> float:
        return estimate.high - estimate.low

    assert width(result["default"].gain.success) < width(result["default"].figures.success) / 2


def test_an_estimate_is_mean_and_standard_error() -> None:
    values = [0.0, 1.0, 1.0, 3.0, 5.0]
    estimate = Estimate.of(values)
    error = math.sqrt(sum((value - 2) ** 2 for value in values) / 4 / 5)
    assert estimate.mean == 2
    assert estimate.high - 2 == pytest.approx(1.96 * error, rel=1e-4)
    assert 2 - estimate.low == pytest.approx(1.96 * error, rel=1e-4)
    assert math.isnan(Estimate.of([1.0]).low)


def test_a_single_agent_and_a_single_round() -> None:
    result = simulate(1, 1)
    assert all(control.played == 1 for control in result.controls.values())
    assert json.loads(json.dumps(result.as_json()))["controls"]["none"]["running"] == [1]


@pytest.mark.parametrize("rounds", [1, 7, 60])
def test_progress_is_told_and_ends_complete(rounds: int) -> None:
    told: list[tuple[str, int, int]] = []
    simulate(
        20, rounds, controls={"cap": Cap(5)},
        progress=lambda what, done, total: told.append((what, done, total)),
    )
    assert {total for _, _, total in told} == {4 * rounds}
    assert [*dict.fromkeys(what for what, _, _ in told)] == ["best actions", "best", "none", "cap"]
    done = [one for _, one, _ in told]
    assert done == sorted(done) and done[-1] == 4 * rounds


def test_results_are_frozen(result: SimulationResult) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.sessions = 5     # type: ignore[misc]


def test_the_fleet_is_free_after_a_control_fails() -> None:
    class Broken(Exception):
        pass

    def watch(*ignored: object) -> None:
        raise Broken

    with pytest.raises(Broken):
        run(population(), UnderPolicy("default"), setting(5), watch)
    simulate(5, 5, controls={"default": "default"})


# --- refusals ------------------------------------------------------------------------------------
BAD_NUMBERS = [
    ("sessions", [0, -1, 1.5, 10.0, True, "10", None, 2**31]),
    ("rounds", [0, -1, 1.5, 10.0, True, "10", None, 2**31]),
    ("seed", [-1, 2**63, 1.5, True, "1", None]),
    ("round_price", [-0.1, 1.1, math.nan, "x", None]),
    ("controls", [5, ["default"], {5: "default"}, {"a": 5}, {"a": None}]),
    ("environment", [5, "population", Tables.shipped()]),
    ("progress", [5]),
]


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in BAD_NUMBERS for value in values]
)
def test_what_makes_no_sense_is_refused(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"^{name}: "):
        simulate(**{name: value})


def test_an_unknown_preset_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="celium"):
        simulate(2, 2, controls={"a": "celium"})


@pytest.mark.parametrize("wrong", [
    lambda: Cap(0), lambda: Cap(1.5), lambda: EqualCalls(1), lambda: EqualCalls(3, 2),
])
def test_controls_check_their_numbers(wrong: Callable[[], object]) -> None:
    with pytest.raises(CelliumError, match=r"^(rounds|calls|action): wanted"):
        wrong()


# --- the figure ----------------------------------------------------------------------------------
def test_the_figure_is_a_png(result: SimulationResult) -> None:
    pytest.importorskip("matplotlib")
    from cellium_fast.simulate.plot import drawn

    for one in (result, simulate(1, 1, controls={})):
        image = drawn(one)
        assert image.startswith(b"\x89PNG\r\n\x1a\n") and image.endswith(b"IEND\xaeB`\x82")


def test_matplotlib_is_loaded_for_figures_only() -> None:
    code = (
        "import sys, cellium_fast.simulate; "
        "sys.exit(str({'matplotlib', 'rich', 'typer', 'optuna'} & set(sys.modules) or ''))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.stderr in (b"", b"\n"), done.stderr
