"""What reaches which stream of the command line, and the simulate command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from cli_runs import ESCAPE, call, calling_run, start, write

from cellium_fast import CelliumError
from cellium_fast.cli import main
from cellium_fast.cli.output import printable, to_json


@pytest.fixture(autouse=True)
def wide_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")


# --- streams -------------------------------------------------------------------------------------
def test_text_from_files_cannot_steer_the_terminal(tmp_path: Path) -> None:
    evil = f"{ESCAPE}[2J[bold]x\n\u202e"
    path = write(
        tmp_path / "a.jsonl", calling_run(evil, [evil] * 7, f"Error: {evil}", success=False),
        f'{{"run_id": "{ESCAPE}"',
    )
    output = tmp_path / "out.jsonl"
    for arguments in ([], ["--show", evil], ["--decisions", output], ["--show", "none"]):
        result = call("replay", path, *arguments)
        for text in (result.stdout, result.stderr):
            assert all(line.isprintable() for line in text.splitlines())
    assert "[bold]x" in result.stderr
    assert "[bold]x" in call("replay", path, "--show", evil).stdout
    assert printable("a\x07[b]") == "a\ufffd[b]"


def test_a_pipe_gets_no_escape_codes(made_up: Path) -> None:
    write(made_up.parent / "bad.json", "{broken")
    running = [
        start("replay", made_up.parent, *arguments)
        for arguments in ([], ["--show", "loop"], ["--json"], ["--help"], ["--wrong"])
    ]
    for one in running:
        out, err = one.communicate()
        assert ESCAPE.encode() not in out + err
        assert b"Reading" not in err


def test_a_terminal_gets_a_progress_bar_and_whole_problem_lines(made_up: Path) -> None:
    pty = pytest.importorskip("pty")
    write(made_up.parent / "bad.json", "{broken")
    ours, theirs = pty.openpty()
    running = start("replay", made_up.parent, "--json", stderr=theirs)
    os.close(theirs)
    out, _ = running.communicate()
    seen = b""
    try:
        while piece := os.read(ours, 65_536):
            seen += piece
    except OSError:     # Linux says so when the other side is closed
        pass
    os.close(ours)
    assert running.returncode == 0
    assert json.loads(out)["total"]["runs"] == 3
    assert b"Reading" in seen
    assert b"not JSON" in seen


@pytest.mark.parametrize("arguments", [[], ["--json"], ["--show", "loop"]])
def test_a_closed_pipe_is_quiet(arguments: list[str], made_up: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    running = start("replay", made_up, *arguments, stdout=writing)
    os.close(writing)
    _, err = running.communicate()
    assert err == b""


STREAM_COMMANDS = [
    ["replay", "{file}"], ["replay", "{file}", "--json"], ["replay", "{file}", "--show", "loop"],
    ["--help"], ["--version"],
]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
@pytest.mark.parametrize("arguments", STREAM_COMMANDS)
def test_a_full_stdout_is_1_and_one_line(arguments: list[str], made_up: Path) -> None:
    with open("/dev/full", "wb") as full:
        running = start(*(one.format(file=made_up) for one in arguments), stdout=full)
        _, err = running.communicate()
    assert running.returncode == 1
    assert err.decode() == f"cellium-fast: stdout: {os.strerror(28)}\n"


@pytest.mark.skipif(os.name != "posix", reason="there is no such shell")
@pytest.mark.parametrize("arguments", STREAM_COMMANDS)
def test_closed_streams(arguments: list[str], made_up: Path) -> None:
    command = [sys.executable, "-m", "cellium_fast", *arguments]
    command = [one.format(file=made_up) for one in command]
    without_stdout, without_stderr = (
        subprocess.Popen(
            ["sh", "-c", f'exec "$@" {closed}', "sh", *command],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for closed in (">&-", "2>&-")
    )
    _, err = without_stdout.communicate()
    assert (without_stdout.returncode, err) == (1, b"cellium-fast: stdout is closed\n")
    out, _ = without_stderr.communicate()
    assert without_stderr.returncode == 0 and out


@pytest.mark.parametrize(("error", "code"), [
    (CelliumError("x: wanted\nanother"), 2), (MemoryError(), 1), (OSError(5, "broken"), 1),
])
def test_what_goes_wrong_is_one_line(
    error: Exception, code: int, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise error

    monkeypatch.setattr("cellium_fast.simulate.simulate", fail)
    monkeypatch.setattr(sys, "argv", ["cellium-fast", "simulate"])
    # Not pytest's own streams: they would be turned away.
    monkeypatch.setattr("cellium_fast.cli.TextIOWrapper", type(None))
    with pytest.raises(SystemExit) as left:
        main()
    out, err = capsys.readouterr()
    assert (left.value.code, out) == (code, "")
    assert err.startswith("cellium-fast: ") and len(err.splitlines()) == 1


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_interrupt_is_130_and_leaves_nothing_behind(tmp_path: Path) -> None:
    fifo, output = tmp_path / "runs.jsonl", tmp_path / "out.jsonl"
    os.mkfifo(fifo)
    running = start("replay", fifo, "--decisions", output)
    deadline = time.monotonic() + 60
    # The part file is there once the command is at work, and waits for the named pipe.
    while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.3)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert running.returncode == 130
    assert (out, err) == (b"", b"")
    assert list(tmp_path.iterdir()) == [fifo]


# --- simulate ------------------------------------------------------------------------------------
def test_simulate() -> None:
    from cellium_fast.simulate import Cap, simulate

    arguments = (
        "simulate", "--sessions", 50, "--rounds", 20, "--seed", 3, "--policy", "cellium",
        "--control", "cap:7",
    )
    result = call(*arguments, "--json")
    assert result.exit_code == 0
    value = json.loads(result.stdout)
    expected = json.loads(to_json(
        simulate(50, 20, seed=3, controls={"cap:7": Cap(7), "cellium": "cellium"}).as_json()
    ))
    for one in (value, expected):
        assert one.pop("seconds") > 0
        assert all(control.pop("rounds_per_second") > 0 for control in one["controls"].values())
    assert value == expected
    assert list(value["controls"]) == ["none", "cap:7", "cellium"]

    table = call(*arguments).stdout
    for name, control in expected["controls"].items():
        assert name in table
        assert f"{control['figures']['success']['mean']:.1%}" in table
        assert f"{control['figures']['rounds']['mean']:.2f}" in table
    for state, action in expected["best_actions"].items():
        row = next(line.split() for line in table.splitlines() if line.startswith(state))
        assert row[2] == action


def test_simulate_has_the_usual_controls() -> None:
    from cellium_fast.cli.simulate import CONTROLS
    from cellium_fast.simulate import USUAL

    value = json.loads(call("simulate", "--sessions", 5, "--rounds", 3, "--json").stdout)
    assert list(value["controls"]) == list(USUAL)
    assert [name for name in CONTROLS.split(", ") if ":" not in name] == list(USUAL)
    assert value["controls"]["default"]["rounds_per_second"] > 0


def test_simulate_fits_one_screen() -> None:
    lines = call("simulate", "--sessions", 20, "--rounds", 5).stdout.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 160


def test_simulate_says_the_range() -> None:
    for option in ("--sessions", "--rounds"):
        result = call("simulate", option, 2**31)
        assert (result.exit_code, result.stdout) == (2, "")
        assert f"{option}: wanted a number in [1, 2,147,483,647]" in result.stderr


@pytest.mark.parametrize("wrong", ["cup", "cap:0", "cap:", "cap:x", "cap:-3", "none:3"])
def test_simulate_knows_its_controls(wrong: str) -> None:
    result = call("simulate", "--control", wrong)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--control: wanted one of none, cap, cap:ROUNDS, equal_calls_stop" in result.stderr
    assert repr(wrong) in result.stderr


def test_simulate_with_other_reactions(tmp_path: Path) -> None:
    from cellium_fast.simulate import Tables

    shown = call("simulate", "--show-reactions")
    assert (shown.exit_code, shown.stdout) == (0, Tables.shipped().to_toml())
    file = tmp_path / "other.toml"
    file.write_text(shown.stdout.replace("giving_up]", "giving_up]\nx = 1.0"))
    result = call("simulate", "--reactions", file)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--reactions: " in result.stderr and "rates.giving_up.x: there is no" in result.stderr
    file.write_text("[rates]\nright_after_rework = 1.0\nrework = 1\n")
    arguments = ("simulate", "--sessions", 400, "--control", "none", "--json")
    usual, other = (
        json.loads(call(*arguments, *more).stdout)["controls"]["none"]["figures"]["success"]["mean"]
        for more in ((), ("--reactions", file))
    )
    assert other > usual
    assert "right_after_rework = 1.0\n" in call(
        "simulate", "--show-reactions", "--reactions", file
    ).stdout


def test_simulate_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "figure.png"
    arguments = ("simulate", "--sessions", 5, "--rounds", 3, "--plot", file)
    assert call(*arguments).exit_code == 0
    assert file.read_bytes().startswith(b"\x89PNG")
    file.unlink()
    monkeypatch.setitem(sys.modules, "cellium_fast.simulate.plot", None)    # not to be imported
    result = call(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--plot: this needs matplotlib: pip install 'cellium-fast[plot]'" in result.stderr
    assert list(tmp_path.iterdir()) == []
