"""The reader of mini-swe-agent trajectories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from trace_files import Files, Reading, asks, call, gives

from cellium_fast import traces
from cellium_fast.traces import mini_swe_agent

SAMPLE = Path(__file__).parent.parent / "examples" / "runs" / "kiln_curve.traj.json"
TASK = {"role": "user", "content": "Fix the kiln."}
FENCE = "```"


def says(text: str, *commands: str, label: str = "mswea_bash_command") -> dict[str, Any]:
    blocks = "".join(f"\n\n{FENCE}{label}\n{command}\n{FENCE}" for command in commands)
    return {"role": "assistant", "content": text + blocks}


def user(content: Any, **extra: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **({"extra": extra} if extra else {})}


def printed(output: str, code: int = 0) -> dict[str, Any]:
    return user(f"<returncode>{code}</returncode>\n<output>\n{output}</output>")


def trajectory(*messages: Any, **other: Any) -> dict[str, Any]:
    known = {"trajectory_format": "mini-swe-agent-1.1", "info": {"exit_status": "Submitted"}}
    return {**known, "messages": [TASK, *messages], **other}


def test_the_sample_trajectory() -> None:
    reading = Reading(traces.read(SAMPLE))
    assert not reading.problems
    run = reading.run
    assert (run.source, run.run, run.success) == ("mini-swe-agent", "kiln_curve.traj", None)
    assert [len(step.calls) for step in run.rounds] == [1] * 7 + [0] + [1] * 4
    calls = [one for step in run.rounds for one in step.calls]
    assert [one.error for one in calls] == [False, False, *[True] * 5, *[False] * 4]
    assert {one.tool for one in calls} == {"bash"}
    assert (calls[0].arguments, calls[0].result) == ("grep -rn overshoot src", "")
    assert calls[1].result == "curve.py\nkiln.py"
    assert calls[-1].result == "-GAIN = 8\n+GAIN = 5\n"
    assert run.rounds[0].text == "I look for the curve.\n\n"
    assert run.events == [0] * 12


@pytest.mark.parametrize(
    "value",
    [
        trajectory(says("x", "ls")),
        {"messages": [TASK, says("x", "ls"), printed("a")]},
        [TASK, says("x", "ls"), printed("a")],
    ],
)
def test_trajectories_are_told_by_content(files: Files, value: Any) -> None:
    assert files.detect(value).reader is mini_swe_agent
    assert len(files.read(value).run.rounds) == 1


@pytest.mark.parametrize("label", ["bash", "sh", "mswea_bash_command"])
def test_the_one_block_of_shell_code_is_the_command(files: Files, label: str) -> None:
    run = files.read(trajectory(says("Look.", "ls\npwd", label=label), printed("a\n"))).run
    (only,) = run.rounds[0].calls
    assert (only.arguments, only.result) == ("ls\npwd", "a")
    assert (run.rounds[0].text or "").strip() == "Look."


@pytest.mark.parametrize(
    "message", [says("x"), says("x", "ls", "pwd"), says("x", "print(1)", label="python")]
)
def test_without_exactly_one_block_there_is_no_call(files: Files, message: Any) -> None:
    reading = files.read(trajectory(message, user("Give one command."), says("y", "ls")))
    assert not reading.run.rounds[0].calls and not reading.problems
    assert reading.run.rounds[0].text == message["content"]
    assert reading.run.events == [0, 0]


@pytest.mark.parametrize(
    ("message", "result", "error"),
    [
        (printed("x\n"), "x", False),
        (printed("x\n", 2), "x", True),
        (printed(""), "", False),
        (printed("", 1), "", False),
        (printed("", 2), "", "exit code 2"),
        (printed("x\n", -1), "x", True),
        (printed("bash: line 1: ponc: command not found\n"),
         "bash: line 1: ponc: command not found", True),
        (user("<returncode>0</returncode>\n<warning>\nToo long.\n</warning>"),
         "<warning>\nToo long.\n</warning>", False),
        (user("<exception>late</exception>\n<returncode>-1</returncode>\n<output>\n</output>"),
         "", "exit code -1"),
        (user("The last command <command>x</command> timed out."),
         "The last command <command>x</command> timed out.", True),
        (user("diff --git <returncode>1</returncode>"),
         "diff --git <returncode>1</returncode>", False),
        (user("…", returncode=3, raw_output="x"), "x", True),
        (user("…", returncode=1, raw_output=""), "", False),
        (user("…", returncode=-1, raw_output="", exception_info="It took too long."),
         "", "It took too long."),
        (user([{"type": "text", "text": "x"}]), "x", False),
        (user(None), None, None),
    ],
)  # fmt: skip
def test_results(files: Files, message: Any, result: Any, error: Any) -> None:
    (only,) = files.read(trajectory(says("x", "ls"), message)).run.rounds[0].calls
    assert (only.result, only.error) == (result, error)


def test_tool_calls_instead_of_blocks(files: Files) -> None:
    answer = {"usage": {"prompt_tokens": 90, "completion_tokens": 10, "total_tokens": 100}}
    message = asks(call("a", "bash"), call("b", "bash"), extra={"response": answer})
    run = files.read(trajectory(
        message,
        gives("{}", "a", extra={"returncode": 0, "raw_output": "x"}),
        gives("{}", "b", extra={"returncode": 2, "raw_output": "y"}),
        {"role": "exit", "content": "", "extra": {"exit_status": "Submitted"}},
    )).run  # fmt: skip
    assert [(one.result, one.error) for one in run.rounds[0].calls] == [("x", False), ("y", True)]
    assert run.rounds[0].context_tokens == 100


def test_only_a_person_interrupts(files: Files) -> None:
    stop = user("No, leave that file.", interrupt_type="UserRejection")
    format_error = user("Give one command.", interrupt_type="FormatError")
    run = files.read(trajectory(
        says("a", "rm x"), stop, says("b"), format_error, says("c", "ls"), printed("x"),
    )).run  # fmt: skip
    assert run.events == [0, traces.USER_MESSAGE, 0]
    assert run.rounds[0].calls[0].result is None


@pytest.mark.parametrize(
    ("fields", "success"),
    [({}, None), ({"resolved": True}, True), ({"info": {"resolved": False}}, False),
     ({"info": 5}, None)],
)  # fmt: skip
def test_labels(files: Files, fields: dict[str, Any], success: bool | None) -> None:
    assert files.read(trajectory(says("x"), **fields)).run.success is success


@pytest.mark.parametrize(
    ("message", "word"),
    [
        (5, "message 2: a number without a known role"),
        ({"role": "narrator"}, "message 2: a message without a known role"),
        ({"role": "assistant", "content": 5}, "message 2: a number as content"),
        (asks(5), "message 2: a number as tool call"),
        (gives("x", "nowhere"), "message 2: a tool result that belongs to no call"),
    ],
)
def test_faults(files: Files, message: Any, word: str) -> None:
    reading = files.read(trajectory(message, says("x", "ls"), printed("a")))
    assert word in reading.problem.why
    assert reading.run.rounds[-1].calls[0].result == "a"


def test_lines(files: Files) -> None:
    named = {**trajectory(says("x")), "instance_id": "kiln-2"}
    reading = files.read_lines(named, 5, {**trajectory(), "messages": None}, trajectory(says("y")))
    assert [run.run for run in reading.runs] == ["kiln-2", "line 4"]
    assert [problem.line for problem in reading.problems] == [2, 3]
