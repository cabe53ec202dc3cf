"""What a tuning keeps on disk: studies to go on with, and policy files with their provenance."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from rules_of_users import failed
from tuned_runs import ALONE, ERRORS, REPEATS, SLOW, planted, rotated

from cellium_fast import InputError, Policy, PolicyError, rule
from cellium_fast.policy import LARGEST_FILE
from cellium_fast.traces import RecordedRun
from cellium_fast.tuning import Tuning, TuningResult, tune
from cellium_fast.tuning.provenance import contents, differences, write


# --- studies on disk -----------------------------------------------------------------------------
def tuning_of(study: Path, runs: list[RecordedRun] | None = None, **changed: Any) -> Tuning:
    wanted = {"only": [REPEATS], "folds": 3, "batch": 8, "study": study, "base": SLOW, **changed}
    return Tuning(rotated() if runs is None else runs, **wanted)


def test_a_resumed_tuning_is_one_that_was_never_interrupted(tmp_path: Path) -> None:
    whole = tuning_of(tmp_path / "whole")
    whole.run(30)
    study = tmp_path / "study"
    for trials in (5, 13, 30):
        tuning_of(study).run(trials)
    resumed = tuning_of(study)
    resumed.run(30)
    assert contents(resumed.result()) == contents(whole.result())
    for one, other in zip(resumed._searches, whole._searches, strict=True):
        assert one.search.candidates == other.search.candidates


@pytest.mark.parametrize("told", [0, 3, 8, 11])
def test_a_kill_in_the_middle_of_a_batch_loses_nothing(
    told: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuning = tuning_of(tmp_path / "study", folds=0)
    kept = tuning._searches[0].search._kept
    assert kept is not None
    add, count = kept.add_trial, 0

    def dying(trial: Any) -> None:
        nonlocal count
        if count == told:
            raise KeyboardInterrupt
        add(trial)
        count += 1

    monkeypatch.setattr(kept, "add_trial", dying)
    with pytest.raises(KeyboardInterrupt):
        tuning.run(30)
    with (tmp_path / "study").open("ab") as file:
        file.write(b'{"op_code":4,"worker_id":"')       # a line that never got its end
    resumed = tuning_of(tmp_path / "study", folds=0)
    resumed.run(30)
    whole = tuning_of(tmp_path / "whole", folds=0)
    whole.run(30)
    assert contents(resumed.result()) == contents(whole.result())
    lines = (tmp_path / "study").read_bytes().splitlines()
    assert all(json.loads(line) for line in lines)
    assert len(lines) == len((tmp_path / "whole").read_bytes().splitlines())


@pytest.mark.parametrize(("changed", "what"), [
    ({"seed": 1}, "seed"), ({"batch": 9}, "batch"), ({"budget": 0.5}, "budget"),
    ({"change_cost": 0.5}, "change_cost"), ({"only": [ERRORS]}, "space"),
    ({"base": Policy()}, "base, space"), ({"runs": planted("one")}, "runs"),
])
def test_a_study_of_another_tuning_is_refused(
    changed: dict[str, Any], what: str, tmp_path: Path
) -> None:
    tuning_of(tmp_path / "study", folds=0).run(10)
    before = (tmp_path / "study").read_bytes()
    with pytest.raises(InputError, match=f"made for another tuning: {what} differ"):
        tuning_of(tmp_path / "study", **{"folds": 0, **changed})
    assert (tmp_path / "study").read_bytes() == before


def test_a_study_that_would_come_out_differently_is_refused(tmp_path: Path) -> None:
    study = tmp_path / "study"
    tuning_of(study, folds=0).run(10)
    data = study.read_bytes()
    # Another value told in the batch that is not finished, as by another version.
    *rest, last = data.splitlines(keepends=True)
    trial = json.loads(last)
    trial["value"] = 0.99
    study.write_bytes(b"".join([*rest, json.dumps(trial).encode() + b"\n"]))
    with pytest.raises(InputError, match="trial 9 would come out differently"):
        tuning_of(study, folds=0).run(20)


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    one, other = (tuning_of(tmp_path / "study", folds=0) for _ in range(2))
    one.run(20)
    with pytest.raises(InputError, match="another process goes on with it"):
        other.run(20)


@pytest.mark.parametrize("data", [b"hello\n", b'{"a": 1}\n', b"[]\n", b"\x00\xff", b"{"])
def test_a_file_that_is_no_study_is_left_alone(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "other.jsonl"
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"study: .*other.jsonl is no journal"):
        tuning_of(path)
    assert path.read_bytes() == data


def test_a_study_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none" / "study"):
        with pytest.raises(InputError, match="study: "):
            tuning_of(path)


def test_optuna_says_nothing_and_its_logging_is_left_as_it_was(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    import optuna

    before = optuna.logging.get_verbosity()
    assert before <= logging.INFO, "or it would be quiet anyhow"
    tuning = tuning_of(tmp_path / "study")
    tuning.run(20)
    tuning.result()
    assert capfd.readouterr() == ("", "")
    assert optuna.logging.get_verbosity() == before


# --- policy files --------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def result() -> TuningResult:
    return tune(rotated(), "default", trials=30, only=[REPEATS, "count_cycles"], folds=3)


@pytest.mark.parametrize("ending", [".toml", ".yaml", ".yml", ".json"])
def test_a_policy_file_holds_the_policy_and_where_it_comes_from(
    ending: str, result: TuningResult, tmp_path: Path
) -> None:
    path = tmp_path / f"tuned{ending}"
    write(result, path, note="1 May")
    assert Policy.from_file(path) == result.policy
    first = path.read_bytes()
    write(result, path, note="1 May")
    assert path.read_bytes() == first == path.with_name(f"{path.name}.bak").read_bytes()
    again = tune(rotated(), "default", trials=30, only=[REPEATS, "count_cycles"], folds=3)
    write(again, tmp_path / f"again{ending}", note="1 May")
    assert (tmp_path / f"again{ending}").read_bytes() == first
    assert str(tmp_path).encode() not in first and b"1 May" in first


def test_provenance_says_what_was_done(result: TuningResult) -> None:
    from cellium_fast import __version__

    told = contents(result)["provenance"]
    assert told["made_by"].startswith(f"cellium-fast {__version__}, optuna ")
    assert told["settings"] == {
        "base": "default", "by": "source", "holdout": [], "folds": 3,
        "only": [REPEATS, "count_cycles"], "change_cost": 0.002, "seed": 0, "batch": 32,
        "trials": 30,
    }
    assert told["complete"] is True and "note" not in told
    assert told["sources"]["one"] == {
        "runs": 11, "failed": 6, "succeeded": 5, "rounds": 96,
        "content": result.sources["one"].content, "held_out": False,
    }
    assert told["trained"]["all"]["base"]["caught"] == "13 of 13"
    assert set(told["judged"]["by_source"]) == {"one", "two", "strict"}
    assert [fold["held_out"] for fold in told["folds"]] == [["one"], ["two"], ["strict"]]
    assert told["objective"]["disturbed_allowed"] == result.allowed


def test_a_policy_of_ones_own_is_written_with_what_it_has_besides(tmp_path: Path) -> None:
    base = SLOW.replace(gamma=0.5, tool_limits={"ls": 3})
    tuned = tune(planted(), base, trials=20, **ALONE)
    write(tuned, tmp_path / "tuned.toml")
    assert Policy.from_file(tmp_path / "tuned.toml") == tuned.policy
    assert tuned.policy.gamma == 0.5 and tuned.changes == {REPEATS: 4}


def test_functions_of_users_are_written_as_import_paths(tmp_path: Path) -> None:
    base = SLOW.replace(user_rules=(failed,))
    tuned = tune(planted(), base, trials=20, **ALONE)
    assert tuned.changes == {REPEATS: 4}
    write(tuned, tmp_path / "tuned.toml")
    text = (tmp_path / "tuned.toml").read_text()
    assert 'user_rules = [\n    "rules_of_users:failed",\n]' in text
    assert Policy.from_file(tmp_path / "tuned.toml") == tuned.policy

    @rule(proposes="retry")
    def local(features: Any) -> bool:
        return False

    tuned = tune(planted(), SLOW.replace(user_rules=(local,)), trials=10, **ALONE)
    with pytest.raises(PolicyError, match="local"):
        write(tuned, tmp_path / "local.toml")
    assert not (tmp_path / "local.toml").exists()


def test_differences_lead_from_one_policy_to_the_other() -> None:
    cellium = Policy.preset("cellium")
    for one, other in ((Policy(), cellium), (cellium, Policy()), (SLOW, Policy())):
        assert other.replace(**differences(one, other)) == one
    assert differences(SLOW, SLOW) == {}
    critical = differences(cellium, Policy())["rules"]["context_critical"]
    assert critical == {"actions": ["redirect"], "alone": False}


def test_toml_cannot_say_none(tmp_path: Path) -> None:
    base = SLOW.replace(compress_tries=None)
    tuned = tune(planted(), base, trials=20, **ALONE)
    with pytest.raises(InputError, match=r"compress_tries: it is None.*write \.json or \.yaml"):
        write(tuned, tmp_path / "tuned.toml")
    for name in ("tuned.json", "tuned.yaml"):
        write(tuned, tmp_path / name)
        assert Policy.from_file(tmp_path / name) == tuned.policy
    with pytest.raises(InputError, match=r"ends in \.toml"):
        write(tuned, tmp_path / "tuned.txt")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tuned.json", "tuned.yaml"]


@pytest.mark.parametrize("count", [20, 60])
def test_a_file_of_many_sources_can_be_read_back(count: int, tmp_path: Path) -> None:
    runs = [one for number in range(count) for one in planted(f"{number:0>60}", 1, 1, 0)]
    tuned = tune(runs, SLOW, trials=10, only=[REPEATS], folds=3)
    write(tuned, tmp_path / "tuned.yaml")
    assert (tmp_path / "tuned.yaml").stat().st_size < LARGEST_FILE / 2
    assert Policy.from_file(tmp_path / "tuned.yaml") == tuned.policy
    told = contents(tuned)["provenance"]
    if count == 60:
        assert (told["sources"]["sources"], told["sources"]["runs"]) == (60, 120)
    else:
        assert len(told["sources"]) == len(told["judged"]["by_source"]) == 20
