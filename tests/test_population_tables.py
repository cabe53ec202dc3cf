"""The tables of the built-in population: files, refusals, their record, what is fitted to runs."""

from __future__ import annotations

import json
import os
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cellium_fast.simulate
from cellium_fast import Action, InputError, Round, ToolCall
from cellium_fast.simulate import STATES, Tables, fit
from cellium_fast.simulate.fit import Ending, Episode, Mixture, Observed, Shown
from cellium_fast.traces.runs import RecordedRun

ROOT = Path(__file__).parent.parent
SHIPPED = Path(cellium_fast.simulate.__file__).with_name("population.toml")


# --- files ---------------------------------------------------------------------------------------
def test_as_toml_they_are_read_back(tmp_path: Path) -> None:
    file = tmp_path / "tables.toml"
    tables = Tables.shipped().replace(rates={"rework": 7})
    file.write_text(tables.to_toml())
    assert Tables.from_file(file) == tables
    assert tomllib.loads(Tables.shipped().to_toml()) == tomllib.loads(SHIPPED.read_text())


@pytest.mark.parametrize(("name", "text"), [
    ("some.toml", "[reactions.polling]\nredirect = { worse = 0.5 }\n"),
    ("some.yaml", "reactions:\n  polling:\n    redirect: {worse: 0.5}\n"),
    ("some.json", '{"reactions": {"polling": {"redirect": {"worse": 0.5}}}}'),
])
def test_a_file_holds_what_differs(name: str, text: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text(text)
    tables, shipped = Tables.from_file(file), Tables.shipped()
    assert tables.reactions.polling.redirect.worse == 0.5
    assert tables.reactions.polling.redirect.out == shipped.reactions.polling.redirect.out
    assert tables.rates == shipped.rates
    changed = [
        name for name in shipped.record().dtype.names or ()
        if (tables.record()[name] != shipped.record()[name]).any()
    ]
    assert changed == ["out_or_worse"]


@pytest.mark.parametrize(("name", "text", "words"), [
    ("x.toml", "[reactions.pollin]\n", "reactions.pollin: there is no such entry"),
    ("x.toml", "[reactions.slow]\nretry = {out = 1.5}", "reactions.slow.retry.out: wanted"),
    ("x.toml", "[reactions.slow]\nretry = {out = 0.9, worse = 0.2}", "out \\+ worse of at most 1"),
    ("x.toml", "[reactions.slow]\nworse_into = 'nowhere'", "reactions.slow.worse_into: wanted"),
    ("x.toml", "[reactions.working]\nretry = {out = 0.1}", "there is nothing to get out of"),
    ("x.toml", "[rates.profiles.shell]\ngoals = [1, 2]", "rates.profiles.shell.goals: "),
    ("x.toml", "[rates.profiles.shell.entering]\nslow = 0.9", "sum of at most 1"),
    ("x.toml", "[rates.profiles.new]\nshare = 1.0", "rates.profiles.new.goals: "),
    ("x.toml", "[rates]\ncrowded_from = 1.0", "rates.crowded_from: wanted"),
    ("x.toml", "rates =", "x.toml: "), ("x.json", "[]", "wanted a table of entries"),
    ("x.txt", "", "wanted a .toml, .yaml or .json file"),
])
def test_what_makes_no_sense_is_named(
    name: str, text: str, words: str, tmp_path: Path
) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(InputError, match=words) as caught:
        Tables.from_file(file)
    assert str(caught.value).startswith(str(file))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.toml: No such file"):
        Tables.from_file(tmp_path / "none.toml")


def test_tables_are_frozen() -> None:
    with pytest.raises(InputError, match="frozen"):
        Tables.shipped().rates.rework = 5


def test_the_record_has_chances_summed_up() -> None:
    tables, row = Tables.shipped(), Tables.shipped().record()[0]
    profiles = [*tables.rates.profiles.values()]
    assert row["share"].tolist() == pytest.approx([0.25, 0.5, 0.75, 1.0])
    slow, same = profiles[1].entering.slow, profiles[1].entering.looping_same
    assert row["entering"][1, :3].tolist() == pytest.approx([0, slow, slow + same])
    reaction = tables.reactions.failing_stays.redirect
    place = STATES.index("failing_stays"), Action.REDIRECT
    assert row["out"][place] == reaction.out
    assert row["out_or_worse"][place] == reaction.out + reaction.worse
    assert row["cost"][place] == reaction.cost
    assert tables.reactions.slow.of(Action.CONTINUE) == tables.reactions.slow.continue_


# --- what recorded runs show ---------------------------------------------------------------------
def call(arguments: object, result: object, error: bool = False, tool: str = "t") -> Round:
    return Round([ToolCall(tool, arguments, result, error)], text="x")


LONG = "a result that says something, and is no acknowledgement"
SOUND = [call(number, f"{LONG} {number}") for number in range(10)]
SAME = call("same", LONG)
FAILS = [call(number, f"broken {number}", error=True) for number in range(9)]
TALK = Round(text="hello")


def observed(rounds: list[Round], **fields: Any) -> Observed:
    seen = Observed()
    seen.add(RecordedRun("made-up", Path("x"), "1", rounds, [0] * len(rounds), **fields))
    return seen


@pytest.mark.parametrize(("rounds", "trouble", "episodes"), [
    ([SOUND[0], SAME, SAME, SAME, SOUND[1]], Shown.LOOPING_SAME, [Episode(3, True, False)]),
    ([SAME, TALK, SAME, TALK, SOUND[1]], Shown.LOOPING_SAME, [Episode(2, True, False)]),
    ([SAME, call("same", "other" + LONG), SOUND[1]], Shown.POLLING, [Episode(2, True, False)]),
    ([call(1, LONG), call(2, LONG), call(3, LONG), SOUND[4]], Shown.LOOPING_CHANGING,
     [Episode(3, True, False)]),
    ([call(1, LONG), call(2, LONG, tool="other"), SOUND[4]], Shown.LOOPING_CHANGING, []),
    ([call(1, ""), call(2, ""), SOUND[4]], Shown.LOOPING_CHANGING, []),
    ([SOUND[0], *FAILS[:3], SOUND[1], *FAILS[4:6], SOUND[2]], Shown.FAILING,
     [Episode(3, True, False), Episode(2, True, False)]),
    ([SOUND[0], FAILS[0], SOUND[1]], Shown.FAILING, []),
    ([SOUND[0], *FAILS[:2]], Shown.FAILING, [Episode(2, False, True)]),
    # The last round of a run that ended by itself is its end.
    ([SOUND[0], SAME, SAME], Shown.LOOPING_SAME, []),
])
def test_episodes(rounds: list[Round], trouble: Shown, episodes: list[Episode]) -> None:
    assert observed(rounds).episodes[trouble] == episodes


def test_a_run_that_was_cut_off_did_not_give_up() -> None:
    seen = observed([SOUND[0], *FAILS[:3]], round_limit=4, success=False)
    assert seen.episodes[Shown.FAILING] == [Episode(3, False, False)]
    assert (seen.right, seen.goals) == ([], [])
    assert observed([SOUND[0], SAME, SAME], round_limit=3).episodes[Shown.LOOPING_SAME] == [
        Episode(2, False, False)
    ]


def test_rounds_are_counted() -> None:
    seen = observed([SOUND[0], TALK, FAILS[0], SAME, SAME, SAME, SOUND[1]], success=True)
    assert (seen.rounds, seen.talk, seen.single_errors, seen.work) == (7, 1, 1, 5)
    assert (seen.goals, seen.right) == ([4], [True])
    assert observed([TALK], success=False).goals == []
    assert observed([TALK]).goals == [1]
    assert observed([]).rounds == 0


def test_a_mixture_of_geometric_laws_is_found_again() -> None:
    chance = np.random.default_rng(5)
    episodes = []
    for _ in range(6_000):
        out, length = (0.1, 2) if chance.random() < 0.3 else (0.7, 2)
        while chance.random() >= out:
            length += 1
        # Cut off after 12 rounds: nobody saw whether the 13th was one.
        episodes.append(Episode(min(length, 12), length < 12, False))
    found = fit.mixture_of(episodes)
    assert found.share_that_lasts == pytest.approx(0.3, abs=0.04)
    assert found.lasting.out == pytest.approx(0.1, abs=0.015)
    assert found.short.out == pytest.approx(0.7, abs=0.04)
    again = fit.mixture_of(episodes[:3_000], found)
    assert (again.short, again.lasting) == (found.short, found.lasting)
    assert again.share_that_lasts == pytest.approx(0.3, abs=0.04)


def test_nothing_seen_is_no_reason_to_fail() -> None:
    nothing = fit.mixture_of([])
    assert nothing == Mixture(Ending(0, 0), Ending(0, 0), 0)
    assert fit.begun_of(observed(SOUND), Shown.FAILING, nothing) == (0.05, 0.05)


def test_chances_to_begin_count_episodes_that_do_not_show() -> None:
    seen = observed([*SOUND, *FAILS[:3], *SOUND, *FAILS[:2], *SOUND])
    laws = Mixture(Ending(0.5, 0.0), Ending(0.0, 0.2), 0.5)
    short, lasting = fit.begun_of(seen, Shown.FAILING, laws)
    share = fit.mixture_of(seen.episodes[Shown.FAILING], laws).share_that_lasts
    assert short == pytest.approx((2 * (1 - share) + 0.5) / 0.5 / 30)
    assert lasting == pytest.approx((2 * share + 0.5) / 0.8 / 30)


def test_goals_are_deciles() -> None:
    seen = Observed(goals=[*range(101)])
    assert fit.goals_of(seen) == [5, 15, 25, 35, 45, 55, 65, 75, 85, 95]
    assert fit.goals_of(Observed(goals=[0])) == [1] * 10


def test_tokens_are_those_told_or_made_of_characters() -> None:
    rounds = [Round([], "x", context_tokens=100 * number) for number in range(1, 60)]
    assert fit.tokens_of(observed(rounds)) == 100
    assert fit.tokens_of(observed([call(1, "x" * 400), TALK])) == 150 + 400 / 4 / 2


@pytest.mark.skipif("CELLIUM_TRACES" not in os.environ, reason="CELLIUM_TRACES is not set")
def test_the_shipped_rates_are_those_fitted(capsys: pytest.CaptureFixture[str]) -> None:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import fit_population
    finally:
        sys.path.pop(0)
    sys.argv = ["fit_population.py", os.environ["CELLIUM_TRACES"]]
    fit_population.main()
    fitted = json.loads(capsys.readouterr().out)
    assert Tables.shipped().replace(**fitted) == Tables.shipped()
    marked = [line for line in SHIPPED.read_text().splitlines() if line.endswith("F")]
    assert len(marked) == sum(1 for _ in leaves(fitted))


def leaves(section: dict[str, Any]) -> Any:
    for value in section.values():
        if isinstance(value, dict):
            yield from leaves(value)
        else:
            yield value
