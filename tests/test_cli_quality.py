"""`cellium-fast replay --summary`: its table, its JSON, and what it goes together with."""

from __future__ import annotations

import textwrap
from collections import Counter
from pathlib import Path

import pytest
from cli_runs import EXAMPLES, as_json, call, calling_run, chat_run, start, write

from cellium_fast.quality import Detector


@pytest.fixture(autouse=True)
def wide_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")


def labelled(folder: Path) -> Path:
    """One format with outcomes, and one without."""
    write(
        folder / "labelled.jsonl",
        calling_run("loop", ["look"] * 6, success=False),
        calling_run("good", ["look"] * 4, success=True),
        calling_run("short", ["look", "see"], success=False),
        chat_run("unknown", ["one", "two"]),
    )
    return folder


def test_quality_as_json_against_a_hand_count(tmp_path: Path) -> None:
    value = as_json(labelled(tmp_path), "--summary", "--policy", "cellium", "--seed", 3)
    assert list(value) == [
        "policy", "seed", "files", "passed_over", "problems", "sources", "total", "seconds",
    ]
    assert (value["policy"], value["seed"], value["files"]) == ("cellium", 3, 1)
    assert value["sources"] == {"openai-chat": value["total"]}
    total = value["total"]
    detectors = total.pop("detectors")
    assert total == {"runs": 4, "rounds": 14, "succeeded": 1, "failed": 2, "unlabelled": 1}
    assert list(detectors) == [str(detector) for detector in Detector]
    three = detectors["equal_calls_3"]
    assert list(three) == ["caught", "disturbed", "saved", "lost", "flagged"]
    assert {name: (one["count"], one["of"], one["share"]) for name, one in three.items()} == {
        "caught": (1, 2, 0.5), "disturbed": (1, 1, 1.0), "saved": (3, 8, 0.375),
        "lost": (1, 4, 0.25), "flagged": (4 + 2, 14, 6 / 14),
    }
    assert three["caught"]["low"] == pytest.approx(0.0945, abs=1e-4)
    assert three["caught"]["high"] == pytest.approx(0.9055, abs=1e-4)
    assert detectors["errors_5"]["flagged"]["count"] == 0
    assert detectors["policy"] == detectors["cellium"]
    assert detectors["policy_chosen"] == detectors["cellium_chosen"]


def test_quality_as_a_table_against_a_hand_count(tmp_path: Path) -> None:
    result = call("replay", labelled(tmp_path), EXAMPLES / "rain_gauge.traj", "--summary")
    assert (result.exit_code, result.stderr) == (0, "")
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    for block in ("openai-chat", "all"):
        start = lines.index(f"{block} of 2 of 1 of 8 of 4")
        flagged = "42.86" if block == "openai-chat" else "26.09"
        assert lines[start + 3].startswith("3 equal calls 1 50.0 9.5-90.5 1 100.00 20.65-100.00 ")
        assert lines[start + 3].endswith(f"3 37.5 1 {flagged}")
        assert [lines[start + place].split()[0] for place in (1, 2, 4, 5)] == [
            "policy", "cellium", "5", "5",
        ]
        assert "0 0.0 0.0-65.8 0 0.00 0.00-79.35 0 0.0 0 0.00" in lines[start + 5]
    head = lines.index("outcomes unknown policy cellium 3 equal calls 5 equal calls 5 errors")
    assert lines[head + 2].startswith("swe-agent ")
    assert lines[head + 2].endswith(" 0.00 0.00 0.00")
    assert "Policy: default. Files: 2. Runs: 5. Rounds: 23. Problems, named on stderr: 0." in lines
    assert "rounds/s" not in result.stdout


def test_quality_without_outcomes_is_only_what_was_flagged() -> None:
    out = call("replay", EXAMPLES / "rain_gauge.traj", "--summary").stdout
    table, _, legend = out.partition("\n\nA round is flagged")
    assert "caught" in legend and "caught" not in table
    assert [line.split()[0] for line in table.splitlines()[3:]] == ["swe-agent", "all"]


def test_quality_beside_other_options(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    paths = [labelled(tmp_path), "--summary", "--limit", 2]
    total = as_json(*paths, "--decisions", output)["total"]
    assert total == as_json(*paths)["total"]
    assert (total["runs"], total["unlabelled"]) == (2, 0)
    assert len(output.read_text().splitlines()) == total["rounds"] == 10


@pytest.mark.parametrize("columns", [120, 80, 40])
def test_no_figure_is_broken_in_a_narrow_terminal(
    columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = ("replay", labelled(tmp_path), EXAMPLES, "--summary")
    monkeypatch.setenv("COLUMNS", "200")
    whole = Counter(numbers(call(*paths).stdout))
    monkeypatch.setenv("COLUMNS", str(columns))
    out = call(*paths).stdout
    # The names of rows stand before each part again, and "5 errors" is one of them.
    assert not whole - Counter(numbers(out))
    assert set(numbers(out)) == set(whole)
    assert max(map(len, out.splitlines())) <= columns


def numbers(out: str) -> list[str]:
    table = out.split("\n\nA round is flagged")[0]
    return [word for word in table.split() if word[0].isdigit() or word == "-"]


def test_a_pipe_gets_the_quality_in_one_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    out, err = start("replay", labelled(tmp_path), "--summary").communicate()
    assert err == b""
    assert b"all of 2 of 1 of 8 of 4 policy 1" in b" ".join(out.split())


def test_readme_shows_the_quality_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    readme = (EXAMPLES.parent.parent / "README.md").read_text("utf-8")
    arguments, block = readme.partition("$ cellium-fast replay --summary ")[2].split("\n", 1)
    shown = textwrap.dedent(block.partition("\n    ...\n")[0])
    monkeypatch.chdir(EXAMPLES.parent.parent)
    monkeypatch.setenv("COLUMNS", "110")
    out = call("replay", "--summary", *arguments.split()).stdout
    told = "\n".join(line.rstrip() for line in out.splitlines())
    assert "5 errors" in shown and told.startswith(shown)
