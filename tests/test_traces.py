"""The readers of recorded runs: what they make of sound files, and of broken ones."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from cellium_fast import traces
from cellium_fast.traces import intercode, openai_chat, swe_agent
from cellium_fast.traces.evidence import SHELL_ERRORS, is_error_text
from cellium_fast.traces.files import parse

SAMPLES = Path(__file__).parent.parent / "examples" / "runs"
RECORDINGS = os.environ.get("CELLIUM_TRACES", "")

needs_recordings = pytest.mark.skipif(
    not os.path.isdir(RECORDINGS), reason="CELLIUM_TRACES names no directory of recordings"
)

USER = {"role": "user", "content": "go on"}
ANSWER = {"role": "assistant", "content": "done"}


def asks(*calls: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls), **fields}


def call(identity: str | None = "c1", name: Any = "look", arguments: Any = "{}") -> dict[str, Any]:
    return {
        "id": identity,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def gives(content: Any, identity: str | None = "c1", **fields: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": identity, "content": content, **fields}


class Reading:
    """All that a file gave, split in runs and problems."""

    def __init__(self, found: Iterable[traces.RecordedRun | traces.Problem]) -> None:
        found = list(found)
        self.runs = [one for one in found if isinstance(one, traces.RecordedRun)]
        self.problems = [one for one in found if isinstance(one, traces.Problem)]

    @property
    def run(self) -> traces.RecordedRun:
        assert len(self.runs) == 1, (self.runs, self.problems)
        return self.runs[0]

    @property
    def problem(self) -> traces.Problem:
        assert len(self.problems) == 1, self.problems
        return self.problems[0]


class Files:
    """Writes a file and reads it back."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read_bytes(self, data: bytes, name: str = "run.json") -> Reading:
        path = self.folder / name
        path.write_bytes(data)
        return Reading(traces.read(path))

    def read(self, value: Any, name: str = "run.json") -> Reading:
        return self.read_bytes(json.dumps(value).encode(), name)

    def read_lines(self, *values: Any) -> Reading:
        return self.read_bytes(b"".join(json.dumps(one).encode() + b"\n" for one in values))

    def detect(self, value: Any) -> traces.Detection:
        path = self.folder / "unnamed"
        path.write_text(json.dumps(value))
        return traces.detect(path)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


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
    for name in ("b.jsonl", "a.JSON", "c.traj", "d.ndjson", "e.txt", ".hidden.json"):
        (tmp_path / name).touch()
    for folder in ("sub", ".git"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "z.json").touch()
    named = tmp_path / "e.txt"
    missing = tmp_path / "missing"
    found = traces.find_files([missing, tmp_path, str(named), tmp_path / "b.jsonl"])
    names = ["missing", "a.JSON", "b.jsonl", "c.traj", "d.ndjson", "sub/z.json", "e.txt"]
    assert [path.relative_to(tmp_path).as_posix() for path in found] == names


def test_a_file_that_cannot_be_opened_is_a_problem(tmp_path: Path) -> None:
    assert "No such file" in Reading(traces.read(tmp_path / "missing.json")).problem.why
    assert "cannot be read" in Reading(traces.read(tmp_path)).problem.why
    assert traces.detect(tmp_path / "missing.json").reader is None


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
        (b"PK\x03\x04", "zip"),
        (b"\x1f\x8b\x08", "gzip"),
        (b"\x28\xb5\x2f\xfd", "zstd"),
        ("[]".encode("utf-16"), "UTF-16"),
    ],
)
def test_files_that_are_no_utf8_text_are_named(files: Files, start: bytes, word: str) -> None:
    reading = files.read_bytes(start + b"\x00\xff\n\x00")
    assert not reading.runs and word in reading.problem.why


# Formats


TAU = {"task_id": 9, "trial": 2, "reward": 0.0, "info": {}, "traj": [USER, ANSWER]}
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
        ({"version": 2, "eval": {}, "plan": {}, "samples": []}, "inspect"),
        ({"id": 1, "epoch": 1, "messages": [USER, ANSWER]}, "inspect"),
        ([USER, asks(INSPECT_CALL)], "inspect"),
        ({"simulations": [{"messages": [USER]}]}, "tau2-bench"),
        ({"history": [{"id": 0, "source": "agent", "action": "run", "args": {}}]}, "openhands"),
        ({"history": [{"action": "run", "command": "ls", "content": ""}]}, "openhands"),
        ([{"id": 1, "source": "agent", "observation": "run", "extras": {}}], "openhands"),
        ([USER, ANSWER, {**USER, "content": "<returncode>0</returncode>"}], "mini-swe-agent"),
        (
            {"trajectory_format": "mini-swe-agent-1.1", "messages": [USER, asks(call())]},
            "mini-swe-agent",
        ),
        (
            {"history": [{**ANSWER, "action": "ls", "message_type": "action"}]},
            "swe-agent history",
        ),
        ({"type": "session", "timestamp": "…", "cwd": "/"}, "coding agent session"),
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


