"""The reader of pi-mono's coding sessions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from trace_files import Files, Reading

from cellium_fast import traces
from cellium_fast.traces import pi_mono

SAMPLE = Path(__file__).parent.parent / "examples" / "runs" / "hive_scale.jsonl"
HEADER = {"type": "session", "id": "hive", "timestamp": "2026-03-04T10:00:00Z", "cwd": "/hive"}


def entry(role: Any, content: Any = "x", **other: Any) -> dict[str, Any]:
    message = {"role": role, "content": content, **other}
    return {"type": "message", "timestamp": "2026-03-04T10:00:01Z", "message": message}


def says(*parts: Any, **other: Any) -> dict[str, Any]:
    content = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
    return entry("assistant", content, **other)


def call(identity: str = "c1", name: Any = "read") -> dict[str, Any]:
    return {"type": "toolCall", "id": identity, "name": name, "arguments": {"path": "a"}}


def gives(content: Any, identity: str = "c1", error: Any = False) -> dict[str, Any]:
    return entry("toolResult", content, toolCallId=identity, toolName="read", isError=error)


USER = entry("user", [{"type": "text", "text": "go on"}])


def test_the_sample_session() -> None:
    reading = Reading(traces.read(SAMPLE))
    assert not reading.problems
    run = reading.run
    assert (run.source, run.run, run.success) == ("pi-mono", "hive-scale", None)
    assert len(run.rounds) == len(run.events) == 11     # the aborted call is none
    assert [bool(one.error) for step in run.rounds for one in step.calls] == [
        False, False, *[True] * 5, False, False,
    ]  # fmt: skip
    assert run.events == [0, 0, 0, traces.USER_MESSAGE, 0, 0, 0, 0, traces.USER_MESSAGE,
                          traces.COMPACTION, 0]  # fmt: skip
    assert run.rounds[0].text == "I read the file."
    assert run.rounds[0].calls[0].arguments == {"path": "read.c"}
    assert str(run.rounds[0].calls[0].result).startswith("int weight")
    assert [step.context_tokens for step in run.rounds[:2]] == [1050, 1200]


@pytest.mark.parametrize("value", [HEADER, USER, says("x")])
def test_sessions_are_told_by_content(files: Files, value: Any) -> None:
    assert files.detect(value).reader is pi_mono


def test_a_header_begins_a_session(files: Files) -> None:
    other = {**HEADER, "id": "queen"}
    reading = files.read_lines(HEADER, USER, says("a"), other, says("b"), says("c"), HEADER)
    assert [(run.run, len(run.rounds)) for run in reading.runs] == [
        ("hive", 1), ("queen", 2), ("hive#2", 0),
    ]  # fmt: skip
    assert files.read_lines(USER, says("a"), USER).run.run == "run"


def test_parallel_calls_and_their_results(files: Files) -> None:
    asks = says("Both.", call("a"), call("b", "bash"))
    run = files.read_lines(HEADER, asks, gives("2", "b", error=True), gives("1", "a")).run
    first, second = run.rounds[0].calls
    assert (first.tool, first.result, first.error) == ("read", "1", False)
    assert (second.tool, second.result, second.error) == ("bash", "2", True)


def test_contents(files: Files) -> None:
    thought = {"type": "thinking", "thinking": "hm"}
    picture = [{"type": "image", "data": "…", "mimeType": "image/png"}]
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    reading = files.read_lines(
        HEADER, says(thought, call()), gives(parts), says(thought, "x", call()), gives(picture)
    )
    assert not reading.problems
    assert [step.text for step in reading.run.rounds] == [None, "x"]
    assert [step.calls[0].result for step in reading.run.rounds] == ["a\nb", picture]


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"input": 3, "cacheRead": 100, "cacheWrite": 20, "output": 7}, 130),
        ({"input": 3, "cacheRead": 100, "output": 7, "totalTokens": 111}, 111),
        ({"input": 3}, 3),
        ({"input": 0, "cacheRead": 0, "cacheWrite": 0, "output": 0, "totalTokens": 0}, None),
        ({"input": "3", "output": -1, "cacheRead": 5, "cacheWrite": 10**400}, 5),
        (None, None),
        (7, None),
    ],
)
def test_tokens(files: Files, usage: Any, tokens: int | None) -> None:
    run = files.read_lines(HEADER, says("a", usage=usage)).run
    assert run.rounds[0].context_tokens == tokens


def test_a_call_that_ended_before_it_gave_anything_is_no_round(files: Files) -> None:
    reading = files.read_lines(
        HEADER,
        says("a"),
        says(stopReason="aborted"),
        says({"type": "thinking", "thinking": "hm"}, stopReason="error"),
        USER,
        says("half a sent", stopReason="aborted"),
        says(call(), stopReason="aborted"),
        says(stopReason="stop"),
    )
    assert [step.text for step in reading.run.rounds] == ["a", "half a sent", None, None]
    assert reading.run.rounds[2].calls[0].result is None
    assert reading.run.events == [0, traces.USER_MESSAGE, 0, 0]


def test_events(files: Files) -> None:
    compaction = {"type": "compaction", "timestamp": "…", "summary": "x"}
    run = files.read_lines(
        HEADER, compaction, USER, says("a"), compaction, says("b"), compaction, USER, says("c"),
        entry("bashExecution"), entry("custom"), {"type": "label", "label": "x"}, says("d"),
        compaction,
    ).run  # fmt: skip
    assert run.events == [0, traces.COMPACTION, traces.USER_MESSAGE, 0]


@pytest.mark.parametrize(
    ("faulty", "word"),
    [
        (5, "line 2: a number without a known role"),
        (entry(None), "line 2: a message without a known role"),
        (entry("narrator"), "line 2: a message without a known role"),
        ({"type": "message", "message": None}, "line 2: a message without a known role"),
        (says(call(name=None)), "line 2: null as tool name"),
        (entry("assistant", 5), "line 2: a number as content"),
        (gives("x"), "line 2: a tool result that belongs to no call"),
        (says("a", usage={"totalTokens": 1e300}), "line 2: usage"),
    ],
)
def test_faults(files: Files, faulty: Any, word: str) -> None:
    reading = files.read_lines(HEADER, faulty, says("the rest"))
    assert word in reading.problem.why and reading.run.run == "hive"
    assert reading.run.rounds[-1].text == "the rest"


def test_a_broken_line_is_a_problem_and_the_others_are_read(files: Files) -> None:
    data = SAMPLE.read_bytes()
    reading = files.read_bytes(data[:-40])
    assert len(reading.run.rounds) == 10
    assert "not JSON" in reading.problem.why
