"""The readers of recorded runs: what they make of sound files, and of broken ones."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from trace_files import (
    ANSWER,
    RECORDINGS,
    TAU,
    USER,
    Files,
    Reading,
    asks,
    call,
    needs_recordings,
)

from cellium_fast import traces
from cellium_fast.traces import intercode, openai_chat, swe_agent
from cellium_fast.traces.evidence import SHELL_ERRORS, is_error_text
from cellium_fast.traces.files import parse

SAMPLES = Path(__file__).parent.parent / "examples" / "runs"

# The samples


def test_sample_chat() -> None:
    reading = Reading(traces.read(SAMPLES / "bookshop_chat.jsonl"))
    assert not reading.problems
    loop, sound = reading.runs
    assert (loop.source, loop.run, loop.success) == ("openai-chat", "address-change", False)
    assert loop.context_limit == 8000
    assert len(loop.rounds) == len(loop.events) == 9
    assert [bool(one.error) for step in loop.rounds for one in step.calls] == [False] + [True] * 7
    assert loop.rounds[1].calls[0].arguments == loop.rounds[7].calls[0].arguments
    assert [step.context_tokens for step in loop.rounds[:3]] == [900, 1040, 1180]
    assert (sound.run, sound.success) == ("two-books", True)
    assert sound.events == [0, 0, 0, traces.USER_MESSAGE, 0]
    assert [one.result for one in sound.rounds[0].calls][1] == "2"
    assert not any(one.error for step in sound.rounds for one in step.calls)


def test_sample_swe_agent() -> None:
    reading = Reading(traces.read(SAMPLES / "rain_gauge.traj"))
    run = reading.run
    assert not reading.problems
    assert (run.source, run.run, run.success) == ("swe-agent", "rain_gauge", None)
    calls = [step.calls[0] for step in run.rounds]
    assert [one.tool for one in calls][:3] == ["ls", "open", "python"]
    assert calls[0].arguments == "ls -F\n"
    assert [one.error for one in calls] == [False] * 2 + [True] * 4 + [False] * 3
    assert run.rounds[0].text == "I look around first."
    assert all(step.context_tokens is None for step in run.rounds)


def test_sample_intercode() -> None:
    reading = Reading(traces.read(SAMPLES / "shelf_shell.json"))
    assert not reading.problems
    assert [run.run for run in reading.runs] == ["0", "1", "2"]
    assert [run.success for run in reading.runs] == [True, False, True]
    assert [len(run.rounds) for run in reading.runs] == [3, 8, 5]
    assert {run.round_limit for run in reading.runs} == {8}
    assert {one.tool for run in reading.runs for step in run.rounds for one in step.calls} == {
        "bash"
    }
    errors = [step.calls[0].error for step in reading.runs[2].rounds]
    assert errors == [True, True, True, False, False]
    assert reading.runs[0].rounds[2].calls[0].arguments == "submit"
    assert reading.runs[0].rounds[0].text == "I should see what is there."


# Which files


def test_find_files(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.JSON", "c.traj", "d.ndjson", "e.txt", "f.eval", ".hidden.json"):
        (tmp_path / name).touch()
    for folder in ("sub", ".git"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "z.json").touch()
    named = tmp_path / "e.txt"
    missing = tmp_path / "missing"
    found = traces.find_files([missing, tmp_path, str(named), tmp_path / "b.jsonl"])
    names = ["missing", "a.JSON", "b.jsonl", "c.traj", "d.ndjson", "f.eval", "sub/z.json", "e.txt"]
    assert [path.relative_to(tmp_path).as_posix() for path in found] == names


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_find_files_takes_no_pipes_and_tells_what_it_passes_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "gone.json").symlink_to("nowhere")
    (folder / "linked.json").symlink_to(tmp_path / "real")
    (tmp_path / "real").touch()
    (folder / "notes.txt").touch()
    os.mkfifo(folder / "pipe.json")
    passed_over: list[Path] = []
    found = traces.find_files([folder], passed_over.append)
    assert [path.name for path in found] == ["gone.json", "linked.json"]
    assert [path.name for path in passed_over] == ["notes.txt", "pipe.json"]
    assert traces.find_files([folder / "pipe.json"]) == [folder / "pipe.json"]

    def locked(path: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", locked)
    assert traces.find_files([folder]) == [folder]


def test_a_file_that_cannot_be_opened_is_a_problem(tmp_path: Path) -> None:
    assert "No such file" in Reading(traces.read(tmp_path / "missing.json")).problem.why
    assert "cannot be read" in Reading(traces.read(tmp_path)).problem.why
    assert traces.detect(tmp_path / "missing.json").reader is None


@pytest.mark.parametrize("error", [ValueError("odd"), RecursionError(), MemoryError(), KeyError(1)])
def test_a_reader_that_raises_is_a_problem(
    files: Files, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = openai_chat._read_run

    def raises(path: Path, fields: Any, *arguments: Any) -> Any:
        if fields.get("id") == "bad":
            raise error
        return sound(path, fields, *arguments)

    monkeypatch.setattr(openai_chat, "_read_run", raises)
    fine, bad = ({"id": name, "messages": [ANSWER]} for name in ("fine", "bad"))
    reading = files.read_lines(fine, bad)
    assert reading.run.run == "fine"
    assert reading.problem.line == 2
    assert f"could not be read from here on ({type(error).__name__}" in reading.problem.why


def test_a_reader_that_raises_on_recognising_is_a_problem(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(swe_agent, "recognises", lambda value: value["trajectory"])
    assert "KeyError: 'trajectory'" in files.read({"messages": [ANSWER]}).problem.why


def test_an_interrupt_stays_one(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(value: Any) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(swe_agent, "recognises", interrupted)
    with pytest.raises(KeyboardInterrupt):
        files.read({"messages": [ANSWER]})


# Bytes and lines


def test_byte_order_mark_carriage_returns_blank_lines_no_last_line_feed(files: Files) -> None:
    line = json.dumps([USER, ANSWER]).encode()
    reading = files.read_bytes(b"\xef\xbb\xbf" + line + b"\r\n\r\n  \n" + line)
    assert not reading.problems
    assert [run.run for run in reading.runs] == ["line 1", "line 4"]
    alone = files.read_bytes(b"\xef\xbb\xbf\r\n" + line)
    assert not alone.problems and len(alone.run.rounds) == 1


def test_lines_are_split_at_line_feeds_only(files: Files) -> None:
    text = "a\u2028b\u0085c\x0bd"
    line = json.dumps([{**ANSWER, "content": text}], ensure_ascii=False).encode()
    reading = files.read_bytes(b"[]\n" + line + b"\n" + line)
    assert [run.rounds[0].text for run in reading.runs] == [text, text]
    assert [run.run for run in reading.runs] == ["line 2", "line 3"]
    assert not reading.problems


@pytest.mark.parametrize("broken", [b'{"messages": [', b"no JSON", b'[{"role": "user"}, ]'])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_broken_line_is_a_problem_and_the_others_are_read(
    files: Files, broken: bytes, place: int
) -> None:
    lines = [json.dumps([USER, ANSWER]).encode()] * 3
    lines[place] = broken
    reading = files.read_bytes(b"\n".join(lines) + b"\n")
    assert len(reading.runs) == 2
    assert reading.problem.line == place + 1
    assert "not JSON" in reading.problem.why
    assert str(reading.problem).startswith(f"{files.folder / 'run.json'}:{place + 1}: not JSON")


def test_bad_utf8_is_told_and_the_record_read(files: Files) -> None:
    bad = json.dumps([{**ANSWER, "content": "a?b"}]).encode().replace(b"?", b"\xff")
    reading = files.read_bytes(bad + b"\n" + json.dumps([ANSWER]).encode())
    assert [run.rounds[0].text for run in reading.runs] == ["a\ufffdb", "done"]
    assert reading.problem.line == 1 and "UTF-8" in reading.problem.why
    whole = files.read_bytes(b"[\n" + bad[1:])
    assert whole.run.rounds[0].text == "a\ufffdb" and "UTF-8" in whole.problem.why


def test_lone_surrogate_escapes_are_replaced(files: Files) -> None:
    reading = files.read_bytes(b'[{"role": "assistant", "content": "a\\ud83db", "\\udc00": [1]}]')
    assert reading.run.rounds[0].text == "a\ufffdb"
    value, fault = parse(b'{"\\udc00": ["\\ud83d"]}')
    assert (value, fault) == ({"\ufffd": ["\ufffd"]}, None)


def test_not_a_number_literals_are_read(files: Files) -> None:
    reading = files.read_bytes(b'{"reward": NaN, "x": [Infinity], "messages": [%s]}' % (
        json.dumps(ANSWER).encode()
    ))  # fmt: skip
    assert not reading.problems
    assert reading.run.success is None and len(reading.run.rounds) == 1


@pytest.mark.parametrize("data", [b"", b"\n \r\n", b"\xef\xbb\xbf", b"\xef\xbb\xbf\n"])
def test_an_empty_file_is_a_problem(files: Files, data: bytes) -> None:
    reading = files.read_bytes(data)
    assert not reading.runs and "empty" in reading.problem.why


def test_an_empty_list_is_a_problem(files: Files) -> None:
    reading = files.read([])
    assert not reading.runs and "empty list" in reading.problem.why


@pytest.mark.parametrize("depth", [2_000, 200_000])
def test_deep_nesting_is_a_problem(files: Files, depth: int) -> None:
    deep = b'[{"role": "assistant", "content": ' + b"[" * depth + b"]" * depth + b"}]"
    assert "nested too deeply" in files.read_bytes(deep).problem.why
    reading = files.read_bytes(deep + b"\n" + json.dumps([ANSWER]).encode())
    assert reading.problem.line == 1 and reading.run.run == "line 2"


@pytest.mark.parametrize("indent", [None, 2])
def test_of_a_cut_off_list_the_complete_runs_are_read(files: Files, indent: int | None) -> None:
    runs = [{"task_id": n, "trial": 0, "reward": 1.0, "traj": [USER, ANSWER]} for n in range(3)]
    text = json.dumps(runs, indent=indent)
    reading = files.read_bytes(text[:-30].encode())
    assert [run.run for run in reading.runs] == ["0/0", "1/0"]
    assert "what is complete before it was read" in reading.problem.why
    assert (reading.problem.line or 0) >= (1 if indent is None else 30)


def test_of_a_cut_off_object_the_complete_runs_are_read(files: Files) -> None:
    data = (SAMPLES / "shelf_shell.json").read_bytes()
    reading = files.read_bytes(data[:-60])
    assert [run.run for run in reading.runs] == ["0", "1"]
    assert "not JSON" in reading.problem.why


@pytest.mark.parametrize("data", [b"[", b"{", b'{"messages": [{"role"', b"[[[", b'{"a": 1, "b'])
def test_a_cut_off_file_without_a_complete_run_is_one_problem(files: Files, data: bytes) -> None:
    reading = files.read_bytes(data)
    assert not reading.runs and "not JSON" in reading.problem.why


@pytest.mark.parametrize(
    ("start", "word"),
    [
        (b"\x1f\x8b\x08", "gzip"),
        (b"\x28\xb5\x2f\xfd", "zstd"),
        ("[]".encode("utf-16"), "UTF-16"),
    ],
)
def test_files_that_are_no_utf8_text_are_named(files: Files, start: bytes, word: str) -> None:
    reading = files.read_bytes(start + b"\x00\xff\n\x00")
    assert not reading.runs and word in reading.problem.why


# Formats


STEP = {"action": "ls -a", "observation": ".", "thought": "Look."}
TRAJECTORY = {"trajectory": [STEP], "history": [USER], "info": {}}
TURNS = {
    "environment": "ic_sql",
    "turn_history": {"actions": ["SHOW TABLES"], "observations": ["[]"], "valid_action": [True]},
    "summary": {"max_reward": 1.0, "turns_max": 10},
}


@pytest.mark.parametrize(
    ("value", "reader"),
    [
        ([USER, ANSWER], openai_chat),
        ({"messages": [USER, ANSWER]}, openai_chat),
        ({"history": [USER, asks(call())]}, openai_chat),
        ([{"conversation": [USER]}], openai_chat),
        ([[USER, ANSWER]], openai_chat),
        (ANSWER, openai_chat),
        (TAU, openai_chat),
        ([TAU, TAU], openai_chat),
        ({"messages": []}, openai_chat),
        (TRAJECTORY, swe_agent),
        ([TRAJECTORY], swe_agent),
        ({"trajectory": [], "history": [], "info": {}}, swe_agent),
        (TURNS, intercode),
        ({"0": TURNS}, intercode),
        ([None, TURNS], intercode),
    ],
)
def test_supported_formats_are_told_by_content(files: Files, value: Any, reader: Any) -> None:
    detection = files.detect(value)
    assert (detection.name, detection.reader, detection.reason) == (reader.NAME, reader, "")


INSPECT_CALL = {"id": "c", "function": "bash", "arguments": {"cmd": "ls"}}


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ({"resourceSpans": []}, "otlp"),
        (asks(INSPECT_CALL), "inspect messages"),
        ({"history": [USER, asks(INSPECT_CALL)]}, "inspect messages"),
        ({"simulations": [{"messages": [USER]}]}, "tau2-bench"),
        ({**USER, "content": "<returncode>0</returncode>"}, "mini-swe-agent messages"),
        (
            {"history": [{**ANSWER, "action": "ls", "message_type": "action"}]},
            "swe-agent history",
        ),
        ({"type": "assistant", "message": ANSWER, "uuid": "1"}, "coding agent session"),
        ({"type": "session_meta", "payload": {}}, "coding agent session"),
        ([USER, {"type": "function_call", "name": "look"}], "openai responses"),
        (
            [USER, {**ANSWER, "content": [{"type": "tool_use", "name": "look"}]}],
            "content-block messages",
        ),
        ([USER, asks({"name": "look", "args": {}})], "flat tool calls"),
        ([USER, {"role": "ai", "text": "done"}], "foreign roles"),
        ({"conversations": [{"from": "human", "value": "hi"}]}, "from/value conversations"),
        ({"versions": {"python": "3.12"}}, "unknown"),
        ([1, 2], "unknown"),
        (7, "unknown"),
    ],
)
def test_unsupported_formats_are_named_with_a_reason(files: Files, value: Any, name: str) -> None:
    detection = files.detect(value)
    assert (detection.name, detection.reader) == (name, None)
    assert detection.reason
    reading = files.read(value)
    assert not reading.runs
    assert f"unsupported format ({name})" in reading.problem.why
    assert detection.reason in reading.problem.why


def test_a_format_that_shows_only_later_lines_is_not_misread(files: Files) -> None:
    blocks = {**ANSWER, "content": [{"type": "tool_use", "name": "look"}]}
    reading = files.read_lines(USER, *[ANSWER] * 20, blocks)
    assert not reading.runs and "content-block messages" in reading.problem.why
    mixed = files.read_lines([USER, ANSWER], [USER, blocks])
    assert len(mixed.runs) == 2 and "parts of the content" in mixed.problem.why


def test_the_format_is_found_behind_a_header_and_a_broken_line(files: Files) -> None:
    line = json.dumps([USER, ANSWER]).encode()
    reading = files.read_bytes(b'{"version": 1}\nbroken\n' + line)
    assert len(reading.runs) == 1
    assert [problem.line for problem in reading.problems] == [1, 2]


# SWE-agent and InterCode


def test_swe_agent_steps(files: Files) -> None:
    steps = [
        {"action": "", "observation": "Exit", "thought": "I give up."},
        {"action": None, "observation": None, "response": "Only a response."},
        {"action": "cat x", "observation": None, "thought": " "},
        {"action": 5, "observation": "y"},
        None,
        {"action": "tool --help", "observation": "Usage: tool", "thought": 3},
        {"action": "tool", "observation": "Usage: tool"},
    ]
    reading = files.read({"trajectory": steps, "info": {"resolved": True}})
    rounds = reading.run.rounds
    assert [step.text for step in rounds] == ["I give up.", "Only a response.", *[None] * 4]
    assert [len(step.calls) for step in rounds] == [0, 0, 1, 0, 1, 1]
    assert (rounds[2].calls[0].result, rounds[2].calls[0].error) == (None, None)
    assert [step.calls[0].error for step in rounds[4:]] == [False, True]
    assert [problem.why.split(", ")[1] for problem in reading.problems] == [
        "step 4: an action that is no text",
        "step 5: a step that is no object",
    ]
    assert reading.run.success is True


def test_swe_agent_lines_and_items(files: Files) -> None:
    named = {**TRAJECTORY, "instance_id": "shop-12"}
    lines = files.read_lines(named, 5, TRAJECTORY)
    assert [run.run for run in lines.runs] == ["shop-12", "line 3"]
    assert lines.problem.line == 2 and "not a SWE-agent trajectory" in lines.problem.why
    items = files.read([named, None, TRAJECTORY])
    assert [run.run for run in items.runs] == ["shop-12", "item 3"]
    assert "item 2" in items.problem.why


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("bash: line 1: owner: command not found\n", True),
        ("zsh: command not found: x", False),
        ("cat: notes: No such file or directory\r\nmore", True),
        ("\n\nTraceback (most recent call last):\n", True),
        ('  File "a.py", line 4\n    def f()\nSyntaxError: invalid syntax', True),
        ("Error: no file open", True),
        ("12 passed\nTraceback (most recent call last)", False),
        ("ok\ncat: notes: No such file or directory", False),
        ("[File: errors.py (3 lines total)]", False),
        ("", False),
        ("\n", False),
    ],
)
def test_errors_in_the_output_of_commands(text: str, error: bool) -> None:
    assert is_error_text(text, SHELL_ERRORS) is error


@pytest.mark.parametrize(
    ("action", "observation", "valid", "error"),
    [
        ("ls", "x", True, False),
        ("ls", "x", False, True),
        ("ls", "x", None, False),
        ("SELECT", "Error executing query: Unknown column", True, True),
        ("SELECT", "1064 (42000): You have an error", None, True),
        ("ls", None, True, None),
        ("submit", "Error executing query: that of before", False, False),
    ],
)
def test_intercode_errors(
    files: Files, action: str, observation: Any, valid: Any, error: bool | None
) -> None:
    history = {"actions": [action], "observations": [observation], "valid_action": [valid]}
    run = files.read({"4": {**TURNS, "turn_history": history}}).run
    assert run.rounds[0].calls[0].error is error
    assert (run.run, run.rounds[0].calls[0].tool, run.success) == ("4", "sql", True)


def test_intercode_faults(files: Files) -> None:
    short = {"actions": ["a", "b"], "observations": ["x"], "thoughts": 5}
    reading = files.read(
        {
            "0": {**TURNS, "turn_history": short, "summary": None, "environment": None},
            "1": None,
            "2": {**TURNS, "turn_history": []},
            "3": {**TURNS, "summary": {"max_reward": 0.67, "turns_max": "10"}},
            "4": {**TURNS, "summary": {"max_reward": "1"}, "turn_history": {}},
        }
    )
    assert [run.run for run in reading.runs] == ["0", "3", "4"]
    assert [run.success for run in reading.runs] == [None, False, None]
    first = reading.runs[0]
    assert [step.calls[0].result for step in first.rounds] == ["x", None]
    assert first.rounds[0].calls[0].tool == "environment" and first.round_limit is None
    assert reading.runs[1].round_limit is None and reading.runs[2].rounds == []
    assert [problem.why for problem in reading.problems] == [
        "run '0': thoughts is no list",
        "run '0': 1 observations beside 2 actions",
        "run '1': not an InterCode run with a turn_history",
        "run '2': not an InterCode run with a turn_history",
    ]


def test_intercode_lines_and_items(files: Files) -> None:
    named = {**TURNS, "task_id": 12}
    assert [run.run for run in files.read_lines(named, TURNS).runs] == ["12", "line 2"]
    reading = files.read([named, 5])
    assert reading.run.run == "12" and "item 2" in reading.problem.why


# Real recordings, where they are at hand


@needs_recordings
def test_recordings() -> None:
    runs: Counter[tuple[str, str, bool | None]] = Counter()
    named: set[str] = set()
    for path in traces.find_files([RECORDINGS]):
        folder = path.relative_to(RECORDINGS).parts[0]
        reading = Reading(traces.read(path))
        for run in reading.runs:
            assert len(run.rounds) == len(run.events)
            assert all(one.tool for step in run.rounds for one in step.calls)
            runs[folder, run.source, run.success] += 1
        if traces.detect(path).reader is None:
            named.add(folder)
            assert "unsupported format" in reading.problem.why and not reading.runs
        else:
            assert not reading.problems
    intercode = [runs.pop(("intercode", "intercode", success)) for success in (True, False)]
    assert sum(intercode) == 1581
    assert runs == {
        ("tau-bench", "tau-bench", True): 84,
        ("tau-bench", "tau-bench", False): 116,
        ("docent", "tau-bench", False): 1,
        ("docent", "inspect", True): 10,
        ("docent", "inspect", False): 7,
        ("inspect_ai", "inspect", True): 1,
        ("pi-mono", "pi-mono", None): 2,
        ("openhands", "openhands", True): 2,
        ("openhands", "openhands", None): 3,
        ("mini-swe-agent", "mini-swe-agent", None): 2,
        ("swe-agent", "swe-agent", None): 12,
        ("swe-agent", "openai-chat", None): 1,
    }
    assert named == {"otlp-format-only"}


@needs_recordings
def test_recordings_that_loop() -> None:
    (path,) = Path(RECORDINGS, "tau-bench").rglob("*.json")
    runs = {run.run: run for run in Reading(traces.read(path)).runs}
    for name in ("9/2", "13/0", "23/1"):
        assert sum(bool(one.error) for step in runs[name].rounds for one in step.calls) >= 3
