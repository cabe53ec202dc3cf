"""`simulate`: repeatable, its numbers add up, and control helps."""

import dataclasses

import numpy as np
import pytest

from cellium_fast import Action, CelliumError, InputError, Policy, UnknownNameError
from cellium_fast.simulate import KINDS, Outcome, SimulationResult, simulate
from cellium_fast.simulate.population import SHARE_OF_KIND, Population


@pytest.fixture(scope="module")
def result() -> SimulationResult:
    return simulate(sessions=1_500, rounds=60, seed=1)


def both(result: SimulationResult) -> tuple[Outcome, Outcome]:
    return result.controlled, result.uncontrolled


def test_the_same_seed_gives_the_same_result(result):
    assert both(simulate(sessions=1_500, rounds=60, seed=1)) == both(result)


def test_another_seed_gives_another_result(result):
    assert both(simulate(sessions=1_500, rounds=60, seed=2)) != both(result)


def test_no_global_random_state_is_read_or_moved():
    np.random.seed(1)
    before = np.random.get_state()[1].copy()
    first = simulate(sessions=50, rounds=20, seed=3)
    assert (np.random.get_state()[1] == before).all()
    np.random.seed(2)
    assert both(simulate(sessions=50, rounds=20, seed=3)) == both(first)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_control_beats_no_control(seed):
    result = simulate(sessions=800, rounds=60, seed=seed)
    assert result.controlled.success > result.uncontrolled.success + 0.05


@pytest.mark.parametrize("preset", ["default", "cellium"])
def test_each_preset_beats_no_control(preset):
    result = simulate(sessions=800, rounds=60, seed=1, policy=Policy.preset(preset))
    assert result.controlled.success > result.uncontrolled.success


def test_without_control_the_policy_does_not_matter(result):
    other = simulate(sessions=1_500, rounds=60, seed=1, policy=Policy.preset("cellium"))
    assert other.uncontrolled == result.uncontrolled
    assert other.controlled != result.controlled


def test_the_result_says_what_was_asked(result):
    assert (result.sessions, result.round_limit) == (1_500, 60)
    assert result.seconds > 0
    assert result.rounds_per_second == pytest.approx(result.controlled.rounds / result.seconds)


@pytest.mark.parametrize("side", ["controlled", "uncontrolled"])
def test_the_numbers_add_up(result, side):
    outcome: Outcome = getattr(result, side)
    counts = {kind: count for kind, (count, _) in outcome.by_kind.items()}
    solved = sum(count * share for count, share in outcome.by_kind.values())
    assert tuple(counts) == KINDS
    assert sum(counts.values()) == 1_500
    assert outcome.success == pytest.approx(solved / 1_500)
    assert list(outcome.actions) == [str(action) for action in Action]
    assert sum(outcome.actions.values()) == outcome.rounds
    assert 1_500 <= outcome.rounds <= 1_500 * 60
    assert all(0 <= share <= 1 for _, share in outcome.by_kind.values())


def test_both_sides_have_the_same_agents(result):
    counts = [{kind: count for kind, (count, _) in one.by_kind.items()} for one in both(result)]
    assert counts[0] == counts[1]
    for kind, share in zip(KINDS, SHARE_OF_KIND, strict=True):
        assert counts[0][kind] == pytest.approx(1_500 * share, rel=0.2)


def test_left_alone_agents_are_told_nothing_but_continue(result):
    actions = dict(result.uncontrolled.actions)
    assert actions.pop("continue") == result.uncontrolled.rounds
    assert set(actions.values()) == {0}
    assert result.controlled.actions["redirect"] > 0


def test_luck_does_not_depend_on_what_agents_are_told():
    left, right = Population(50, 7), Population(50, 7)
    who = np.arange(50)
    told = np.zeros(50, np.uint8)
    assert (left.goal == right.goal).all()
    left.play(who, 1, told)
    right.play(who[:10], 1, told[:10])
    assert (left.work[:10] == right.work[:10]).all()
    assert (left.state[:10] == right.state[:10]).all()


def test_a_single_agent_and_a_single_round():
    result = simulate(sessions=1, rounds=1)
    assert result.controlled.rounds == result.uncontrolled.rounds == 1


@pytest.mark.parametrize("rounds", [1, 7, 60])
def test_progress_is_told_and_ends_complete(rounds):
    told: list[tuple[int, int]] = []
    simulate(sessions=20, rounds=rounds, progress=lambda done, total: told.append((done, total)))
    assert {total for _, total in told} == {2 * rounds}
    done = [one for one, _ in told]
    assert done == sorted(done)
    assert done[-1] == 2 * rounds


def test_results_are_frozen(result):
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.sessions = 5
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.controlled.success = 1.0


@pytest.mark.parametrize("seed", [0, 2**63 - 1])
def test_the_ends_of_the_seeds(seed):
    assert simulate(sessions=2, rounds=2, seed=seed).sessions == 2


BAD_NUMBERS = [
    ("sessions", [0, -1, 1.5, 10.0, True, "10", None, 2**31]),
    ("rounds", [0, -1, 1.5, 10.0, True, "10", None, 2**31]),
    ("seed", [-1, 2**63, 1.5, True, "1", None]),
]


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in BAD_NUMBERS for value in values]
)
def test_bad_numbers_are_refused(name, value):
    with pytest.raises(InputError) as caught:
        simulate(**{name: value})
    assert f"{name}: wanted a whole number in" in str(caught.value)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize(("value", "kind"), [
    (5, InputError), ("celium", UnknownNameError), ({"n_step": 2}, InputError), (0, InputError),
])
def test_a_bad_policy_is_refused(value, kind):
    with pytest.raises(kind) as caught:
        simulate(sessions=2, rounds=2, policy=value)
    assert repr(value) in str(caught.value)


def test_a_progress_that_cannot_be_called_is_refused():
    with pytest.raises(CelliumError, match="progress"):
        simulate(sessions=2, rounds=2, progress=5)