# Chat: containers, names, labels


def test_one_message_a_line_is_one_run(files: Files) -> None:
    reading = files.read_lines(USER, asks(call()), gives("x"), 5, USER, ANSWER)
    assert reading.run.run == "run"
    assert reading.run.rounds[0].calls[0].result == "x"
    assert reading.run.events == [0, 1]
    assert "line 4: a number without a known role" in reading.problem.why


def test_lists_and_lines_of_wrappers_are_a_run_each(files: Files) -> None:
    lines = files.read_lines({"messages": [ANSWER]}, [ANSWER], {"id": "x", "chat": [ANSWER]})
    assert [run.run for run in lines.runs] == ["line 1", "line 2", "x"]
    items = files.read([{"messages": [ANSWER]}, [ANSWER], {"id": "x", "history": [ANSWER]}])
    assert [run.run for run in items.runs] == ["item 1", "item 2", "x"]
    assert not lines.problems and not items.problems


def test_names_are_unique_inside_a_file(files: Files) -> None:
    reading = files.read([TAU, TAU, {**TAU, "trial": 3}, TAU])
    assert [run.run for run in reading.runs] == ["9/2", "9/2#2", "9/3", "9/2#3"]


@pytest.mark.parametrize("item", [5, "text", None, {}, {"traj": None}, {"traj": 3}, True])
def test_an_item_that_is_no_run_is_a_problem_and_the_others_are_read(
    files: Files, item: Any
) -> None:
    for reading in (files.read([TAU, item, TAU]), files.read_lines(TAU, item, TAU)):
        assert len(reading.runs) == 2
        assert "no list of chat messages" in reading.problem.why


@pytest.mark.parametrize(
    ("reward", "success"),
    [(1.0, True), (1, True), (0.999999999, True), (0.0, False), (0.5, False), (None, None),
     ("1", None)],
)  # fmt: skip
def test_tau_bench_labels(files: Files, reward: Any, success: bool | None) -> None:
    run = files.read({**TAU, "reward": reward}).run
    assert (run.source, run.run, run.success) == ("tau-bench", "9/2", success)


@pytest.mark.parametrize(
    ("fields", "success"),
    [
        ({"success": True}, True),
        ({"resolved": False}, False),
        ({"solved": 1}, True),
        ({"reward": 1.0}, True),
        ({"reward": 0}, False),
        ({"reward": 0.4}, None),
        ({"success": None, "reward": 1}, True),
        ({"success": "yes"}, None),
        ({}, None),
    ],
)
def test_chat_labels(files: Files, fields: dict[str, Any], success: bool | None) -> None:
    assert files.read({"messages": [ANSWER], **fields}).run.success is success


def test_a_run_without_rounds_is_a_run(files: Files) -> None:
    for messages in ([USER], []):
        run = files.read({**TAU, "traj": messages}).run
        assert (run.rounds, run.events, run.success) == ([], [], False)


# Chat: messages


def test_a_user_message_is_an_event_only_between_rounds(files: Files) -> None:
    system = {"role": "system", "content": "x"}
    run = files.read([system, USER, USER, ANSWER, ANSWER, USER, USER, ANSWER, system, ANSWER, USER])
    assert run.run.events == [0, 0, traces.USER_MESSAGE, 0]


