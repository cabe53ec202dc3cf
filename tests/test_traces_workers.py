"""Many files read by several processes: the same runs, decisions and problems as by one."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runs import call as run_command
from trace_files import (
    asks,
    call,
    dies_at_once,
    dies_at_three,
    doubled,
    folder_of_work,
    gives,
    refuses_three,
    sleeps,
)

from cellium_fast import InputError, Round, RoundBatch, ToolCall, lockstep
from cellium_fast.replay import ReplayResult, read_files, replay
from cellium_fast.rounds import CALL_COLUMNS, ROUND_COLUMNS
from cellium_fast.traces import Problem, RecordedRun, packed
from cellium_fast.traces.workers import in_order


def conversation(chance: np.random.Generator) -> dict[str, Any]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "begin"}]
    for number in range(int(chance.integers(0, 12))):
        tool = str(chance.choice(["look", "find"]))
        messages.append(asks(call(f"c{number}", tool, json.dumps({"n": int(chance.integers(2))}))))
        messages.append(gives(str(chance.choice(["found", "", "Error: no"])), f"c{number}"))
    return {"messages": messages, "success": bool(chance.integers(2))}


@pytest.fixture
def recordings(tmp_path: Path) -> list[Path]:
    chance = np.random.default_rng(11)
    paths = []
    for number in range(9):
        lines = [json.dumps(conversation(chance)) for _ in range(int(chance.integers(1, 20)))]
        if number % 4 == 1:
            lines.insert(len(lines) // 2, "{broken")
        paths.append(tmp_path / f"{number}.jsonl")
        paths[-1].write_text("\n".join(lines))
    return [*paths[:3], tmp_path / "missing.json", *paths[3:]]


@pytest.fixture
def pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let several processes pay for the few bytes of a test."""
    monkeypatch.setattr(packed, "BYTES_A_PROCESS", 1)
    monkeypatch.setattr(packed, "BATCH_BYTES", 4_000)


def outcome(files: list[Path], jobs: int) -> tuple[Any, ...]:
    told: list[Problem] = []
    read: list[Path] = []
    result = replay(read_files(files, jobs, on_file=read.append), seed=5, on_problem=told.append)
    assert read == files
    return plain(result), list(map(str, told))


def plain(result: ReplayResult) -> list[tuple[Any, ...]]:
    return [
        (str(run.name), run.success, run.actions.tolist(), run.rounds_after_redirect)
        for run in result.runs
    ]


