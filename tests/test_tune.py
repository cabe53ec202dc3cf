"""Tuning: what is searched, what it is worth, what a search may see, and that it can go on."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tuned_runs import ALONE, ERRORS, REPEATS, SLOW, only_rules, planted, rotated, run

from cellium_fast import Action, InputError, Policy, PolicyError
from cellium_fast.experiment import REACTION
from cellium_fast.traces import Problem, RecordedRun
from cellium_fast.traces.packed import PackedRuns, RunName, packed
from cellium_fast.tuning import MissingPackageError, NoRunsError, Tuning, TuningResult, tune
from cellium_fast.tuning.objective import Objective
from cellium_fast.tuning.provenance import check_path
from cellium_fast.tuning.search import Search
from cellium_fast.tuning.space import FEATURES, Space, nested, value_of
from cellium_fast.tuning.splits import Source, held_out, labelled, rotation, sources


# --- the space -----------------------------------------------------------------------------------
@pytest.mark.parametrize("preset", ["default", "cellium"])
def test_the_space_is_what_decides_when_to_step_in(preset: str) -> None:
    policy = Policy.preset(preset)
    wanted = set(FEATURES)
    for name, rule in policy.rules:
        if {Action.REDIRECT, Action.TERMINATE} & set(rule.actions):
            wanted |= {f"rules.{name}.{field}" for field, _ in rule} - {
                f"rules.{name}.actions", f"rules.{name}.alone",
            }
    space = Space(policy)
    found = {parameter.path for parameter in space.parameters}
    assert found == wanted - {
        "rules.tool_cycle.compress_from", "rules.tool_repetition.compress_from",
    }
    for parameter in space.parameters:
        assert value_of(policy, parameter.path) == parameter.base


def test_a_rule_that_only_retries_is_not_searched_until_it_redirects() -> None:
    path = "rules.mild_stagnation.stuck"
    assert path not in Space(Policy()).base_values()
    redirecting = Policy(rules={"mild_stagnation": {"actions": ["redirect"]}})
    assert Space(redirecting).base_values()[path] == 1


@pytest.mark.parametrize("preset", ["default", "cellium"])
def test_every_value_of_a_parameter_makes_a_policy(preset: str) -> None:
    space = Space(Policy.preset(preset))
    random = np.random.default_rng(5)
    for one in space.parameters:
        ends = list(one.choices) or [one.value(type(one.base)(end)) for end in (one.low, one.high)]
        for value in (*ends, *one.neighbours(), *(one.draw(random) for _ in range(5))):
            if one.path.startswith("rules.true_stagnation.pause"):
                continue        # one of the two bounds the other
            assert value_of(space.policy({one.path: value}), one.path) == value
        if one.choices:
            assert one.base in one.choices
        else:
            assert one.low <= one.base <= one.high     # type: ignore[operator]
            assert one.neighbours() and one.base not in one.neighbours()


def test_all_values_of_a_range_are_drawn_and_none_besides() -> None:
    random = np.random.default_rng(3)
    space = Space(Policy(), [REPEATS, "rules.bad_cycle.quality", "count_cycles"])
    drawn = {one.path: {one.draw(random) for _ in range(600)} for one in space.parameters}
    assert drawn[REPEATS] == set(range(2, 7))
    assert drawn["rules.bad_cycle.quality"] == {round(step / 20, 2) for step in range(21)}
    assert drawn["count_cycles"] == {"calls", "rounds"}


def test_a_base_value_between_two_steps_stays_what_it_is() -> None:
    space = Space(Policy(rules={"bad_cycle": {"quality": 0.123}}), ["rules.bad_cycle.quality"])
    (parameter,) = space.parameters
    assert (parameter.base, parameter.step) == (0.123, None)
    assert all(0 <= parameter.draw(np.random.default_rng(1)) <= 1 for _ in range(9))


def test_another_policy_as_far_as_the_space_goes() -> None:
    near = Space(Policy()).near(Policy.preset("cellium"))
    assert near["count_cycles"] == "calls" and near["rules.failure_chain.failures"] == 4
    assert near["rules.repeated_round.enabled"] is False
    far = Policy(rules={"repeated_round": {"repeats": 250}})
    assert Space(Policy()).near(far)[REPEATS] == 6


@pytest.mark.parametrize("name", ["rules.repeated", "rules.repeated_round.actions", "gamma", ""])
def test_what_is_not_in_the_space_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="only: wanted parameters"):
        Space(Policy(), ["rules.repeated_round", name])


# --- the objective -------------------------------------------------------------------------------
def plain_scores(
    of: Sequence[str], success: Sequence[int], rounds: Sequence[int], base: Sequence[int],
    first: Sequence[int], budget: float | None, cost: float,
) -> tuple[float, int, int, float]:
    """What `Objective` says of one policy, in plain loops."""
    weighted = weights = 0.0
    disturbed = excess = 0
    for source in sorted(set(of)):
        runs = [place for place, name in enumerate(of) if name == source]
        failing = [place for place in runs if success[place] == 0]
        whole = sum(rounds[place] for place in failing)
        weight = len(failing) / (len(failing) + 20)
        weights += weight
        saved = sum(rounds[place] - first[place] for place in failing if first[place])
        weighted += weight * saved / whole if whole else 0.0
        here = sum(first[place] > 0 for place in runs if success[place] == 1)
        before = sum(base[place] > 0 for place in runs if success[place] == 1)
        disturbed += here
        if budget is None:
            excess += max(here - before, 0)
    if budget is not None:
        excess = max(disturbed - int(budget * sum(one == 1 for one in success) + 1e-9), 0)
    return weighted / weights, disturbed, excess, weighted / weights - cost * 3


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("budget", [None, 0.0, 0.1, 1.0])
def test_scores_against_plain_loops(seed: int, budget: float | None) -> None:
    random = np.random.default_rng(seed)
    of = random.choice(list("xyz"), 60).tolist()
    success = random.choice([0, 1], 60).astype(np.int8)
    rounds = random.integers(0, 12, 60)
    reactions = np.zeros((4, 60), REACTION)
    fires = (random.random((4, 60)) < 0.4) & (rounds > 0)
    reactions["chosen"]["first"] = np.where(fires, random.integers(1, 99, 60) % rounds.clip(1) + 1,
                                            0)
    objective = Objective(of, success, rounds, reactions[0], budget, 0.01)
    firsts = reactions["chosen"]["first"]
    for score, first in zip(objective.scores(reactions, [3] * 4), firsts, strict=True):
        saved, disturbed, excess, value = plain_scores(
            of, success.tolist(), rounds.tolist(), firsts[0].tolist(), first.tolist(), budget, 0.01
        )
        assert (score.disturbed, score.excess) == (disturbed, excess)
        assert score.saved == pytest.approx(saved) and score.value == pytest.approx(value)


# --- what is found -------------------------------------------------------------------------------
def test_the_planted_threshold_is_found() -> None:
    result = tune(planted(), SLOW, trials=40, **ALONE)
    assert result.changes == {REPEATS: 4} and result.complete
    assert result.policy == SLOW.replace(**nested({REPEATS: 4}))
    # Round 6 of 10 is the fourth equal one, as round 8 is the sixth.
    assert (result.base_score.saved, result.score.saved) == (0.2, 0.4)
    assert (result.allowed, result.score.disturbed, result.judged) == (0, 0, None)
    figures = result.trained.total["tuned"]
    assert (figures.saved.share.count, figures.saved.share.total) == (24, 60)
    assert figures.saved.difference == pytest.approx(0.2)


@pytest.mark.parametrize(("budget", "best"), [(0.0, 4), (0.19, 4), (0.2, 3), (1.0, 3)])
def test_the_budget_is_kept(budget: float, best: int) -> None:
    result = tune(planted(), SLOW, trials=40, budget=budget, **ALONE)
    assert result.policy.rules.repeated_round.repeats == best
    assert result.score.disturbed <= result.allowed == int(5 * budget + 1e-9)


def test_a_change_that_is_not_worth_its_cost_is_not_made() -> None:
    assert tune(planted(), SLOW, trials=40, change_cost=0.19, **ALONE).changes == {REPEATS: 4}
    assert tune(planted(), SLOW, trials=40, change_cost=0.21, **ALONE).changes == {}


def test_a_base_policy_beyond_the_budget_is_left_for_one_within() -> None:
    hasty = only_rules(repeated_round={"repeats": 2, "slight_repeats": 254})
    result = tune(planted(), hasty, trials=40, budget=0.0, **ALONE)
    assert result.changes == {REPEATS: 4} and result.base_score.excess == 5


def errors_too() -> list[RecordedRun]:
    """Failing runs that repeat an error with other arguments besides; the best is 3 of them."""
    runs = [run(f"errors {number}", "xABCDEFGH", False) for number in range(5)]
    for one in runs:        # the same error, whatever the arguments
        for place, round in enumerate(one.rounds[1:]):
            one.rounds[place + 1] = type(round)([
                type(call)(call.tool, call.arguments, "Error: there is no such file or directory",
                           error=True)
                for call in round.calls
            ])
    stumbling = run("stumbling", "xyABzz", True)
    stumbling.rounds[2:4] = runs[0].rounds[1:3]
    return [*planted(), *runs, stumbling]


def test_two_parameters_are_found_and_what_does_not_matter_is_left() -> None:
    base = only_rules(
        repeated_round={"repeats": 6, "slight_repeats": 254}, repeated_error={"errors": 6},
        idle={"rounds": 9},
    )
    sections = ["rules.repeated_round", "rules.repeated_error", "rules.idle"]
    result = tune(errors_too(), base, trials=120, folds=0, only=sections)
    assert result.changes == {REPEATS: 4, ERRORS: 3}


def test_same_seed_same_result_and_another_seed_another_search() -> None:
    def tried(seed: int) -> list[Any]:
        tuning = Tuning(
            errors_too(), seed=seed, folds=0, batch=8, only=SECTIONS
        )
        tuning.run(60)
        return [candidate.changes for candidate in tuning._searches[0].search.candidates]

    first = tried(1)
    assert first == tried(1) != tried(2)
    assert len({str(changes) for changes in first}) > 40


SECTIONS = ["rules.repeated_round", "rules.repeated_error", "rules.no_information"]


def searched(*trials: int) -> list[Any]:
    """What was tried by a search that was made to go on up to these numbers of trials."""
    tuning = Tuning(errors_too(), batch=8, folds=0, only=SECTIONS)
    for number in trials:
        tuning.run(number)
    return tuning._searches[0].search.candidates


def test_a_longer_search_begins_with_a_shorter_one() -> None:
    whole = searched(60)
    assert searched(31, 32, 47, 60) == whole and searched(31) == whole[:31]


def test_a_search_that_was_interrupted_within_a_batch_goes_on(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = searched(60)
    for name in ("_ask_for", "_scores", "_tell"):
        tuning = Tuning(errors_too(), batch=8, folds=0, only=SECTIONS)
        tuning.run(40)
        search = tuning._searches[0].search
        method, calls = getattr(search, name), 0

        def interrupted(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == 3:
                raise KeyboardInterrupt
            return method(*arguments)   # noqa: B023

        monkeypatch.setattr(search, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            tuning.run(60)
        assert search.candidates == whole[: search.told]
        tuning.run(60)
        assert search.candidates == whole


def test_values_that_make_no_policy_together_are_passed_over() -> None:
    pause = ["rules.true_stagnation.pause_from", "rules.true_stagnation.pause_to"]
    tuning = Tuning(planted(), folds=0, only=pause)
    tuning.run(60)
    search = tuning._searches[0].search
    assert len(search.candidates) < search.told == 60
    with pytest.raises(PolicyError, match="pause_from"):
        tuning.space.policy(dict(zip(pause, (20, 4), strict=True)))


# --- what a search may see -----------------------------------------------------------------------
def test_what_is_held_out_has_no_say() -> None:
    # In the other source, two equal rounds would be best, or far more than four.
    eager = [run(f"x{number}", "xaabbcc", False, "other") for number in range(40)]
    sound = [run(f"x{number}", "xaaaaaabbbbbb", True, "other") for number in range(40)]

    def tuned(other: list[RecordedRun]) -> TuningResult:
        runs = [*other[:20], *planted(), *other[20:]]
        return tune(runs, SLOW, trials=40, holdout=["other"], only=[REPEATS])

    first, second = tuned(eager), tuned(sound)
    assert first.changes == second.changes == {REPEATS: 4}
    assert (first.score, first.trained) == (second.score, second.trained)
    assert first.judged is not None and second.judged is not None
    assert first.judged.total["tuned"].caught.share.count == 0
    assert second.judged.total["tuned"].disturbed.share.count == 40
    assert list(second.judged.sources) == ["other"]
    # And it would, were it not held out.
    assert tune([*planted(), *sound], SLOW, trials=40, budget=0.0, **ALONE).changes == {REPEATS: 7}


def test_each_fold_of_a_rotation_is_what_a_search_without_it_finds() -> None:
    result = tune(rotated(), SLOW, trials=40, only=[REPEATS], folds=3)
    assert {min(fold.held_out): fold.changes for fold in result.folds} == {
        "one": {REPEATS: 5}, "two": {REPEATS: 5}, "strict": {REPEATS: 4},
    }
    for fold in result.folds:
        seen = [one for one in rotated() if one.source not in fold.held_out]
        alone = tune(seen, SLOW, trials=40, **ALONE)
        assert (alone.changes, alone.score) == (fold.changes, fold.score)
    assert result.changes == {REPEATS: 5} and result.judged is not None
    judged = result.judged.sources
    assert judged["strict"]["tuned"].disturbed.share.count == 3
    assert [judged[name]["tuned"].saved.share.count for name in ("one", "two")] == [18, 18]
    assert result.judged.total["tuned"].saved.share.total == 60 + 60 + 10


def test_a_rotation_that_is_not_done_says_nothing() -> None:
    def interrupt(place: int, search: Search) -> None:
        if place == 2:
            raise KeyboardInterrupt

    tuning = Tuning(rotated(), SLOW, only=[REPEATS], folds=3)
    with pytest.raises(InputError, match="nothing was tried yet"):
        tuning.result()
    with pytest.raises(KeyboardInterrupt):
        tuning.run(40, interrupt)
    result = tuning.result()
    assert result.changes == {REPEATS: 5} and not result.complete and result.judged is None
    assert len(result.folds) == 1
    tuning.run(40)
    assert tuning.result().complete and tuning.result().judged is not None


def test_sources_by_folder_and_by_file() -> None:
    paths = ("/a/b/c.json", "/a/b/d.json", "/a/e/f.json")
    names = [RunName("x", Path(path), "1") for path in paths]
    assert list(labelled(names, "source").values()) == ["x", "x", "x"]
    assert list(labelled(names, "folder").values()) == ["b", "b", "e"]
    assert list(labelled(names, "file").values()) == ["b/c.json", "b/d.json", "e/f.json"]
    assert list(labelled(names[:1], "file").values()) == ["c.json"]
    assert list(labelled(names[:2], "folder").values()) == ["b", "b"]
    assert labelled([], "file") == {}


def source(failed: int) -> Source:
    return Source(failed + 1, failed, 1, 9, "")


@given(st.dictionaries(st.text(min_size=1), st.integers(0, 40), min_size=2), st.integers(2, 9))
@settings(max_examples=60, deadline=None)
def test_a_rotation_holds_every_source_out_once(failed: dict[str, int], folds: int) -> None:
    known = {name: source(count) for name, count in failed.items()}
    held = rotation(known, folds)
    assert len(held) == min(folds, len(known)) and all(held)
    assert sorted(name for fold in held for name in fold) == sorted(known)
    assert rotation(dict(reversed(known.items())), folds) == held
    loads = sorted(sum(failed[name] for name in fold) for fold in held)
    assert loads[-1] - loads[0] <= max(failed.values())


def test_held_out_by_name_and_by_pattern() -> None:
    known = ["a/b", "a/c", "d[1]"]
    assert held_out(known, ["a/*"]) == {"a/b", "a/c"}
    assert held_out(known, ["a/b", "d[1]"]) == {"a/b", "d[1]"}
    assert held_out(known, []) == frozenset()
    with pytest.raises(InputError, match=r"holdout: wanted sources .*, got 'A/b'; there is 'a/b'"):
        held_out(known, ["a/c", "A/b"])


def test_the_hash_of_a_source_is_that_of_its_runs_alone() -> None:
    def hashed(runs: Sequence[RecordedRun], split: bool = False) -> dict[str, Source]:
        chunks: list[PackedRuns] = []
        for one in ([one] for one in runs) if split else [runs]:
            chunks += [part for part in packed(one) if isinstance(part, PackedRuns)]
        known = [one.name for chunk in chunks for one in chunk.runs if one.success is not None]
        return sources(chunks, labelled(known, "source"))

    runs = [*planted("one"), *planted("two", failing=3)]
    found = hashed(runs)
    assert [*found] == ["one", "two"]
    assert (found["two"].runs, found["two"].failed, found["two"].succeeded) == (8, 3, 5)
    assert found["two"].rounds == 3 * 10 + 8 + 4 * 7
    assert hashed(runs, split=True) == found
    # Which TOML would write as false.
    assert type(hashed([run("x", "abc", True)])["made-up"].failed) is int
    moved = [run(one.run, "xyaaaaaaaa", one.success, "one", "elsewhere/x.json")
             for one in planted("one")[:6]]
    assert hashed([*moved, *runs[6:]]) == found
    for change in (
        lambda one: setattr(one, "success", not one.success),
        lambda one: setattr(one, "run", "renamed"),
        lambda one: setattr(one, "rounds", [*one.rounds[1:], one.rounds[0]]),
        lambda one: setattr(one, "context_limit", 9),
    ):
        other = [*planted("one"), *planted("two", failing=3)]
        change(other[0])
        assert hashed(other)["one"].content != found["one"].content
        assert hashed(other)["two"] == found["two"]


# --- refusals ------------------------------------------------------------------------------------
@pytest.mark.parametrize(("arguments", "message"), [
    ({"by": "day"}, "by: wanted one of source, folder, file, got 'day'"),
    ({"holdout": "made-up"}, "holdout: wanted a list of names"),
    ({"holdout": ["none"]}, "holdout: wanted sources"),
    ({"holdout": ["made-up"]}, "no failing run to tune on without made-up"),
    ({"only": "rules"}, "only: wanted a list of names"),
    ({"folds": 1}, "folds: wanted at least 2, or 0"), ({"folds": 21}, "folds"),
    ({"budget": 1.5}, "budget"), ({"budget": float("nan")}, "budget"),
    ({"change_cost": -0.1}, "change_cost"), ({"seed": -1}, "seed"), ({"seed": 2**32}, "seed"),
    ({"batch": 0}, "batch"), ({"base": 3}, "base: wanted a Policy or the name of a preset"),
])
def test_arguments_that_make_no_sense(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Tuning(planted(), **arguments)


@pytest.mark.parametrize("trials", [0, 1.5, True])
def test_trials_that_make_no_sense(trials: Any) -> None:
    with pytest.raises(InputError, match="trials"):
        Tuning(planted(), SLOW, **ALONE).run(trials)


def test_runs_that_cannot_be_tuned_on() -> None:
    with pytest.raises(NoRunsError, match="no run could be read"):
        Tuning([])
    with pytest.raises(NoRunsError, match="none of the 1 runs says how it ended"):
        Tuning([run("x", "abc", None)])
    with pytest.raises(InputError, match="no failing run to tune on;"):
        Tuning([run("x", "abc", True), run("y", "", False)])
    with pytest.raises(InputError, match="no failing run to tune on without one;"):
        Tuning([*planted("one"), run("x", "abc", True, "two")])


def test_problems_are_told_and_unlabelled_runs_counted() -> None:
    problem = Problem(Path("x.json"), 3, "cut off")
    told: list[Problem] = []
    tuning = Tuning([problem, *planted(), problem], SLOW, **ALONE, on_problem=told.append)
    assert told == [problem] * 2 and (tuning.problems, tuning.left_out) == (2, 1)


@pytest.mark.parametrize("package", ["optuna", "tomli_w"])
def test_without_a_package_the_extra_is_named(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    find: Callable[..., Any] = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == package else find(name)
    )
    with pytest.raises(MissingPackageError, match=r"pip install 'cellium-fast\[tune\]'"):
        Tuning(planted()) if package == "optuna" else check_path("tuned.toml")