def test_results_find_their_calls_by_id_or_else_by_order(files: Files) -> None:
    by_id = [asks(call("a"), call("b"), call("c")), gives(3, "c"), gives(1, "a"), gives(2, "b")]
    assert [one.result for one in files.read(by_id).run.rounds[0].calls] == [1, 2, 3]
    by_order = [asks(call(None), call(None)), gives(1, None), gives(2, "of the logger")]
    assert [one.result for one in files.read(by_order).run.rounds[0].calls] == [1, 2]
    same_id = [asks(call("a"), call("a")), gives(1, "a"), gives(2, "a")]
    assert [one.result for one in files.read(same_id).run.rounds[0].calls] == [1, 2]
    late = [asks(call("a")), asks(call("b")), gives(2, "b"), gives(1, "a")]
    assert [step.calls[0].result for step in files.read(late).run.rounds] == [1, 2]
    listed = [asks(call("a"), call("b")), {**gives(2, None), "tool_call_ids": ["b"]}]
    assert [one.result for one in files.read(listed).run.rounds[0].calls] == [None, 2]


def test_a_result_without_a_call_is_a_problem_told_once(files: Files) -> None:
    stray = gives("x", "nowhere")
    reading = files.read([stray, asks(call()), stray, gives("y"), gives("again"), ANSWER])
    assert reading.run.rounds[0].calls[0].result == "y"
    assert len(reading.run.rounds) == 2
    assert "message 1: a tool result that belongs to no call" in reading.problem.why
    assert "2 more" in reading.problem.why


def test_legacy_function_calls(files: Files) -> None:
    asked = {**ANSWER, "function_call": {"name": "look", "arguments": '{"at": 1}'}}
    answered = {"role": "function", "name": "look", "content": "x"}
    (only,) = files.read([asked, answered]).run.rounds[0].calls
    assert (only.tool, only.arguments, only.result) == ("look", '{"at": 1}', "x")


def test_custom_tool_calls(files: Files) -> None:
    custom = {"id": "c1", "type": "custom", "custom": {"name": "shell", "input": "ls"}}
    (only,) = files.read([asks(custom), gives("x")]).run.rounds[0].calls
    assert (only.tool, only.arguments, only.result) == ("shell", "ls", "x")


@pytest.mark.parametrize("arguments", ['{"a": 1}', {"a": 1}, None, "", "no JSON", 5])
def test_arguments_are_passed_as_they_are(files: Files, arguments: Any) -> None:
    reading = files.read([asks(call(arguments=arguments))])
    assert reading.run.rounds[0].calls[0].arguments == arguments
    assert not reading.problems


@pytest.mark.parametrize(
    "entry",
    [None, 5, "look", [], {}, {"function": None}, {"function": 5}, {"function": {}},
     {"function": {"name": None}}, {"function": {"name": 5}}, {"id": 7, "function": []}],
)  # fmt: skip
def test_a_faulty_tool_call_is_a_problem_and_stays_a_call(files: Files, entry: Any) -> None:
    reading = files.read([USER, asks(entry, call("c2")), gives("first", None), gives("x", "c2")])
    first, second = reading.run.rounds[0].calls
    assert (first.tool, first.result) == ("unnamed", "first")
    assert (second.tool, second.result) == ("look", "x")
    assert "message 2" in reading.problem.why


@pytest.mark.parametrize("calls", [5, "look", {"0": call()}, True])
def test_tool_calls_that_are_no_list_are_a_problem(files: Files, calls: Any) -> None:
    reading = files.read([{**ANSWER, "tool_calls": calls}])
    assert reading.run.rounds[0].text == "done" and not reading.run.rounds[0].calls
    assert "as tool_calls" in reading.problem.why


@pytest.mark.parametrize("entry", [None, 5, "text", [], {}, {"role": None}, {"role": "narrator"}])
def test_an_entry_that_is_no_message_is_a_problem(files: Files, entry: Any) -> None:
    reading = files.read([USER, entry, ANSWER])
    assert len(reading.run.rounds) == 1
    assert "message 2" in reading.problem.why and "role" in reading.problem.why


def test_contents(files: Files) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": None}, "b"]
    picture = [{"type": "image_url", "image_url": {}}, {"type": "text", "text": "c"}]
    lacking = {"role": "assistant", "tool_calls": None}
    reading = files.read(
        [{**ANSWER, "content": parts}, {**ANSWER, "content": picture}, lacking,
         {**ANSWER, "content": []}]
    )  # fmt: skip
    assert [step.text for step in reading.run.rounds] == ["a\nb", "c", None, None]
    assert not reading.problems
    results = [parts, picture, {"a": 1}, None, ""]
    messages = [m for r in results for m in (asks(call()), gives(r))]
    reading = files.read([*messages, asks(call()), {"role": "tool", "tool_call_id": "c1"}])
    found = [step.calls[0].result for step in reading.run.rounds]
    assert found == ["a\nb", picture, {"a": 1}, None, "", None]


