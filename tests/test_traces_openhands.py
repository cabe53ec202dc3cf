"""The reader of OpenHands histories, of newer and of old events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_files import Files, Reading

from cellium_fast import traces
from cellium_fast.traces import openhands
from cellium_fast.traces.evidence import command_error
from cellium_fast.traces.reader import Record

SAMPLE = Path(__file__).parent.parent / "examples" / "runs" / "mill_sluice.jsonl"


def acts(identity: Any, action: str = "run", response: Any = None, **args: Any) -> dict[str, Any]:
    event = {"id": identity, "source": "agent", "action": action, "args": args}
    if response is not None:
        model = {"id": response, "choices": [], "usage": {"total_tokens": 70}}
        event["tool_call_metadata"] = {"function_name": "shell", "model_response": model}
    return event


def sees(cause: Any, content: Any = "x", kind: str = "run", code: Any = None) -> dict[str, Any]:
    extras = {} if code is None else {"metadata": {"exit_code": code}}
    return {"source": "agent", "observation": kind, "cause": cause, "content": content,
            "extras": extras}  # fmt: skip


def says(source: str, content: str = "x") -> dict[str, Any]:
    return {"source": source, "action": "message", "args": {"content": content}}


def history(*events: Any, **other: Any) -> dict[str, Any]:
    return {"instance_id": "sluice-1", "history": list(events), **other}


def test_the_sample_runs() -> None:
    reading = Reading(traces.read(SAMPLE))
    assert not reading.problems
    stuck, sound = reading.runs
    assert [(run.source, run.run, run.success) for run in reading.runs] == [
        ("openhands", "sluice-7", None), ("openhands", "sluice-8", True),
    ]  # fmt: skip
    assert [[one.tool for one in step.calls] for step in stuck.rounds] == [
        ["execute_bash", "str_replace_editor"],
        *[["str_replace_editor"]] * 5,
        ["invalid action"],
        ["finish"],
    ]
    assert [bool(step.calls[-1].error) for step in stuck.rounds] == [False, *[True] * 6, False]
    assert stuck.rounds[1].calls[0].arguments == stuck.rounds[5].calls[0].arguments
    assert stuck.rounds[0].text == "I look at the code." and stuck.round_limit == 30
    assert [step.context_tokens for step in stuck.rounds[5:]] == [6260, None, 6460]
    assert [step.calls[0].error for step in sound.rounds] == [True, False, False, False, None]
    assert sound.events == [0, 0, 0, traces.USER_MESSAGE, 0]


OLD = [
    {"action": "message", "content": "Fix it.", "wait_for_response": False},
    {"action": "run", "command": "ls", "thought": "I look."},
    {"observation": "run", "content": "gate.py", "command": "ls", "exit_code": 0},
    {"action": "run_ipython", "code": "1 / 0", "thought": ""},
    {"observation": "run_ipython", "content": "-" * 75 + "\nZeroDivisionError", "code": "1 / 0"},
    {"action": "message", "content": "Done?", "wait_for_response": True},
    {"action": "message", "content": "Yes.", "wait_for_response": False},
    {"action": "finish", "outputs": {}, "thought": "Done."},
]


@pytest.mark.parametrize(
    "events", [OLD, [OLD[:1], OLD[1:3], OLD[3:5], OLD[5:7], OLD[7:]]], ids=["flat", "pairs"]
)
def test_old_events(files: Files, events: list[Any]) -> None:
    run = files.read({"history": events, "success": False}).run
    assert [step.text for step in run.rounds] == ["I look.", None, "Done?", "Done."]
    first, second = run.rounds[0].calls[0], run.rounds[1].calls[0]
    assert (first.tool, first.arguments, first.result, first.error) == (
        "run", {"command": "ls"}, "gate.py", False,
    )  # fmt: skip
    assert (second.tool, second.arguments, second.error) == ("run_ipython", {"code": "1 / 0"}, True)
    assert run.rounds[3].calls[0].result is None
    assert run.events == [0, 0, 0, traces.USER_MESSAGE] and run.success is False


@pytest.mark.parametrize(
    "value",
    [
        history(acts(1)),
        {"trajectory": [acts(1)]},
        [acts(1), sees(1)],
        [history(acts(1)), history(acts(1))],
        acts(1),
        {"history": [[acts(1), sees(1)]]},
        {"history": [{"action": "run", "command": "ls", "content": ""}]},
    ],
)
def test_histories_are_told_by_content(files: Files, value: Any) -> None:
    assert files.detect(value).reader is openhands
    assert all(len(run.rounds) == 1 for run in files.read(value).runs)


def test_lines_and_items(files: Files) -> None:
    nameless = {"history": [acts(1)]}
    lines = files.read_lines(history(acts(1)), 5, nameless)
    assert [run.run for run in lines.runs] == ["sluice-1", "line 3"]
    assert lines.problem.line == 2 and "no history of events" in lines.problem.why
    items = files.read([history(acts(1)), 5, nameless])
    assert [run.run for run in items.runs] == ["sluice-1", "item 3"]


def test_an_empty_history_is_a_run_without_rounds(files: Files) -> None:
    reading = files.read_lines({"instance_id": "a", "history": []}, history(acts(1)))
    assert [(run.run, len(run.rounds)) for run in reading.runs] == [("a", 0), ("sluice-1", 1)]
    assert not reading.problems


def test_events_on_lines_are_one_run(files: Files) -> None:
    reading = files.read_lines(says("user"), acts(1), sees(1, "a"), 5, acts(2), sees(2, "b"))
    assert [step.calls[0].result for step in reading.run.rounds] == ["a", "b"]
    assert "line 4: a number without a known role" in reading.problem.why


def test_calls_of_one_response_are_one_round(files: Files) -> None:
    run = files.read(history(
        acts(1, response="r1"), sees(1, "a"), acts(2, response="r1"), sees(2, "b"),
        acts(3, response="r2"), sees(3, "c"), acts(4), acts(5), sees(4, "d"), sees(5, "e"),
    )).run  # fmt: skip
    assert [[one.result for one in step.calls] for step in run.rounds] == [
        ["a", "b"], ["c"], ["d"], ["e"],
    ]  # fmt: skip
    assert [step.context_tokens for step in run.rounds] == [70, 70, None, None]
    assert run.rounds[0].calls[0].tool == "shell" and run.rounds[3].calls[0].tool == "run"


def test_arguments_are_those_the_model_gave_or_else_those_of_the_action(files: Files) -> None:
    asked = {"id": "c", "function": {"name": "shell", "arguments": '{"command": "ls"}'}}
    model = {"id": "r", "choices": [{"message": {"content": "Text.", "tool_calls": [asked]}}]}
    told = acts(1, command="ls", thought="Text.", blocking=False)
    told["tool_call_metadata"] = {"tool_call_id": "c", "model_response": model}
    untold = acts(2, command="ls", thought="Other text.")
    thinks = acts(3, "think", thought="Hm.")
    rounds = files.read(history(told, untold, thinks)).run.rounds
    assert [step.calls[0].arguments for step in rounds] == [
        '{"command": "ls"}', {"command": "ls"}, {"thought": "Hm."},
    ]  # fmt: skip
    assert [step.text for step in rounds] == ["Text.", "Other text.", None]


@pytest.mark.parametrize(
    ("observation", "error"),
    [
        (sees(1, "x", code=0), False),
        (sees(1, "x", code=2), True),
        (sees(1, "", code=2), "exit code 2"),
        (sees(1, " \n", code=1), False),
        (sees(1, "1 failed", code=1), True),
        (sees(1, "still running", code=-1), False),
        (sees(1, "bash: ponc: command not found", code=0), True),
        ({**sees(1, "x"), "extras": {"exit_code": 3}}, True),
        (sees(1, "ERROR:\nNo replacement was performed", "edit"), True),
        (sees(1, "The error was found", "read"), False),
        (sees(1, "x", "error"), True),
        (sees(1, None), None),
        (sees(1, "x", code="2"), False),
    ],
)
def test_errors(files: Files, observation: Any, error: Any) -> None:
    run = files.read(history(acts(1), observation)).run
    assert run.rounds[0].calls[0].error == error


def test_command_error() -> None:
    assert [command_error(0, ""), command_error(1, ""), command_error(1, "x")] == [
        False, False, True,
    ]  # fmt: skip
    assert command_error(127, "\n") == "exit code 127" and command_error(-9, "x") is True


def test_what_is_not_the_work_of_the_agent_is_left_out(files: Files) -> None:
    reading = files.read(history(
        acts(0, "system"), says("user"), {**acts(1, "recall"), "source": "user"},
        {**sees(1, "x", "recall"), "source": "environment"}, acts(2), sees(2),
        {**acts(3), "source": "user"}, sees(3), sees(None, "", "agent_state_changed"),
        {**sees(None, "stuck", "error"), "source": "environment"}, says("agent", "Done."),
    ))  # fmt: skip
    assert not reading.problems
    assert [step.text for step in reading.run.rounds] == [None, "Done."]
    assert reading.run.events == [0, 0]


def test_events_before_rounds(files: Files) -> None:
    compaction = acts(9, "condensation", summary="x")
    run = files.read(history(
        says("user"), acts(1), says("user"), acts(2), compaction, acts(3), sees(3),
    )).run  # fmt: skip
    assert run.events == [0, traces.USER_MESSAGE, traces.COMPACTION]


@pytest.mark.parametrize(
    ("fields", "success"),
    [
        ({"success": True}, True),
        ({"report": {"resolved": False}}, False),
        ({"test_result": {"resolved": True}}, True),
        ({"test_result": {"report": {"resolved": False}}}, False),
        ({"test_result": {"git_patch": ""}, "report": 5}, None),
    ],
)
def test_labels(files: Files, fields: dict[str, Any], success: bool | None) -> None:
    assert files.read(history(acts(1), **fields)).run.success is success


@pytest.mark.parametrize("limit", [None, "30", -1, 0, [30]])
def test_foreign_limits_are_none(files: Files, limit: Any) -> None:
    run = files.read(history(acts(1), metadata={"max_iterations": limit})).run
    assert run.round_limit is None


@pytest.mark.parametrize(
    ("event", "word"),
    [
        (5, "event 2: a number without a known role"),
        ({"action": None}, "event 2: a message without a known role"),
        ({"observation": "run", "content": "x"}, "event 2: a tool result that belongs to no call"),
    ],
)
def test_faults(files: Files, event: Any, word: str) -> None:
    reading = files.read(history(says("user"), event, acts(1), sees(1)))
    assert word in reading.problem.why
    assert reading.run.rounds[0].calls[0].result == "x"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["run", "agent"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["id", "message", "content", "tool_calls", "function", "metadata"]),
        inner, max_size=3,
    ),
    max_leaves=6,
)  # fmt: skip
EVENTS = st.dictionaries(
    st.sampled_from(["id", "source", "action", "observation", "cause", "content", "args", "extras",
                     "tool_call_metadata", "thought"]),
    VALUES, max_size=6,
)  # fmt: skip


@given(st.lists(EVENTS | VALUES, max_size=8), VALUES, VALUES)
def test_nothing_in_a_history_raises(events: list[Any], metadata: Any, response: Any) -> None:
    asking = {**acts(1), "tool_call_metadata": {"model_response": response}}
    value = history(acts(0), asking, *events, metadata=metadata, test_result=response)
    found = list(openhands.read(Path("x"), iter([Record(value)])))
    (run,) = [one for one in found if isinstance(one, traces.RecordedRun)]
    assert len(run.rounds) == len(run.events)
