"""`cellium-fast bench`: complete rows in every form, honest populations, a fair NumPy step."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import orjson
import pytest
from cli_runs import call

from cellium_fast import Action, Fleet, Policy, _records, bench, traces
from cellium_fast.bench import single, texts
from cellium_fast.bench.measures import NotMeasured, Row, Target
from cellium_fast.bench.numpy_fleet import SIXTEEN_RULES, NumpyFleet
from cellium_fast.bench.populations import (
    CONTEXT_LIMIT,
    PERIOD,
    POPULATIONS,
    SETTLED,
    WANTED,
    Herd,
    Kind,
    Population,
    bytes_a_session,
)
from cellium_fast.bench.timing import Contender, Spread, interleaved
from cellium_fast.cli.bench import shown_ratio, shown_spread

TINY = bench.Sizes(
    fleet=200, large_fleet=300, draws=100, scalar_rounds=20, age=50, decisions=200,
    conversations=3, plain_rounds=5, old_fleet=20, choices=50, replayed_rounds=40, replays=1,
    repeats=2, starts=1,
)
SOME = ("memory", "step", "beta", "session")


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "QUICK", TINY)
    monkeypatch.setenv("COLUMNS", "160")


def only(*names: str) -> Iterator[str]:
    for name in names:
        yield from ("--only", name)


# --- the command ---------------------------------------------------------------------------------
def test_every_row_is_in_the_json() -> None:
    done = call("bench", "--quick", "--json")
    assert done.exit_code == 0 and done.stderr == ""
    value: dict[str, Any] = json.loads(done.stdout)
    assert value["quick"] is True and value["sizes"]["fleet"] == TINY.fleet
    assert value["machine"]["cores"] >= 1 and value["machine"]["numpy"] == np.__version__
    assert [row["name"] for row in value["measures"]] == list(bench.MEASURES)
    for row in value["measures"]:
        assert row["what"] and row["note"]
        measured = row["mark"] != "not measured"
        assert (row["figure"] is not None) is measured, row
        if measured:
            figure = row["figure"]
            # Of a few sessions, a difference of two steps can come out below nothing.
            assert row["name"] == "user-rule" or figure["low"] > 0
            assert figure["low"] <= figure["median"] <= figure["high"]
            assert (row["ratio"] is not None) is (row["baseline"] is not None)
            assert row["ratio"] is None or row["ratio"] > 0
            assert (row["mark"] == "no target") is (row["target"] is None)


def test_the_table_has_a_line_and_a_note_for_each_row() -> None:
    done = call("bench", "--quick", *only(*SOME))
    assert done.exit_code == 0 and done.stderr == ""
    lines = done.stdout.splitlines()
    for name in SOME:
        assert sum(line.startswith(f"{name} ") for line in lines) == 1
        assert sum(line.startswith(f"{name}: ") for line in lines) == 1
        assert bench.MEASURES[name].what in done.stdout
    assert "Quick" in lines[1] and "NumPy Generator.beta" in done.stdout
    for word in ("≤ 40 ns", "≤ 384 bytes", "≥ 5 x", "≤ 2 µs", "as fast"):
        assert word in done.stdout


@pytest.mark.parametrize("width", [40, 60, 80, 100, 110, 120, 140])
def test_a_narrow_terminal_cuts_nothing_off(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    done = call("bench", "--quick", *only("memory", "step", "beta"))
    assert done.exit_code == 0
    assert "…" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= width
    words = " ".join(done.stdout.split())
    for figure in ("384", "≤ 40 ns", "≥ 5 x", "as fast"):
        assert figure in words


def test_an_unknown_row_is_refused_with_the_names_there_are() -> None:
    done = call("bench", "--only", "speed")
    assert done.exit_code == 2 and done.stdout == ""
    assert "--only: wanted one of step, " in done.stderr and "'speed'" in done.stderr


def test_a_missed_target_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    missed = bench.Measure(
        "memory", "memory", bench.MEASURES["memory"].take, bench.Unit.BYTES, target=Target(1)
    )
    monkeypatch.setitem(bench.MEASURES, "memory", missed)
    done = call("bench", "--quick", *only("memory"))
    assert done.exit_code == 0 and "missed" in done.stdout


# --- what is missing -----------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["mabwiser", "river"])
def test_a_missing_extra_is_said(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(module: str) -> None:
        raise ImportError(module)

    monkeypatch.setattr("cellium_fast.bench.sampling.importlib.import_module", missing)
    row = bench.take(bench.MEASURES[name], TINY)
    assert row.mark == bench.Mark.NOT_MEASURED and row.ratio is None
    assert row.reason == "not installed: pip install 'cellium-fast[bench]'"
    done = call("bench", "--quick", *only(name))
    assert done.exit_code == 0 and f"{name}: not installed" in done.stdout


def test_an_installed_package_says_that_the_reference_is_not_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr("cellium_fast.__file__", str(tmp_path / "cellium_fast" / "__init__.py"))
    row = bench.take(bench.MEASURES["plain"], TINY)
    assert row.mark == bench.Mark.NOT_MEASURED and "checkout" in row.reason


def test_one_core_cannot_show_two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cellium_fast.bench.batch.usable_cpus", lambda: 1)
    row = bench.take(bench.MEASURES["threads"], TINY)
    assert row.mark == bench.Mark.NOT_MEASURED and "one CPU" in row.reason


def test_a_failure_is_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(single, "COLD_START", "raise SystemExit('no such luck')")
    with pytest.raises(RuntimeError, match="no such luck"):
        bench.take(bench.MEASURES["import"], TINY)


# --- figures -------------------------------------------------------------------------------------
def test_contenders_take_turns_and_warm_ups_do_not_count() -> None:
    seen: list[str] = []
    taken = interleaved(
        {
            "a": Contender(lambda: seen.append("a"), lambda: seen.append("prepare")),
            "b": Contender(lambda: seen.append("b"), things=1e6),
        },
        repeats=2, warm_ups=1,
    )
    assert seen == ["prepare", "a", "b"] * 3
    assert set(taken) == {"a", "b"} and taken["b"].median < taken["a"].median


def test_spread_is_median_and_quartiles() -> None:
    spread = Spread.of([5.0, 1.0, 2.0, 4.0, 3.0])
    assert spread == Spread(3.0, 2.0, 4.0)
    assert spread.divided_by(2) == Spread(1.5, 1.0, 2.0)
    assert spread.as_rate(12.0) == Spread(4.0, 3.0, 6.0)


def row_of(figure: float, baseline: float | None, **settings: Any) -> Row:
    measure = bench.Measure("x", "x", lambda sizes: result, **settings)
    flat = None if baseline is None else Spread(baseline, baseline, baseline)
    result = bench.Result(Spread(figure, figure, figure), flat)
    return Row(measure, result)


@pytest.mark.parametrize(("settings", "ratio"), [
    ({}, 4.0),
    ({"compared": bench.Compared.AS_LONG}, 0.25),
    ({"unit": bench.Unit.BYTES_A_SECOND}, 0.25),
])
def test_ratio_says_how_fast_or_how_long(settings: dict[str, Any], ratio: float) -> None:
    assert row_of(1.0, 4.0, **settings).ratio == ratio
    assert row_of(1.0, None, **settings).ratio is None


@pytest.mark.parametrize(("figure", "target", "mark"), [
    (40e-9, Target(40e-9), "met"), (41e-9, Target(40e-9), "missed"), (1.0, None, "no target"),
    (2e6, Target(2e6, at_least=True), "met"), (1e6, Target(2e6, at_least=True), "missed"),
    (1.0, Target(3.0, of_ratio=True, at_least=True), "met"),
    (2.0, Target(3.0, of_ratio=True, at_least=True), "missed"),
])
def test_marks(figure: float, target: Target | None, mark: str) -> None:
    assert row_of(figure, 4.0, target=target).mark == mark


@pytest.mark.parametrize(("value", "unit", "shown"), [
    (61.25e-9, "SECONDS", "61.2 ns"),
    (2.0e-6, "SECONDS", "2.00 µs"),
    (0.0231, "SECONDS", "23.1 ms"),
    (3.0, "SECONDS", "3.00 s"),
    (389.0, "BYTES", "389 bytes"),
    (2.94e6, "TEXTS_A_SECOND", "2.94 M texts/s"),
    (60.1e6, "BYTES_A_SECOND", "60.1 MB/s"),
])
def test_figures_are_shown_in_units_that_suit_them(value: float, unit: str, shown: str) -> None:
    assert shown_spread(Spread(value, value, value), bench.Unit[unit]) == shown
    assert shown_spread(Spread(value, 0.5 * value, 2 * value), bench.Unit[unit]).startswith(shown)


def test_small_and_large_ratios_keep_their_digits() -> None:
    assert [shown_ratio(ratio) for ratio in (0.0123, 0.5, 12.34, 3456.0)] == [
        "0.012 x", "0.50 x", "12.3 x", "3,456 x"
    ]


# --- populations ---------------------------------------------------------------------------------
@pytest.mark.parametrize(("name", "policy", "share"), [
    ("calm", Policy(), 0.0),
    ("looping", Policy(), 0.0),
    ("usual", Policy(), 0.1),
    ("tied", SIXTEEN_RULES, 1.0),
])
def test_populations_tie_as_often_as_they_claim(name: str, policy: Policy, share: float) -> None:
    herd = Herd(Population(name, 2_000), policy=policy)
    ties = []
    for _ in range(24):
        herd.prepare()
        assert herd.step() is herd.decisions
        ties.append(herd.tie_breaks())
    assert np.mean(ties) == pytest.approx(share, abs=0.02)


def test_kinds_do_what_they_are_there_for() -> None:
    herd = Herd(Population("mixed", 2_000), settled=2 * PERIOD)
    kind = herd.population.kind
    seen = []
    for _ in range(5 * PERIOD):
        herd.prepare()
        decisions = herd.step()
        seen.append(decisions.action.copy())
        assert np.all(decisions.action[kind == Kind.EXHAUSTED] == Action.TERMINATE)
        assert np.mean(decisions.action[kind == Kind.CALM] == Action.CONTINUE) > 0.95
    for looping in (Kind.LOOPING, Kind.CRAMMED, Kind.FAILING):
        actions = np.array(seen)[:, kind == looping]
        assert set(np.unique(actions)) == {Action.CONTINUE, Action.RETRY, Action.REDIRECT}
        redirects = np.count_nonzero(actions == Action.REDIRECT, axis=0)
        assert np.all(redirects >= 4)
    assert not np.any(np.array(seen)[:, kind != Kind.EXHAUSTED] == Action.TERMINATE)


@pytest.mark.parametrize("name", POPULATIONS)
def test_shares_of_kinds(name: str) -> None:
    kinds = Population(name, 1_000).kind
    for kind in Kind:
        assert np.mean(kinds == kind) == pytest.approx(POPULATIONS[name].get(kind, 0.0), abs=0.001)


def test_a_session_is_measured_whole() -> None:
    fleet = Fleet(threads=1)
    ids = fleet.open(1_000)
    before = bytes_a_session(fleet)
    assert before["sessions"] == _records.SESSION.itemsize
    memory = fleet._memory
    arrays = {name for name in dir(memory) if isinstance(getattr(memory, name), np.ndarray)}
    assert set(before) == arrays - {"policies", "pools", "user_code"}
    limited = bytes_a_session(Fleet(threads=1, max_sessions=1_000))
    assert set(limited) == set(before) | {"last_use", "queue"}
    fleet.close(ids)
    assert sum(bytes_a_session(fleet).values()) == sum(before.values()) + 8    # free slots


def test_a_herd_writes_what_it_wants_into_the_same_arrays() -> None:
    herd = Herd(Population("usual", 100))
    herd.prepare()
    before = herd.decisions
    assert herd.step() is before and set(before.columns()) == set(WANTED)
    assert "features" in Herd(Population("usual", 100), want=None).step().columns()


# --- the step in NumPy ---------------------------------------------------------------------------
@pytest.mark.parametrize("name", POPULATIONS)
def test_the_numpy_step_decides_as_the_fleet_does(name: str) -> None:
    # By posterior means, since the two draw different random numbers.
    policy = SIXTEEN_RULES.replace(tie_break="greedy")
    population = Population(name, 400)
    fleet = Fleet(seed=1, policies={"greedy": policy}, threads=1)
    ids = fleet.open(400, context_limit=CONTEXT_LIMIT)
    twin = NumpyFleet(400, CONTEXT_LIMIT, policy)
    for _ in range(3 * SETTLED):
        rounds = population.next_round()
        decisions = fleet.step(ids, rounds)
        action, candidates, rules, reward = twin.step(rounds)
        np.testing.assert_array_equal(candidates, decisions.candidates)
        np.testing.assert_array_equal(rules, decisions.rules)
        np.testing.assert_array_equal(action, decisions.action)
        np.testing.assert_allclose(reward, decisions.reward, atol=1e-6)
    learned = fleet.posterior()
    np.testing.assert_array_equal(twin.updates, learned["updates"])
    np.testing.assert_allclose(twin.alpha, learned["alpha"], atol=1e-5)
    np.testing.assert_allclose(twin.beta, learned["beta"], atol=1e-5)


def test_the_numpy_step_draws_among_the_candidates() -> None:
    population = Population("tied", 2_000)
    twin = NumpyFleet(2_000, CONTEXT_LIMIT, seed=3)
    for _ in range(SETTLED):
        action, candidates, *_ = twin.step(population.next_round())
    assert np.all(candidates >> action & 1)
    assert len(np.unique(action)) > 1


# --- conversations -------------------------------------------------------------------------------
def test_conversations_are_read_without_a_problem(tmp_path: Any) -> None:
    path = tmp_path / "conversations.jsonl"
    size = texts.write_conversations(path, 20)
    assert size == path.stat().st_size
    runs = list(traces.read(path))
    assert len(runs) == 20
    for run in runs:
        assert isinstance(run, traces.RecordedRun)
        assert run.source == "openai-chat" and run.context_limit == 32_000
        assert all(len(round.calls) == 1 and round.context_tokens for round in run.rounds)
    assert len({len(run.rounds) for run in runs if isinstance(run, traces.RecordedRun)}) > 5


def test_conversations_are_the_same_each_time() -> None:
    first, again = (texts.conversation(random.Random(5), 1) for _ in range(2))
    assert orjson.dumps(first) == orjson.dumps(again)


def test_a_measure_that_cannot_be_taken_says_why() -> None:
    def take(sizes: bench.Sizes) -> bench.Result:
        raise NotMeasured("no such thing here")

    row = bench.take(bench.Measure("x", "x", take), TINY)
    assert (row.result, row.reason, row.mark) == (None, "no such thing here", "not measured")