@pytest.mark.parametrize("content", [5, {"text": "x"}, True])
def test_a_faulty_content_is_a_problem(files: Files, content: Any) -> None:
    reading = files.read([{**ANSWER, "content": content}])
    assert reading.run.rounds[0].text is None and "as content" in reading.problem.why


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"prompt_tokens": 90, "completion_tokens": 10}, 100),
        ({"prompt_tokens": 90, "completion_tokens": 10, "total_tokens": 105}, 105),
        ({"input_tokens": 90, "output_tokens": 10}, 100),
        ({"prompt_tokens": 90, "prompt_tokens_details": {"cached_tokens": 80}}, 90),
        ({"prompt_tokens": 90, "completion_tokens": None, "total_tokens": None}, 90),
        ({"completion_tokens": 10}, None),
        ({"total_tokens": -1}, None),
        ({"total_tokens": True}, None),
        ({"prompt_tokens": "90"}, None),
        ({}, None),
        (None, None),
        (5, None),
    ],
)
def test_usage(files: Files, usage: Any, tokens: int | None) -> None:
    assert files.read([{**ANSWER, "usage": usage}]).run.rounds[0].context_tokens == tokens


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (gives("Error: no such order"), True),
        (gives("Error"), True),
        (gives("Error in line 3"), True),
        (gives("Errors: 0"), False),
        (gives("ErrorLog.txt"), False),
        (gives("error: lower case"), False),
        (gives("found an Error: yes"), False),
        (gives("fine"), False),
        (gives("fine", is_error=True), True),
        (gives("Error: quoted", is_error=False), False),
        (gives("fine", isError=True), True),
        (gives("fine", error="timeout"), "timeout"),
        (gives("fine", error={"type": "timeout"}), True),
        (gives("fine", error=None), False),
        (gives("fine", status="error"), True),
        (gives({"error": "left to the result"}), None),
        (gives(None), None),
    ],
)
def test_errors_of_tool_results(files: Files, message: Any, error: bool | str | None) -> None:
    assert files.read([asks(call()), message]).run.rounds[0].calls[0].error == error
    if error is None:
        assert files.read([asks(call()), message]).run.rounds[0].calls[0].error is None


def test_errors_of_tau_bench_begin_with_the_word(files: Files) -> None:
    run = files.read({**TAU, "traj": [asks(call()), gives("Error-like")]}).run
    assert run.rounds[0].calls[0].error is True


@pytest.mark.parametrize("limit", [0, -1, True, "8000", None])
def test_a_faulty_context_limit_is_unknown(files: Files, limit: Any) -> None:
    assert files.read({"messages": [ANSWER], "context_limit": limit}).run.context_limit is None


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
    runs: Counter[tuple[str, str]] = Counter()
    labels: Counter[tuple[str, bool | None]] = Counter()
    named: list[str] = []
    for path in traces.find_files([RECORDINGS]):
        folder = path.relative_to(RECORDINGS).parts[0]
        reading = Reading(traces.read(path))
        for run in reading.runs:
            assert len(run.rounds) == len(run.events)
            assert all(one.tool for step in run.rounds for one in step.calls)
            runs[folder, run.source] += 1
            labels[run.source, run.success] += folder != "docent"
        if traces.detect(path).reader is None:
            named.append(folder)
            assert "unsupported format" in reading.problem.why and not reading.runs
        else:
            assert not reading.problems
    assert runs["tau-bench", "tau-bench"] == 200
    assert (labels["tau-bench", True], labels["tau-bench", False]) == (84, 116)
    assert runs["intercode", "intercode"] == 1581
    assert labels["intercode", None] == 0
    assert runs["swe-agent", "swe-agent"] == 12 and runs["swe-agent", "openai-chat"] == 1
    assert set(named) == {
        "docent", "inspect_ai", "mini-swe-agent", "openhands", "otlp-format-only", "pi-mono"
    }  # fmt: skip


@needs_recordings
def test_recordings_that_loop() -> None:
    (path,) = Path(RECORDINGS, "tau-bench").rglob("*.json")
    runs = {run.run: run for run in Reading(traces.read(path)).runs}
    for name in ("9/2", "13/0", "23/1"):
        assert sum(bool(one.error) for step in runs[name].rounds for one in step.calls) >= 3
