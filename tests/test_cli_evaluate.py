"""`cellium-fast evaluate`: its tables, its JSON, labels of policies, and how it ends."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from cli_runs import ESCAPE, EXAMPLES, call, calling_run, chat_run, start, write

from cellium_fast.evaluate import evaluate
from cellium_fast.policy import Policy
from cellium_fast.replay import read_files
from cellium_fast.traces import find_files

NEVER = "".join(
    f"[rules.{name}]\nenabled = false\n" for name, _ in Policy().rules
)


@pytest.fixture(autouse=True)
def wide_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")


@pytest.fixture
def recordings(tmp_path: Path) -> Path:
    """Loops that `default` redirects, in failing and successful runs, and an unlabelled one."""
    folder = tmp_path / "runs"
    folder.mkdir()
    write(
        folder / "made_up.jsonl",
        *(calling_run(f"loop {number}", ["look"] * 8, success=False) for number in range(4)),
        *(calling_run(f"short {number}", ["look", "see"], success=False) for number in range(4)),
        calling_run("stubborn", ["look"] * 8, success=True),
        *(calling_run(f"good {number}", ["look", "see"], success=True) for number in range(3)),
        chat_run("unknown", ["one", "two"]),
    )
    return folder


@pytest.fixture
def never(tmp_path: Path) -> Path:
    """A policy that never steps in."""
    path = tmp_path / "never.toml"
    path.write_text(NEVER)
    return path


def as_json(*arguments: object) -> dict[str, Any]:
    result = call("evaluate", *arguments, "--json")
    assert result.exit_code == 0, result.stderr
    value: dict[str, Any] = json.loads(result.stdout)
    return value


def test_json_against_a_hand_count(recordings: Path, never: Path) -> None:
    value = as_json(recordings, "--policy", never, "--policy", "usual=default", "--seed", 3)
    assert list(value) == [
        "policies", "seed", "resamples", "files", "passed_over", "problems", "unlabelled",
        "sources", "total", "loop_seconds", "seconds", "loop_rounds_per_second",
    ]
    assert value["policies"] == {"never": str(never), "usual": "default"}
    assert (value["seed"], value["resamples"], value["unlabelled"]) == (3, 2_000, 1)
    total = value["total"]
    assert value["sources"] == {"openai-chat": total}
    assert [total[name] for name in ("runs", "rounds", "succeeded", "failed")] == [12, 54, 4, 8]
    usual, none = total["policies"]["usual"], total["policies"]["never"]
    assert {name: (one["count"], one["of"]) for name, one in none.items()} == {
        "caught": (0, 8), "disturbed": (0, 4), "saved": (0, 40), "lost": (0, 14),
    }
    for one in none.values():
        assert [one[name] for name in ("low", "high", "difference", "difference_low")] == [None] * 4
    counts = {name: (one["count"], one["of"]) for name, one in usual.items()}
    assert counts["caught"] == (4, 8) and counts["disturbed"] == (1, 4)
    # Each loop alike: as many rounds are saved of each as are lost of the one that succeeded.
    assert counts["saved"] == (4 * counts["lost"][0], 40) and 0 < counts["lost"][0] < 8
    for one in usual.values():
        assert one["share"] == one["difference"] == one["count"] / one["of"]
        assert (one["low"], one["high"]) == (one["difference_low"], one["difference_high"])
        assert one["low"] < one["share"] < one["high"]


def test_tables_against_the_api(recordings: Path) -> None:
    done = call("evaluate", recordings, EXAMPLES, "--seed", 5, "--resamples", 300)
    assert (done.exit_code, done.stderr) == (0, "")
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    result = evaluate(
        read_files(find_files([recordings, EXAMPLES])),
        {"default": Policy(), "cellium": Policy.preset("cellium")}, seed=5, resamples=300,
    )
    for name, compared in {**result.sources, "all": result.total}.items():
        first = compared["default"]
        start = lines.index(
            f"{name} of {first.caught.share.total} of {first.disturbed.share.total} "
            f"of {first.saved.share.total} of {first.lost.share.total}"
        )
        for place, (label, one) in enumerate(compared.items(), start + 1):
            cells = [label]
            for figure in (one.caught, one.disturbed, one.saved, one.lost):
                share, ends = figure.share.share, figure.interval
                cells.append(str(figure.share.count))
                cells.append("-" if share is None else f"{100 * share:.1f}")
                cells.append("-" if ends is None else f"{100 * ends[0]:.1f}-{100 * ends[1]:.1f}")
            assert lines[place] == " ".join(cells)
    saved = result.total["cellium"].saved
    assert saved.difference is not None and saved.difference_interval is not None
    low, high = saved.difference_interval
    differences = lines[lines.index("all"):]
    assert differences[1].startswith("cellium ")
    points = f"{100 * saved.difference:+.1f} {100 * low:+.1f} to {100 * high:+.1f}"
    assert f" {points} " in differences[1]
    assert lines[-1].startswith(
        f"Files: 8. Labelled runs: {len(result.runs)}, left out without a label: 5. "
        f"Rounds: {result.runs.rounds.sum()}. Problems, named on stderr: 0. "
    )


def test_one_policy_has_no_differences(recordings: Path) -> None:
    out = call("evaluate", recordings, "--policy", "cellium").stdout
    assert "less" not in out and " cellium " in out
    assert as_json(recordings, "--policy", "cellium")["policies"] == {"cellium": "cellium"}


def test_the_same_policy_under_two_labels_differs_in_nothing(recordings: Path) -> None:
    total = as_json(recordings, "--policy", "default", "--policy", "again=default")["total"]
    one, other = total["policies"].values()
    for figure, estimate in one.items():
        again = other[figure]
        assert [again[name] for name in ("count", "low", "high")] == [
            estimate[name] for name in ("count", "low", "high")
        ]
        assert (again["difference"], again["difference_low"]) == (0, None)


def test_labels_of_policies(recordings: Path, never: Path, tmp_path: Path) -> None:
    strange = tmp_path / "a=b.toml"
    strange.write_text(NEVER)
    named = as_json(
        recordings, "--policy", f"mine={never}", "--policy", strange, "--policy", f"c={strange}",
    )["policies"]
    assert named == {"mine": str(never), "a=b": str(strange), "c": str(strange)}


@pytest.mark.parametrize(("arguments", "message"), [
    (["--policy", "default", "--policy", "default"],
     "--policy: 'default' and 'default' are both called 'default'; wanted labels that differ"),
    (["--policy", "a=default", "--policy", "a=cellium"],
     "'default' and 'cellium' are both called 'a'"),
    (["--policy", "=default"], "wanted LABEL=NAME or LABEL=FILE, got '=default'"),
    (["--policy", "a="], "wanted LABEL=NAME or LABEL=FILE, got 'a='"),
    (["--policy", "a=nothing"], "--policy: wanted default, cellium or a .toml"),
    (["--policy", "missing.toml"], "--policy: missing.toml: No such file"),
    (["--seed", 2**64], "--seed: wanted a number below 2**64"),
    (["--resamples", 99], "--resamples"),
])
def test_what_is_refused(arguments: list[object], message: str, recordings: Path) -> None:
    done = call("evaluate", recordings, *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in " ".join(done.stderr.split())


def test_problems_are_named_and_strict_says_so(recordings: Path) -> None:
    write(recordings / "broken.jsonl", calling_run("a", ["look"], success=True), '{"messages": [')
    done = call("evaluate", recordings)
    assert done.exit_code == 0 and f"{recordings}/broken.jsonl:2: " in done.stderr
    assert "Problems, named on stderr: 1." in done.stdout
    strict = call("evaluate", recordings, "--strict")
    assert strict.exit_code == 2 and strict.stdout.split("\n")[:9] == done.stdout.split("\n")[:9]
    assert "--strict: 1 problems in the files, named above" in strict.stderr


def test_nothing_to_compare(tmp_path: Path) -> None:
    (tmp_path / "none.json").write_text("[]")
    done = call("evaluate", tmp_path)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "no run could be read. Files: 1." in done.stderr
    done = call("evaluate", EXAMPLES / "rain_gauge.traj")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "none of the 1 runs says how it ended. Files: 1." in done.stderr
    assert call("evaluate", tmp_path / "missing").exit_code == 2


@pytest.mark.parametrize("columns", [120, 80, 40])
def test_no_figure_is_broken_in_a_narrow_terminal(
    columns: int, recordings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    whole = Counter(numbers(call("evaluate", recordings, EXAMPLES).stdout))
    monkeypatch.setenv("COLUMNS", str(columns))
    out = call("evaluate", recordings, EXAMPLES).stdout
    assert Counter(numbers(out)) == whole
    tables = out.split("\n\nA policy steps in")[0]
    assert max(map(len, tables.splitlines())) <= columns


def numbers(out: str) -> list[str]:
    tables = out.split("\n\nA policy steps in")[0]
    return [word for word in tables.split() if word.lstrip("+-")[:1].isdigit() or word == "-"]


def test_a_pipe_gets_no_progress_and_no_colours(recordings: Path) -> None:
    out, err = start("evaluate", recordings).communicate()
    assert err == b"" and ESCAPE.encode() not in out
    assert b"caught" in out


def test_names_that_could_steer_a_terminal_are_shown_harmlessly(
    recordings: Path, never: Path
) -> None:
    done = call("evaluate", recordings, "--policy", "default", "--policy", f"x\x1b[31m={never}")
    assert done.exit_code == 0 and ESCAPE not in done.stdout
    assert "x\ufffd[31m" in done.stdout


def test_help_says_what_the_figures_are() -> None:
    words = " ".join(call("evaluate", "--help").stdout.split())
    for phrase in ("failing runs in which it stepped in", "bootstrap", "Exit codes", "LABEL="):
        assert phrase in words
