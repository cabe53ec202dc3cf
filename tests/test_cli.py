"""The command line: every option, every exit code, and what reaches which stream."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from cli_runs import EXAMPLES, as_json, call, calling_run, chat_run, start, write
from trace_files import RECORDINGS, needs_recordings

import cellium_fast
from cellium_fast import Action, Round, _records, traces
from cellium_fast.replay import replay


@pytest.fixture(autouse=True)
def wide_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")


# --- the program ---------------------------------------------------------------------------------
def test_version_and_help() -> None:
    assert call("--version").stdout == f"cellium-fast {cellium_fast.__version__}\n"
    assert "replay" in call("--help").stdout
    help_text = " ".join(call("replay", "--help").stdout.split())
    for words in (
        "--policy", "--decisions", "after terminate: rounds recorded after", "130",
        "saved: rounds of failing runs recorded after", "equal_calls_3",
    ):
        assert words in help_text
    assert "--sessions" in call("simulate", "-h").stdout


def test_commands_import_late() -> None:
    code = (
        "import sys, cellium_fast; before = set(sys.modules); import cellium_fast.cli; "
        "late = {'rich.table', 'rich.progress', 'numba', 'cellium_fast.replay', "
        "'cellium_fast.quality', "
        "'cellium_fast.traces', 'cellium_fast.simulate'}; "
        "sys.exit(str(late & (set(sys.modules) - before)) if late & set(sys.modules) else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("arguments", [
    [], ["fly"], ["replay"], ["replay", "{file}", "--fly"], ["replay", "{file}", "--limit", "-1"],
    ["replay", "{file}", "--limit", "0"], ["replay", "{file}", "--limit", "many"],
    ["replay", "{file}", "--seed", "-1"], ["replay", "{file}", "--seed", str(2**64)],
    ["replay", "{file}", "--policy", "nonsense"], ["replay", "{file}", "--policy", "no.toml"],
    ["replay", "{file}", "no_such_file"], ["replay", "{file}", "--show", "nobody"],
    ["replay", "{file}", "--show", "loop", "--summary"],
    ["replay", "{file}", "--decisions", "{folder}"],
    ["replay", "{file}", "--decisions", "{folder}/none/out.jsonl"],
    ["replay", "{file}", "--decisions", "{file}"],
    ["simulate", "--sessions", "0"], ["simulate", "--rounds", "-1"],
    ["replay", "{file}", "--decisions", "-"],
    ["simulate", "--sessions", str(2**31)], ["simulate", "--rounds", str(10**30)],
    ["simulate", "--seed", str(2**63)], ["simulate", "--policy", "nonsense"],
])
def test_wrong_usage_is_2(arguments: list[str], made_up: Path) -> None:
    before = made_up.read_bytes()
    names = {"file": made_up, "folder": made_up.parent}
    result = call(*(argument.format(**names) for argument in arguments))
    assert result.exit_code == 2
    assert result.stderr or not arguments
    assert made_up.read_bytes() == before
    assert [path.name for path in made_up.parent.iterdir()] == ["made_up.jsonl"]


# --- reading -------------------------------------------------------------------------------------
def test_broken_lines_and_files_are_named_and_skipped(made_up: Path) -> None:
    folder = made_up.parent
    write(made_up, "{broken", chat_run("left", ["one"]), '["list"', chat_run("right", ["two"]))
    write(folder / "empty.json")
    write(folder / "spans.json", '{"resourceSpans": []}')
    result = call("replay", folder, "--json")
    assert result.exit_code == 0
    summary = json.loads(result.stdout)
    assert (summary["total"]["runs"], summary["problems"], summary["files"]) == (2, 4, 3)
    lines = result.stderr.splitlines()
    assert lines[0] == f"{folder / 'empty.json'}: empty: no runs in it"
    assert lines[1].startswith(f"{made_up}:1: not JSON")
    assert lines[2].startswith(f"{made_up}:3: not JSON")
    assert lines[3].startswith(f"{folder / 'spans.json'}: unsupported format (otlp)")


def test_a_run_that_no_session_can_take_is_named_and_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(path: Path) -> list[traces.RecordedRun]:
        rounds = {"odd": Round(progress=7), "fine": Round(text="one")}
        return [traces.RecordedRun("x", path, name, [one], [0]) for name, one in rounds.items()]

    monkeypatch.setattr(traces, "read", read)
    path = write(tmp_path / "a.jsonl")
    result = call("replay", path, "--json")
    assert json.loads(result.stdout)["total"]["runs"] == 1
    assert "run 'odd'" in result.stderr
    assert call("replay", path, "--show", "odd").exit_code == 1


def test_an_impossible_context_size_costs_no_run(tmp_path: Path) -> None:
    huge = chat_run("huge", ["one", "two"], context_limit=2**63)
    for message in huge["messages"][1:]:
        message["usage"] = {"prompt_tokens": 2**63}
    result = call("replay", write(tmp_path / "a.jsonl", huge), "--json")
    assert json.loads(result.stdout)["total"]["rounds"] == 2
    assert len(result.stderr.splitlines()) == 2
    assert "run 'huge', message 2: usage: an impossible number of tokens" in result.stderr


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_a_pipe_in_a_directory_is_passed_over(made_up: Path) -> None:
    os.mkfifo(made_up.parent / "x.json")
    running = start("replay", made_up.parent, "--json")
    try:
        out, err = running.communicate(timeout=60)
    finally:
        running.kill()
    value = json.loads(out)
    assert (value["files"], value["passed_over"], value["total"]["runs"], err) == (1, 1, 3, b"")


def test_an_unreadable_file_is_named_and_the_others_are_read(
    made_up: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Permissions do not bind root, so the file is locked here.
    locked = write(made_up.parent / "locked.json", chat_run("a", ["one"]))
    may, opened = os.access, Path.open

    def access(path: Any, mode: int, **options: Any) -> bool:
        return os.fspath(path) != str(locked) and may(path, mode, **options)

    def open_it(path: Path, *arguments: Any, **options: Any) -> Any:
        if path == locked:
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *arguments, **options)

    monkeypatch.setattr(os, "access", access)
    monkeypatch.setattr(Path, "open", open_it)
    for paths in ([locked, made_up], [made_up.parent]):
        result = call("replay", *paths, "--json")
        assert result.exit_code == 0
        value = json.loads(result.stdout)
        assert (value["files"], value["problems"], value["total"]["runs"]) == (2, 1, 3)
        assert result.stderr == f"{locked}: cannot be read: Permission denied\n"


def test_files_passed_over_are_counted(made_up: Path) -> None:
    assert "passed over" not in call("replay", made_up.parent).stdout
    folder = made_up.parent / "notes"
    folder.mkdir()
    for name in ("a.txt", "b.csv", ".c.json"):
        write(folder / name, "{}")
    suffixes = ".json, .jsonl, .ndjson, .traj, .eval files are looked at"
    told = " ".join(call("replay", made_up.parent).stdout.split())
    assert f"Files: 1, passed over: 3 (in directories {suffixes}" in told
    result = call("replay", folder)
    assert result.exit_code == 1
    assert "no run could be read. Files: 0, passed over: 3 (in" in result.stderr
    assert suffixes in result.stderr
    assert as_json(made_up, folder, folder / "a.txt")["passed_over"] == 2


@pytest.mark.parametrize("content", ["", "{broken", '{"resourceSpans": []}'])
def test_nothing_read_is_1(content: str, tmp_path: Path) -> None:
    assert call("replay", tmp_path).exit_code == 1
    path = write(tmp_path / "a.json", content)
    output = tmp_path / "out.jsonl"
    result = call("replay", path, "--decisions", output)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "no run could be read" in result.stderr
    assert not output.exists()


def test_limit(made_up: Path) -> None:
    assert as_json(made_up, "--limit", 2)["total"]["runs"] == 2
    assert as_json(made_up, EXAMPLES, "--limit", 3)["total"]["runs"] == 3
    assert as_json(made_up, "--limit", 9)["total"]["runs"] == 3


# --- the summary ---------------------------------------------------------------------------------
def test_summary_against_a_hand_count(made_up: Path) -> None:
    summary = as_json(made_up, "--policy", "cellium")
    expected = {
        "runs": 3, "rounds": 10, "succeeded": 1, "failed": 1, "unlabelled": 1,
        "runs_with": {"continue": 3, "retry": 0, "redirect": 0, "compress": 0, "terminate": 1},
        "decisions": {"continue": 7, "retry": 0, "redirect": 0, "compress": 0, "terminate": 3},
        "median_first_intervention": 5, "rounds_after_terminate": 2, "rounds_after_redirect": 0,
    }
    assert summary["total"] == expected
    assert summary["sources"] == {"openai-chat": expected}
    assert summary["outcomes"]["failed"]["rounds_after_terminate"] == 2
    assert summary["outcomes"]["succeeded"]["runs"] == 1
    assert (summary["policy"], summary["seed"], summary["problems"]) == ("cellium", 0, 0)
    assert summary["rounds_per_second"] <= summary["loop_rounds_per_second"]


def test_summary_by_default_against_a_hand_count(made_up: Path) -> None:
    summary = as_json(made_up)
    assert summary["policy"] == "default"
    # The loop of texts has no call: a reason for retry from its fourth round on.
    assert summary["total"] == {
        "runs": 3, "rounds": 10, "succeeded": 1, "failed": 1, "unlabelled": 1,
        "runs_with": {"continue": 3, "retry": 1, "redirect": 0, "compress": 0, "terminate": 0},
        "decisions": {"continue": 6, "retry": 4, "redirect": 0, "compress": 0, "terminate": 0},
        "median_first_intervention": 4, "rounds_after_terminate": 0, "rounds_after_redirect": 0,
    }


def test_table_against_a_hand_count(made_up: Path) -> None:
    out = call("replay", made_up, "--policy", "cellium").stdout
    rows = [" ".join(line.split()) for line in out.splitlines()]
    for row in (
        "openai-chat 3 10 1 1 1 0 0 0 1 5 2 0", "total 3 10 1 1 1 0 0 0 1 5 2 0",
        "failed 1 7 0 1 0 0 0 0 1 5 2 0", "succeeded 1 2 1 0 0 0 0 0 0 - 0 0",
    ):
        assert row in rows
    assert f"{made_up}:loop: 7 rounds, failed" in out
    assert "(1 in all; look closer with the same paths and --show RUN)" in out
    assert "Files: 1. Runs: 3. Rounds: 10." in out
    assert "rounds/s in the control loop" in out


@pytest.mark.parametrize("columns", [120, 80, 60, 40, 20])
def test_no_number_and_no_name_is_broken_in_a_narrow_terminal(
    columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repeated = [chat_run(f"r{number}", ["same"] * 9, success=False) for number in range(1_100)]
    write(tmp_path / "many.jsonl", *repeated)
    paths = (EXAMPLES, tmp_path)
    value = as_json(*paths)
    monkeypatch.setenv("COLUMNS", str(columns))
    table = call("replay", *paths).stdout.split("\n\nretry .. ")[0]
    words = Counter(table.split())
    summaries = {**value["sources"], "total": value["total"]}
    summaries |= {name: one for name, one in value["outcomes"].items() if one["runs"]}
    expected: Counter[str] = Counter()
    for one in summaries.values():
        expected.update(f"{one[name]:,}" for name in (
            "runs", "rounds", "succeeded", "failed", "unlabelled", "rounds_after_terminate",
            "rounds_after_redirect",
        ))
        expected.update(
            f"{one['runs_with'][action]:,}"
            for action in ("retry", "redirect", "compress", "terminate")
        )
        median = one["median_first_intervention"]
        expected["-" if median is None else f"{median:g}"] += 1
    assert {word: count for word, count in words.items() if not word[0].isalpha()
            and "\u2500" not in word} == expected
    assert expected["9,914"] == 1 and expected[f"{value['total']['runs']:,}"] > 0
    assert set(summaries) <= set(words)
    if columns < 88:
        assert {"succeeded", "unlabelled", "redirect", "compress", "terminate"} <= set(words)
    if columns >= 40:
        assert max(map(len, table.splitlines())) <= columns


def test_a_pipe_gets_the_table_in_one_piece(
    made_up: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for columns in (None, "0", "wide"):
        monkeypatch.delenv("COLUMNS", raising=False)
        if columns is not None:
            monkeypatch.setenv("COLUMNS", columns)
        out, _ = start("replay", made_up, "--policy", "cellium").communicate()
        assert b"total 3 10 1 1 1 0 0 0 1 5 2 0" in b" ".join(out.split())


def test_same_seed_same_output(tmp_path: Path) -> None:
    outputs = []
    for seed in (1, 1):
        path = tmp_path / "out.jsonl"
        summary = as_json(EXAMPLES, "--seed", seed, "--decisions", path)
        numbers = {name: value for name, value in summary.items() if "second" not in name}
        outputs.append((numbers, path.read_bytes()))
    assert outputs[0] == outputs[1]


# --- options -------------------------------------------------------------------------------------
def test_policy_by_name_and_from_files(made_up: Path) -> None:
    folder = made_up.parent / "policies"
    folder.mkdir()
    (folder / "a.toml").write_text("[rules.output_loop]\nrepeats = 3\nafter_redirect = false\n")
    (folder / "a.yaml").write_text("preset: cellium\nrules: {output_loop: {repeats: 4}}\n")
    (folder / "a.json").write_text(
        '{"preset": "cellium", "rules": {"output_loop": {"enabled": false}}}'
    )
    policies = ["default", "cellium", *(folder / f"a.{kind}" for kind in ("toml", "yaml", "json"))]
    terminated = [
        as_json(made_up, "--policy", policy)["total"]["decisions"]["terminate"]
        for policy in policies
    ]
    assert terminated == [0, 3, 5, 4, 0]


def test_a_wrong_policy_file_names_the_field(made_up: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text('{"rules": {"output_loop": {"repeats": -1}}}')
    result = call("replay", made_up, "--policy", tmp_path / "bad.json")
    assert result.exit_code == 2
    assert "rules.output_loop.repeats" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_decisions_are_the_engines_own(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    assert call("replay", EXAMPLES, "--seed", 3, "--decisions", output).exit_code == 0
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert list(lines[0]) == [
        "source", "path", "run", "round", "action", "candidates", "rules", "cause", "tiebreak",
        "propensity", "reward", "features", "evidence",
    ]
    found = [one for path in traces.find_files([EXAMPLES]) for one in traces.read(path)]
    expected = replay(found, seed=3)
    actions: dict[tuple[str, str, str], list[str]] = {}
    for line in lines:
        run = (line["source"], line["path"], line["run"])
        actions.setdefault(run, []).append(line["action"])
        assert line["round"] == len(actions[run]) == line["features"]["round"]
        assert line["action"] in line["candidates"]
        assert line["tiebreak"] == (len(line["candidates"]) > 1)
        assert list(line["evidence"]) == line["rules"]
        assert line["reward"] is None or 0 <= line["reward"] <= 1
    assert actions == {
        (run.name.source, str(run.name.path), run.name.run): [
            str(Action(code)) for code in run.actions
        ]
        for run in expected.runs
    }
    assert Counter(line["action"] for line in lines)["continue"] < len(lines)
    assert tuple(lines[0]["features"]) == _records.FEATURES.names


def test_decisions_replace_a_file_only_when_all_is_done(made_up: Path) -> None:
    output = made_up.parent / "out.txt"
    output.write_text("old")
    assert call("replay", made_up, "--decisions", output, "--show", "nobody").exit_code == 2
    assert output.read_text() == "old"
    assert call("replay", made_up, "--decisions", output).exit_code == 0
    assert len(output.read_text().splitlines()) == 10
    assert sorted(path.name for path in made_up.parent.iterdir()) == ["made_up.jsonl", "out.txt"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_a_full_disk_is_1(made_up: Path) -> None:
    result = call("replay", made_up, "--decisions", "/dev/full")
    assert result.exit_code == 1
    assert "/dev/full" in result.stderr


@pytest.mark.skipif(not os.path.exists("/dev/stdout"), reason="there is no /dev/stdout")
def test_decisions_into_a_pipe(made_up: Path) -> None:
    out, err = start("replay", made_up, "--decisions", "/dev/stdout").communicate()
    assert (err, out.count(b'{"source":')) == (b"", 10)


# --- one run -------------------------------------------------------------------------------------
@pytest.mark.parametrize("wanted", ["loop", "{file}:loop", "made_up.jsonl:loop"])
def test_show(wanted: str, made_up: Path) -> None:
    paths = (made_up, "--policy", "cellium")
    result = call("replay", *paths, "--show", wanted.format(file=made_up))
    assert result.exit_code == 0
    rows = [line.split(maxsplit=3) for line in result.stdout.splitlines() if "text" in line]
    assert [row[:3] for row in rows][3:5] == [["4", "text", "continue"], ["5", "text", "terminate"]]
    assert "output loop" in rows[4][3]
    assert "7 rounds, failed" in result.stdout

    shown = as_json(*paths, "--show", "loop")
    assert (shown["run"], shown["success"], len(shown["decisions"])) == ("loop", False, 7)
    assert shown["decisions"][4]["cause"] == "output_loop"


def test_show_names_calls_and_user_messages(tmp_path: Path) -> None:
    run = calling_run("a", ["look", "look"])
    run["messages"].append({"role": "user", "content": "no, the other one"})
    run["messages"].append({"role": "assistant", "content": "I see"})
    out = call("replay", write(tmp_path / "a.jsonl", run), "--show", "a").stdout
    assert "  look" in out
    assert "(user message) text" in out


def test_show_folds_the_quiet_rounds_of_a_long_run(tmp_path: Path) -> None:
    run = chat_run("a", [str(number) for number in range(60)] + ["same"] * 6)
    path = write(tmp_path / "a.jsonl", run)
    out = call("replay", path, "--policy", "cellium", "--show", "a").stdout
    assert "1-64" in out
    assert "66 rounds" in out
    assert len(out.splitlines()) < 12


def test_show_an_unknown_or_ambiguous_run_lists_some(made_up: Path) -> None:
    result = call("replay", made_up, "--show", "nobody")
    assert result.exit_code == 2
    assert f"{made_up}:loop, {made_up}:fine, {made_up}:short" in result.stderr
    other = write(made_up.parent / "other.jsonl", chat_run("loop", ["one"]))
    result = call("replay", made_up.parent, "--show", "loop")
    assert result.exit_code == 2
    assert f"{made_up}:loop, {other}:loop" in result.stderr
    assert call("replay", made_up.parent, "--show", f"{other}:loop").exit_code == 0


# --- real recordings -----------------------------------------------------------------------------
@needs_recordings
def test_recordings(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    summary = as_json(RECORDINGS, "--decisions", output)
    total = summary["total"]
    assert total["runs"] >= 1000
    with output.open() as lines:
        assert sum(1 for _ in lines) == total["rounds"]
    assert summary["sources"]["tau-bench"]["succeeded"] >= 84