@pytest.mark.usefixtures("pays")
def test_the_number_of_processes_changes_nothing(
    recordings: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Many groups, so that what a group learned shows in the next; they end amid what was packed.
    monkeypatch.setattr(lockstep, "GROUP_SIZE", 60)
    monkeypatch.setattr(lockstep, "CHUNK_SIZE", 16)
    alone = outcome(recordings, 1)
    assert len({tuple(actions) for _, _, actions, _ in alone[0]}) > 10
    assert len(alone[1]) == 3
    for jobs in (2, 3):
        assert outcome(recordings, jobs) == alone


def test_groups_end_at_the_same_runs_however_they_were_packed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chance = np.random.default_rng(2)
    runs = [
        RecordedRun("x", Path("x"), str(number), [Round()] * length, [0] * length)
        for number, length in enumerate(chance.integers(0, 9, 120).tolist())
    ]
    monkeypatch.setattr(lockstep, "GROUP_SIZE", 70)
    for chunk in (1, 16, 40):
        monkeypatch.setattr(lockstep, "CHUNK_SIZE", chunk)
        monkeypatch.setattr(packed, "CHUNK_SIZE", chunk)
        expected = group_names(packed.packed(runs))
        assert len(expected) > 4
        for other in (1, 7, 1_000):
            monkeypatch.setattr(packed, "CHUNK_SIZE", other)
            assert group_names(packed.packed(runs)) == expected


def group_names(found: Any) -> list[list[str]]:
    return [
        [run.name.run for run in group.runs]
        for group in lockstep.groups(found) if not isinstance(group, Problem)
    ]


def test_a_part_of_packed_runs_is_what_its_runs_are_packed_to() -> None:
    rounds = [
        Round([ToolCall("look", number, f"{other}") for other in range(number % 3)], text="a")
        for number in range(8)
    ]
    runs = [
        RecordedRun("x", Path("x"), f"{start}", rounds[start:end], [0] * (end - start))
        for start, end in ((0, 2), (2, 2), (2, 5), (5, 8))
    ]
    (whole,) = packed.pack_together(runs)
    assert isinstance(whole, packed.PackedRuns)
    for start, end in ((0, 1), (1, 2), (1, 3), (2, 4), (0, 4)):
        (expected,) = packed.pack_together(runs[start:end])
        assert isinstance(expected, packed.PackedRuns)
        part = whole.part(start, end)
        assert part.runs == expected.runs
        assert columns(part.rounds) == columns(expected.rounds)


def columns(batch: RoundBatch) -> dict[str, list[Any]]:
    names = ("call_offsets", *CALL_COLUMNS, *ROUND_COLUMNS)
    return {name: np.nan_to_num(getattr(batch, name)).tolist() for name in names}


def test_packed_runs_and_recorded_ones_may_be_mixed(recordings: list[Path]) -> None:
    alone = list(read_files(recordings))
    some, others = alone[:20], alone[20:]
    assert plain(replay([*packed.packed(some), *others])) == plain(replay(alone))


@pytest.mark.usefixtures("pays")
def test_paths_are_those_of_the_folder_the_caller_is_in(
    recordings: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(recordings[0].parent)
    result = replay(read_files([Path(path.name) for path in recordings[:3]], 2))
    assert len(result.runs) > 3
    assert result.problems == 1


@pytest.mark.usefixtures("pays")
def test_what_only_this_process_can_open_it_reads_itself(
    recordings: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any) -> None:
        raise AssertionError("no process was wanted")

    monkeypatch.setattr(packed, "in_order", refuse)
    with pytest.raises(AssertionError, match="no process"):
        list(read_files(recordings, 2))
    assert list(read_files([*recordings, "/dev/null"], 2))
    monkeypatch.setattr(packed, "BYTES_A_PROCESS", 1 << 30)
    assert list(read_files(recordings, 2))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_a_named_pipe_is_read_by_this_process(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert packed._is_of_this_process(tmp_path / "pipe")
    assert not packed._is_of_this_process(tmp_path / "missing")


@pytest.mark.parametrize("jobs", [0, -1, 1.5, True, None, 10**9])
def test_a_wrong_number_of_jobs_is_refused(jobs: Any) -> None:
    with pytest.raises(InputError, match="jobs: wanted a whole number"):
        read_files([], jobs)


@pytest.mark.usefixtures("pays")
def test_the_command_prints_the_same_with_more_jobs(recordings: list[Path]) -> None:
    printed = []
    for options in (["--jobs", "1"], ["--jobs", "2"], []):
        result = run_command("replay", recordings[0].parent, "--json", *options)
        report = json.loads(result.stdout)
        printed.append((
            {name: value for name, value in report.items() if "second" not in name},
            result.stderr,
        ))
    assert printed[0] == printed[1] == printed[2]
    assert printed[0][0]["total"]["runs"] > 50
    assert len(printed[0][1].splitlines()) == 2
    assert run_command("replay", recordings[0], "--jobs", "0").exit_code == 2


@pytest.mark.usefixtures("pays")
def test_decisions_limit_and_show_are_read_by_one_process(
    recordings: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any) -> None:
        raise AssertionError("no process was wanted")

    monkeypatch.setattr(packed, "in_order", refuse)
    folder = recordings[0].parent
    result = run_command("replay", folder, "--jobs", "2", "--limit", "25", "--json")
    assert json.loads(result.stdout)["total"]["runs"] == 25
    output = folder / "decisions"
    assert run_command("replay", folder, "--jobs", "2", "--decisions", output).exit_code == 0
    assert len(output.read_text().splitlines()) > 100
    shown = run_command("replay", folder, "--jobs", "2", "--show", "0.jsonl:line 1")
    assert "0.jsonl:line 1" in shown.stdout


@pytest.mark.usefixtures("pays")
def test_the_command_names_what_a_lost_process_was_at(
    recordings: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "_read_batch", dies_at_once)
    with pytest.raises(ChildProcessError) as raised:
        run_command("replay", recordings[0].parent, "--jobs", "2")
    assert raised.value.filename.startswith(str(recordings[0].parent))
    assert raised.value.strerror.startswith("the process at work on it ended")


# The processes


def test_results_come_in_order_and_the_processes_leave() -> None:
    assert list(in_order(doubled, range(40), 3)) == list(range(0, 80, 2))
    assert list(in_order(doubled, [], 3)) == []
    assert not multiprocessing.active_children()


def test_no_more_is_worked_on_than_will_be_taken() -> None:
    results = in_order(doubled, range(1_000_000), 2)
    assert next(results) == 0
    assert len(multiprocessing.active_children()) == 2
    results.close()     # type: ignore[attr-defined]
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(("work", "error", "why"), [
    (refuses_three, ValueError, "three"),
    (dies_at_three, ChildProcessError, "the process at work on it ended"),
])
def test_what_went_wrong_is_raised(
    work: Callable[[int], int], error: type[Exception], why: str
) -> None:
    taken = []
    with pytest.raises(error, match=why) as raised:
        taken.extend(in_order(work, range(1, 9), 1))
    if isinstance(raised.value, OSError):
        assert raised.value.filename == "3"
    assert not multiprocessing.active_children()


def test_an_error_comes_when_its_turn_does() -> None:
    taken = []
    with pytest.raises(ValueError, match="three"):
        for result in in_order(refuses_three, range(9), 2):
            taken.append(result)
    assert taken == [0, 1, 2]


def test_they_work_in_the_folder_of_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert list(in_order(folder_of_work, [1], 1)) == [os.path.realpath(tmp_path)]


@pytest.mark.skipif(os.name == "nt", reason="signals of a process group")
@pytest.mark.parametrize("to_all", [True, False])
def test_an_interrupt_ends_all_of_them_quietly(tmp_path: Path, to_all: bool) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from cellium_fast.traces.workers import in_order\n"
        f"from trace_files import {sleeps.__name__}\n"
        "if __name__ == '__main__':\n"
        "    try:\n"
        "        list(in_order(sleeps, range(5), 2))\n"
        "    except KeyboardInterrupt:\n"
        "        print('interrupted')\n"
    )
    running = subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert running.stdout is not None
    assert running.stdout.readline() == "asleep\n"
    (os.killpg if to_all else os.kill)(running.pid, signal.SIGINT)
    # Both pipes end when the last process that has them is gone.
    out, err = running.communicate(timeout=30)
    assert out.replace("asleep\n", "") == "interrupted\n"
    assert err == ""
