"""Policies compared on recorded runs: counts and intervals against plain loops, and coverage."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from reference_evaluate import Run, count, percentile_interval, resampled_shares
from scipy.stats import norm
from test_experiment import POLICIES, made_runs
from trace_files import RECORDINGS, needs_recordings

from cellium_fast import InputError, Policy
from cellium_fast import evaluate as module
from cellium_fast.evaluate import Comparison, Estimate, compare, evaluate
from cellium_fast.experiment import Experiment
from cellium_fast.quality import FIGURES, FIRED, Detector, JudgedRuns, judge
from cellium_fast.replay import RunName, read_files
from cellium_fast.traces import Problem, find_files

NAMED = dict(zip("abcde", POLICIES, strict=True))


def judged(runs: Sequence[Run]) -> JudgedRuns:
    """The same runs as the package has them, with policies "0", "1", ..."""
    fired = {}
    for policy in range(len(runs[0].first) if runs else 2):
        fired[str(policy)] = np.zeros(len(runs), FIRED)
        fired[str(policy)]["first"] = [run.first[policy] for run in runs]
    return JudgedRuns(
        [RunName(run.source, Path("runs.json"), str(place)) for place, run in enumerate(runs)],
        np.array([run.success for run in runs], np.int8),
        np.array([run.rounds for run in runs], np.int64), fired,
    )


def chance_runs(seed: int, counts: dict[tuple[str, bool], int], policies: int = 3) -> list[Run]:
    """So many runs of each source and outcome, in any order, some without rounds."""
    chance = np.random.default_rng(seed)
    runs = []
    for (source, success), size in counts.items():
        for _ in range(size):
            rounds = int(chance.integers(0, 12))
            fires = chance.random(policies) < (0.1 if success else 0.5)
            first = [
                int(chance.integers(1, rounds + 1)) if fire and rounds else 0 for fire in fires
            ]
            runs.append(Run(source, success, rounds, first))
    return [runs[place] for place in chance.permutation(len(runs))]


COUNTS = {
    ("x", False): 9, ("x", True): 7, ("y", False): 4, ("z", True): 1, ("ü", False): 1,
    ("ü", True): 2,
}


@pytest.mark.parametrize("seed", [0, 1, 2**63])
def test_figures_and_intervals_against_plain_loops(seed: int) -> None:
    runs = chance_runs(seed % 7, COUNTS)
    total, sources = compare(judged(runs), seed=seed, resamples=150)
    assert list(total) == ["0", "1", "2"] and list(sources) == ["x", "y", "z", "ü"]
    same_as_plain(total, runs, seed)
    for source, compared in sources.items():
        same_as_plain(compared, [run for run in runs if run.source == source], seed)


def same_as_plain(compared: dict[str, Comparison], runs: list[Run], seed: int) -> None:
    for figure in FIGURES:
        drawn = resampled_shares(figure, runs, seed, 150)
        wanted = [count(figure, runs, policy) for policy in range(3)]
        for policy in range(3):
            estimate: Estimate = getattr(compared[str(policy)], figure)
            part, whole = wanted[policy]
            assert (estimate.share.count, estimate.share.total) == (part, whole)
            assert same(estimate.interval, percentile_interval(drawn[policy]))
            if policy == 0 or not whole:
                assert estimate.difference is None and estimate.difference_interval is None
                continue
            assert estimate.difference == pytest.approx((part - wanted[0][0]) / whole)
            differences = [
                one - first for one, first in zip(drawn[policy], drawn[0], strict=True)
            ]
            assert same(estimate.difference_interval, percentile_interval(differences))


def same(ours: tuple[float, float] | None, theirs: tuple[float, float] | None) -> bool:
    return ours is theirs if theirs is None else ours == pytest.approx(theirs, abs=1e-12)


def test_parts_of_the_resamples_are_drawn_as_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = judged(chance_runs(3, COUNTS))
    whole = compare(runs, resamples=110)
    monkeypatch.setattr(module, "MOST_DRAWS", 40)
    assert compare(runs, resamples=110) == whole


def test_an_interval_depends_on_its_runs_and_the_seed_alone() -> None:
    runs = chance_runs(5, COUNTS)
    _, sources = compare(judged(runs))
    only_x = [run for run in runs if run.source == "x"]
    total, alone = compare(judged(only_x))
    assert alone == {"x": sources["x"]} and total == sources["x"]
    fewer = [run._replace(first=run.first[:2]) for run in only_x]
    assert compare(judged(fewer))[0] == {"0": total["0"], "1": total["1"]}
    other = compare(judged(only_x), seed=1)[0]
    assert other["0"].saved.interval != total["0"].saved.interval


def test_nothing_is_said_where_resamples_are_all_the_same() -> None:
    runs = [Run("x", False, 9, [3, 0, 3])] * 20 + [Run("y", True, 4, [0, 0, 2])]
    total, sources = compare(judged(runs))
    for policy in total:
        for one in (total, sources["x"], sources["y"]):
            for figure in FIGURES:
                estimate = getattr(one[policy], figure)
                assert estimate.interval is None and estimate.difference_interval is None
    assert total["0"].caught.share.share == 1 and total["1"].caught.difference == -1
    assert total["2"].caught.difference == 0 and sources["y"]["0"].caught.share.share is None
    assert compare(judged([])) == (compare(judged([]))[0], {})


def test_few_runs_of_many_sources_vary_as_much_as_they_should() -> None:
    # Of two runs of a source one is caught: drawn two of two, their sum would vary by 1 / 2, half
    # of what the runs say, s² = 1 / 2 each. 200 sources: a standard deviation of √200 of 400 runs.
    runs = [
        Run(f"source {source}", False, 5, [first]) for source in range(200) for first in (0, 2)
    ]
    interval = compare(judged(runs), resamples=20_000)[0]["0"].caught.interval
    assert interval is not None
    half = norm.ppf(0.975) * np.sqrt(200) / 400
    assert interval == pytest.approx((0.5 - half, 0.5 + half), abs=0.003)


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    # 400 experiments of 60 failing and 80 successful runs of each of two sources. Were the truth in
    # exactly 95 % of the intervals, each of the five bounds would give a false alarm with a chance
    # of 1.2e-4 (binomial) over seeds. Of rare events, 10 of 160 disturbed, percentile intervals
    # hold it a little less often.
    trials, seed = 400, 20
    chance = np.random.default_rng(seed)
    hit_by_both, hit_by_one, rounds = 0.25, 0.15, 10
    held = dict.fromkeys(("caught", "disturbed", "saved", "difference", "saved more"), 0)
    for trial in range(trials):
        runs = []
        for source in "xy":
            for place in range(140):
                success = place >= 60
                luck = chance.random() * (4 if success else 1)
                first = [4 * (luck < hit_by_both), 6 * (luck < hit_by_both + hit_by_one)]
                runs.append(Run(source, success, rounds, first))
        one, other = compare(judged(runs), seed=trial, resamples=400)[0].values()
        for name, interval, truth in (
            ("caught", one.caught.interval, hit_by_both),
            ("disturbed", one.disturbed.interval, hit_by_both / 4),
            ("saved", one.saved.interval, 0.6 * hit_by_both),
            ("difference", other.caught.difference_interval, hit_by_one),
            ("saved more", other.saved.difference_interval,
             0.4 * (hit_by_both + hit_by_one) - 0.6 * hit_by_both),
        ):
            assert interval is not None
            held[name] += interval[0] <= truth <= interval[1]
    for name, number in held.items():
        assert 0.905 <= number / trials <= 0.985, (name, number, f"seed {seed}")


def test_paired_differences_are_surer_than_their_sides() -> None:
    chance = np.random.default_rng(1)
    runs = [
        Run("x", False, 10, [4 * (luck < 0.5), 4 * (luck < 0.52)]) for luck in chance.random(400)
    ]
    one, other = compare(judged(runs))[0].values()
    assert width(other.caught.difference_interval) < 0.5 * width(one.caught.interval)


def width(interval: tuple[float, float] | None) -> float:
    assert interval is not None
    return interval[1] - interval[0]


# --- driving -------------------------------------------------------------------------------------
def test_policies_are_judged_by_what_they_choose_on_labelled_runs() -> None:
    runs = made_runs(80)
    broken = Problem(Path("other.json"), 3, "cut off")
    told: list[Problem] = []
    progress: list[tuple[int, int]] = []
    result = evaluate(
        [*runs[:9], broken, *runs[9:]], NAMED, seed=6, resamples=100, on_problem=told.append,
        on_runs=lambda done, total: progress.append((done, total)),
    )
    known = [run for run in runs if run.success is not None]
    assert [name.run for name in result.runs.names] == [run.run for run in known]
    assert result.unlabelled == len(runs) - len(known) > 0
    assert told == [broken] and result.problems == 1
    assert progress[-1] == (5 * len(known), 5 * len(known))
    assert result.decisions == 5 * sum(len(run.rounds) for run in known)
    assert 0 < result.loop_seconds <= result.seconds
    reactions = Experiment(known).react(POLICIES, seed=6)["chosen"]
    for place, label in enumerate(NAMED):
        assert (result.runs.fired[label] == reactions[place]).all()
        mine = [
            Run(run.source, bool(run.success), len(run.rounds), [int(first)])
            for run, first in zip(known, reactions[place]["first"], strict=True)
        ]
        for figure in FIGURES:
            share = getattr(result.total[label], figure).share
            assert (share.count, share.total) == count(figure, mine, 0)
    assert (result.total, result.sources) == compare(result.runs, seed=6, resamples=100)
    assert len({result.total[label].saved.share for label in NAMED}) > 2


def test_no_labelled_run_at_all() -> None:
    result = evaluate([run for run in made_runs(20) if run.success is None], {"a": Policy()})
    assert (len(result.runs), result.sources) == (0, {}) and result.unlabelled > 0
    assert result.total["a"].caught.share.share is None


def test_what_is_refused() -> None:
    for arguments, message in (
        ({"policies": {}}, "policies: wanted policies by label"),
        ({"policies": {"a": "cellium"}}, r"policies\[0\]: wanted a Policy"),
        ({"seed": -1}, "seed"), ({"resamples": 99}, "resamples"),
        ({"resamples": 100_001}, "resamples"),
    ):
        with pytest.raises(InputError, match=message):
            evaluate([], **{"policies": {"a": Policy()}, **arguments})  # type: ignore[arg-type]
    with pytest.raises(InputError, match="resamples"):
        compare(judged([]), resamples=1)


@needs_recordings
def test_real_recordings_count_as_in_the_summary_of_a_replay() -> None:
    found = read_files(find_files([RECORDINGS]))
    result = evaluate(found, {"default": Policy(), "cellium": Policy.preset("cellium")}, seed=2)
    assert len(result.runs) > 1_700 and result.unlabelled > 0
    labelled = [
        run for run in read_files(find_files([RECORDINGS]))
        if getattr(run, "success", None) is not None
    ]
    alone = judge(labelled, seed=2)
    for label, detector in (
        ("default", Detector.POLICY_CHOSEN), ("cellium", Detector.CELLIUM_CHOSEN),
    ):
        quality = alone.quality(detector)
        for figure in FIGURES:
            assert getattr(result.total[label], figure).share == getattr(quality, figure)
    caught = result.total["cellium"].caught
    assert caught.difference_interval is not None and caught.difference is not None
    assert caught.difference_interval[0] < caught.difference < caught.difference_interval[1]
