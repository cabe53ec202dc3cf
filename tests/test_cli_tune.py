"""`cellium-fast tune`: its tables, its JSON, the file it writes, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from cli_runs import ESCAPE, EXAMPLES, call, calling_run, chat_run, start, write

from cellium_fast import InputError, Policy
from cellium_fast.cli import tune as command
from cellium_fast.tuning import Tuning

REPEATS = "rules.repeated_round.repeats"
LONG = "a result that is too long to be slight"
SLOW = "tie_break = 'first'\n" + "".join(
    f"[rules.{name}]\n"
    + ("repeats = 6\nslight_repeats = 250\n" if name == "repeated_round" else "enabled = false\n")
    for name, _ in Policy().rules
)


@pytest.fixture(autouse=True)
def wide_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")


def recording(path: Path, failing: int = 4) -> Path:
    """Runs for which four equal rounds in a row are best: successful ones have three at most."""
    return write(
        path,
        *(calling_run(f"loop {number}", ["look"] * 9, LONG, success=False)
          for number in range(failing)),
        *(calling_run(f"good {number}", [*["look"] * 3, "see"], LONG, success=True)
          for number in range(3)),
        chat_run("unknown", ["one", "two"]),
    )


@pytest.fixture
def recordings(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    folder.mkdir()
    recording(folder / "one.jsonl")
    recording(folder / "two.jsonl", failing=5)
    return folder


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    path = tmp_path / "slow.toml"
    path.write_text(SLOW)
    return path


def arguments(recordings: Path, slow: Path, *more: object) -> list[object]:
    return ["tune", recordings, "--policy", slow, "--only", REPEATS, "--trials", 20, *more]


def test_the_policy_is_written_and_the_tables_say_what_it_is_worth(
    recordings: Path, slow: Path, tmp_path: Path
) -> None:
    out = tmp_path / "tuned.toml"
    result = call(*arguments(recordings, slow, "--by", "file", "--out", out, "--note", "try 1"))
    assert (result.exit_code, result.stderr) == (0, "")
    policy = Policy.from_file(out)
    assert policy == Policy.from_file(slow).replace(rules={"repeated_round": {"repeats": 4}})
    lines = [line.split() for line in result.stdout.splitlines()]
    assert [REPEATS, "6", "4"] in lines
    for heading in ("tuned on", "unseen: one.jsonl", "unseen: two.jsonl", "unseen: all"):
        assert heading in result.stdout
    # Of 9 rounds of 9 runs, 3 come after the sixth equal one, 5 after the fourth. All is the same
    # whichever runs are drawn, so "-" stands for the intervals.
    assert ["base", "9", "100.0", "-", "0", "0.0", "-", "27", "33.3", "-", "0", "0.0", "-"] in lines
    tuned = ["tuned", "9", "100.0", "-", "0", "0.0", "-", "45", "55.6", "-", "0", "0.0", "-"]
    assert tuned in lines
    assert f"Without one.jsonl: {REPEATS} = 4" in result.stdout
    assert "Labelled runs: 15, left out without a label: 2." in result.stdout
    assert ESCAPE not in result.stdout and "note = \"try 1\"" in out.read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs", "slow.toml", "tuned.toml"]


def test_json(recordings: Path, slow: Path) -> None:
    result = call(*arguments(
        recordings, slow, "--by", "file", "--holdout", "two*", "--budget", 0.5, "--seed", 3,
        "--json",
    ))
    assert (result.exit_code, result.stderr) == (0, "")
    value = json.loads(result.stdout)
    assert list(value) == [
        "files", "passed_over", "problems", "unlabelled", "settings", "complete", "tried",
        "changes", "from", "differs_from_default", "score", "base_score", "disturbed_allowed",
        "sources", "trained", "judged", "folds",
    ]
    assert (value["changes"], value["from"]) == ({REPEATS: 4}, {REPEATS: 6})
    assert value["settings"]["holdout"] == ["two*"] and value["settings"]["budget"] == 0.5
    assert value["disturbed_allowed"] == 1 and value["tried"] == 20 and value["complete"]
    assert value["sources"]["two.jsonl"]["held_out"] is True
    assert list(value["judged"]) == ["two.jsonl", "all"] and list(value["trained"]) == [
        "one.jsonl", "all",
    ]
    saved = value["judged"]["all"]["tuned"]["saved"]
    assert (saved["count"], saved["of"]) == (25, 45)
    assert saved["difference"] == pytest.approx(10 / 45)


def test_what_is_not_known_of_unseen_runs_is_said(recordings: Path, slow: Path) -> None:
    result = call(*arguments(recordings, slow))     # one format is one source
    assert "Nothing is known of unseen runs: wanted --holdout, or --folds and" in result.stdout
    assert json.loads(call(*arguments(recordings, slow, "--json")).stdout)["judged"] is None


def test_nothing_better_is_said(recordings: Path, slow: Path) -> None:
    result = call(*arguments(recordings, slow, "--change-cost", 1))
    assert result.exit_code == 0
    assert "No policy that was tried is better than the one it began with." in result.stdout


def test_a_budget_that_nothing_keeps_to_is_said(tmp_path: Path, slow: Path) -> None:
    path = write(tmp_path / "runs.jsonl", *(
        calling_run(f"{number}", ["look"] * 12, LONG, success=number % 2 == 0)
        for number in range(4)
    ))
    result = call("tune", path, "--policy", slow, "--only", REPEATS, "--budget", 0)
    assert "No policy that was tried keeps to the budget" in result.stdout
    assert "Successful runs disturbed: 2 of 0 allowed" in result.stdout


def test_a_study_goes_on(recordings: Path, slow: Path, tmp_path: Path) -> None:
    one, other, study = tmp_path / "one.json", tmp_path / "other.json", tmp_path / "study"
    assert call(*arguments(recordings, slow, "--out", one, "--study", study)).exit_code == 0
    size = study.stat().st_size
    assert call(*arguments(recordings, slow, "--out", other, "--study", study)).exit_code == 0
    assert study.stat().st_size == size and one.read_bytes() == other.read_bytes()
    with pytest.raises(InputError, match="made for another tuning: seed differ"):
        call(*arguments(recordings, slow, "--study", study, "--seed", 1))


def test_ctrl_c_keeps_the_best_so_far(
    recordings: Path, slow: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Tuning.run

    def interrupted(self: Tuning, trials: int, told: Any) -> None:
        run(self, trials // 2, told)
        raise KeyboardInterrupt

    monkeypatch.setattr(Tuning, "run", interrupted)
    out = tmp_path / "tuned.toml"
    result = call(*arguments(recordings, slow, "--out", out))
    assert result.exit_code == command.INTERRUPTED == 130
    assert result.stderr == "Interrupted: judging the best policy so far.\n"
    assert Policy.from_file(out).rules.repeated_round.repeats == 4
    monkeypatch.setattr(Tuning, "run", lambda self, trials, told: interrupted_at_once())
    result = call(*arguments(recordings, slow, "--out", tmp_path / "none.toml"))
    assert result.exit_code == 130 and not (tmp_path / "none.toml").exists()


def interrupted_at_once() -> None:
    raise KeyboardInterrupt


@pytest.mark.skipif(os.name == "nt", reason="no such signal")
def test_ctrl_c_for_real(recordings: Path, slow: Path, tmp_path: Path) -> None:
    out, study = tmp_path / "tuned.json", tmp_path / "study"
    more = ("--out", out, "--study", study, "--trials", 1_000_000)
    process = start(*arguments(recordings, slow, *more))
    deadline = time.monotonic() + 60
    while (not study.exists() or study.read_bytes().count(b"\n") < 40) and process.poll() is None:
        assert time.monotonic() < deadline, "nothing is tried"
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert b"Interrupted" in stderr and b"Traceback" not in stderr and REPEATS.encode() in stdout
    assert json.loads(out.read_bytes())["provenance"]["complete"] is False


@pytest.mark.parametrize(("more", "message"), [
    (["--out", "tuned.txt"], "--out: tuned.txt: wanted a name that ends in .toml, .yaml"),
    (["--out", "none/tuned.toml"], "--out: none/tuned.toml: "),
    (["--policy", "none"], "--policy: wanted default, cellium or"),
])
def test_wrong_usage(recordings: Path, slow: Path, more: list[Any], message: str) -> None:
    result = call(*arguments(recordings, slow, *more))
    assert result.exit_code == 2 and message in result.stderr and "Traceback" not in result.stderr


@pytest.mark.parametrize(("more", "message"), [
    (["--holdout", "none"], "holdout: wanted sources of the runs"),
    (["--only", "gamma"], "only: wanted parameters that decide"),
    (["--by", "day"], "by: wanted one of source, folder, file"),
    (["--folds", 1], "folds: wanted at least 2"),
])
def test_what_a_tuning_refuses(
    recordings: Path, slow: Path, more: list[Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):      # which `main` says, and leaves with 2
        call(*arguments(recordings, slow, "--out", tmp_path / "tuned.toml", *more))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs", "slow.toml"]


def test_a_result_does_not_take_the_place_of_what_is_read(
    recordings: Path, slow: Path, tmp_path: Path
) -> None:
    one = recordings / "one.jsonl"
    one.rename(recordings / "one.json")
    result = call(*arguments(recordings, slow, "--out", recordings / "one.json"))
    assert result.exit_code == 2 and "among the files to read" in result.stderr
    study = tmp_path / "study.json"
    result = call(*arguments(recordings, slow, "--out", study, "--study", study))
    assert result.exit_code == 2 and "is the study; wanted another place" in result.stderr


def test_no_run_to_tune_on(tmp_path: Path) -> None:
    path = write(tmp_path / "runs.jsonl", chat_run("unknown", ["one", "two"]))
    result = call("tune", path)
    assert result.exit_code == 1 and "none of the 1 runs says how it ended" in result.stderr
    path = write(tmp_path / "runs.jsonl", calling_run("good", ["look"], success=True))
    process = start("tune", path)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 2 and b"there is no failing run to tune on" in stderr


def test_problems_are_named_and_strict(recordings: Path, slow: Path) -> None:
    (recordings / "broken.json").write_text("{")
    result = call(*arguments(recordings, slow, "--strict"))
    assert result.exit_code == 2 and "broken.json" in result.stderr
    assert "--strict: 1 problems in the files" in result.stderr and REPEATS in result.stdout


def test_the_examples_can_be_tuned_on() -> None:
    result = call("tune", EXAMPLES, "--trials", 3, "--folds", 0, "--only", REPEATS)
    assert (result.exit_code, result.stderr) == (0, "")
