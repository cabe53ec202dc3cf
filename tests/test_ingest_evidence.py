"""Evidence that ingest reads off calls and texts: shapes, sketches, and what results say."""

import json
import math
import uuid
from collections import UserDict
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
import reference_ingest as reference
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_ingest import Text, packed, signature
from test_ingest_strange import Plain, cycle_of_lists, deep

from cellium_fast import Fleet, Round, RoundBatch, ToolCall, _columns, result_words
from cellium_fast._ingest import hash_shape, hash_signature, sketch_of_text
from cellium_fast._results import changes_something, is_acknowledgement, is_transient
from cellium_fast.traces.packed import packed as packed_runs
from cellium_fast.traces.runs import RecordedRun

ERROR, EMPTY, TRANSIENT, ACKNOWLEDGED = 1, 2, 4, 8


def shape(arguments: object, tool: str = "t", **fields: object) -> int:
    return int(packed(ToolCall(tool, arguments, **fields)).call_shape[0])


def flags(value: object, error: object = None) -> int:
    return int(packed(ToolCall("t", result=value, error=error)).call_flags[0])


# --- shapes ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("key", [
    "request_id", "requestId", "RequestID", "request-id", "REQUEST_ID", "X-Request-Id", "ts", "TS",
    "_ts", "nonce", "timestamp", "attempt", "retry_count", "idempotencyKey", "trace_id", "now",
])
def test_a_volatile_field_is_seen_through(key):
    one, other = {"q": "a", key: 1}, {"q": "a", key: ["x", {"y": '"}'}]}
    assert shape(one) == shape(other) == shape(json.dumps(one))
    assert shape(one) == shape(json.dumps(other, indent=1))
    assert shape(one) != signature(one) != signature(other)
    assert shape(one) != shape({"q": "b", key: 1}) != shape({"q": "a"})
    assert shape([1, {"in": one}]) == shape([1, {"in": other}]) != shape([2, {"in": other}])


@pytest.mark.parametrize("key", [
    "id", "user_id", "order_id", "uuid", "date", "start_time", "created_at", "path", "page",
    "offset", "seed", "token", "thread_ts", "r\u00e9quest_id", "timestamp ", "", "attempted",
    "request_id" + "_" * 40, "nonce\\", 'x"ts', "to\u212aen", "\ud800ts",
])
def test_what_a_call_is_about_is_not_seen_through(key):
    one, other = {"q": "a", key: 1}, {"q": "a", key: 2}
    assert shape(one) == signature(one) != shape(other) == signature(other)


@pytest.mark.parametrize("arguments", [
    None, "", "ls", '{"ts": 1', 'curl -d {"ts":1}', {"q": '"ts":1'}, {"q": '{"ts":1}'},
    ["ts", 1], {"q": "ts"}, {"q": '\\"ts":1'}, {"q": "\\"}, "ts", '"ts":1', 7, math.nan, b"ts",
    cycle_of_lists(), deep(10_000), {"q": {1, 2}}, {1: 2, None: 3}, {"a" * 5_000: 1}, "\ud800",
    {"q": "\\\\", "z": '"'}, '{"n": 123456789012345678901}',
])
def test_without_a_volatile_field_the_shape_is_the_signature(arguments):
    assert shape(arguments) == signature(arguments)


@pytest.mark.parametrize(("left", "right"), [
    ({"ts": math.nan, "q": 1}, {"ts": 1, "q": 1}),
    ({"ts": b"x", "q": {1}}, {"ts": {2}, "q": {1}}),
    ({"nonce": uuid.UUID(int=1), "at": datetime(2024, 1, 1)},
     {"nonce": uuid.UUID(int=2), "at": datetime(2024, 1, 1)}),
    ({"ts": 10**30}, f'{{"ts": {10**31}}}'),
    (UserDict(ts=1, q=b"x"), UserDict(ts=2, q=b"x")),
    (Plain(ts=1, q=2), Plain(ts=2, q=2)),
    ([{"q": ["y" * 5_000, {"ts": 1}], "z": {1}}], [{"q": ["y" * 5_000, {"ts": 2}], "z": {1}}]),
    ({"ts": cycle_of_lists()}, {"ts": deep(10_000)}),
    ({Text("ts"): 1}, {"ts": 2}),
    (Text('{"ts": 1}'), '{"ts": 2}'),
    ({"ts": "\ud800"}, {"ts": "\udfff"}),
])
def test_fields_of_what_json_cannot_express_are_seen_through(left, right):
    assert signature(left) != signature(right)
    assert shape(left) == shape(right) not in (signature(left), signature(right))


@pytest.mark.parametrize("own", [5, "mine", {"ts": 1}])
def test_an_own_signature_is_its_own_shape(own):
    assert shape({"ts": 1}, signature=own) == signature(None, signature=own)


KEYS = st.sampled_from([
    "q", "ts", "request_id", "requestId", "user_id", 'a"', "\\", "", "ts\\", "now:", "é", "id",
])
LEAVES = st.none() | st.booleans() | st.integers(-2**62, 2**62) | st.text(
    '":,{}[]\\ats\n\0é', max_size=8
)


@settings(max_examples=400, deadline=None)
@given(st.recursive(
    LEAVES, lambda part: st.lists(part, max_size=3) | st.dictionaries(KEYS, part, max_size=3),
    max_leaves=10,
).filter(lambda value: not isinstance(value, str)))
@example({"ts": {}, "q": []})
def test_any_arguments_have_the_shape_of_the_reference(value):
    expected = reference.shape("tool", value)
    assert hash_shape("tool", value) == hash_shape("tool", json.dumps(value)) == expected
    if '#' not in reference.hidden(value):
        assert hash_signature("tool", value) == expected


def test_the_reference_knows_the_same_fields():
    from cellium_fast.stable_text import VOLATILE_KEYS

    assert VOLATILE_KEYS == reference.FOLDED


# --- sketches -------------------------------------------------------------------------------------
SENTENCE = "The port 8080 is taken by another process, so I will try the next one."


@pytest.mark.parametrize("text", [
    None, "", " ", "short", "exactly fifteen", "-" * 1_000, "1 2 3 4 5 6", "1234567890" * 9,
    "a" * 15 + " ", Text("short"), "\u0300" * 50,
])
def test_a_text_too_short_to_tell_has_no_sketch(text):
    assert sketch_of_text(text) == 0
    assert RoundBatch.from_rounds([Round(text=text)]).text_sketch.tolist() == [0]


@pytest.mark.parametrize("other", [
    SENTENCE.upper(), SENTENCE.replace("8080", "443"), SENTENCE.replace(" ", "\n\t "),
    f"  {SENTENCE}\n", SENTENCE.replace(",", " -- ").replace(".", "!!"), Text(SENTENCE),
    SENTENCE.replace("8080", "\u0664\u0662"),
])
def test_case_numbers_blanks_and_signs_do_not_matter(other):
    assert sketch_of_text(other) == sketch_of_text(SENTENCE) != 0


@pytest.mark.parametrize(("left", "right"), [
    (SENTENCE, SENTENCE.replace("next", "last")),
    ("根据分析\uff0c数据集共有一千条记录\uff0c异常值占比约3.0%\uff0c建议清洗。",
     "根据分析\uff0c数据集共有两千条记录\uff0c异常值占比约3.5%\uff0c建议清洗。"),
    ("Попробую ещё раз прочитать файл настроек целиком.",
     "Попробую ещё раз прочитать файл настроек снова."),
    ("मैं फ़ाइल को फिर से पढ़ने की कोशिश करता हूँ 12", "मैं फ़ाइल को फिर से पढ़ने की कोशिश करता हूँ 7"),
])
def test_near_duplicates_share_most_numbers(left, right):
    assert reference.alike(sketch_of_text(left), sketch_of_text(right)) >= 9


def test_unrelated_texts_share_few_numbers():
    other = "Colourless green ideas sleep furiously under a blanket of violets."
    assert reference.alike(sketch_of_text(SENTENCE), sketch_of_text(other)) <= 5


def test_only_the_beginning_of_a_long_text_is_looked_at():
    long = "".join(chr(97 + place**3 // 7 % 26) for place in range(256))
    assert sketch_of_text(long) == sketch_of_text(f"{long} and more")
    assert sketch_of_text(long) != sketch_of_text("xyz" * 60 + long)


@settings(max_examples=400, deadline=None)
@given(st.text(max_size=60) | st.text("ab \n1٣.É", max_size=300)
    | st.text("aZz  [`{@é1", max_size=90) | st.text("文字abc ", min_size=16))
@example("\ud800" * 40)
@example("-" * 1_000 + "abcdefghijklmnopqrstuvwxyz")
@example("-" * 1_010 + "abcdefghijklmnopqrstuvwxyz")
@example("a\0" * 40)
@example("\u0130" * 20 + "\U0001d7d8" * 20 + "\u00b2" * 20 + "ß" * 20)
@example("x" * 16)
@example("x" * 10_000_000)
def test_any_text_has_the_sketch_of_the_reference(text):
    assert sketch_of_text(text) == reference.sketch(text)


def test_each_character_is_normalised_as_the_reference_says():
    for code in [*range(0x3500), *range(0x3500, 0x110000, 97)]:
        text = f"abcdefgh{chr(code)}ijklmnop"
        assert sketch_of_text(text) == reference.sketch(text), hex(code)


# --- transient errors -----------------------------------------------------------------------------
TRANSIENT_TEXTS = [
    "Rate limit exceeded", "rate_limit_error: slow down", "openai.RateLimitError", "429",
    "429: slow", "(503) upstream", "HTTP 503", "HTTP/1.1 502 Bad Gateway", "status code: 504",
    '{"error":{"code":529}}', "statusCode=503", "Overloaded", "overloaded_error",
    "Please try again in 20s", "try again later", "Service Unavailable", "too many requests",
    "The server is currently overloaded", "ThrottlingException", "RESOURCE_EXHAUSTED",
    "connection timed out", "Read timed out.", "requests.exceptions.ReadTimeout",
    "APITimeoutError", "context deadline exceeded", "DeadlineExceeded", "ETIMEDOUT",
    "connect ECONNREFUSED 1.2.3.4", "Connection reset by peer", "ConnectionResetError",
    "the connection was closed", "Broken pipe", "EPIPE", "Network is unreachable",
    "Temporary failure in name resolution", "getaddrinfo EAI_AGAIN", "socket hang up",
    "Quota exceeded for requests per minute", "resource temporarily unavailable",
    "database is locked", "sqlite3.OperationalError: database table is locked", "Too busy",
    "Internal Server Error", "HTTP 500 Internal Server Error", "internal_server_error",
    "The server is too busy", "slow down", "Please slow down!", "could not acquire lock",
    "Unable to acquire the lock in time",
    "x" * 480 + " timeout", "gateway time-out", "\ud800 timeout", "\0 timeout\0", "连接 timeout",
]
LASTING_TEXTS = [
    "", "4", "no such file", "line 429", "503 tests failed", "429 failed", "error at line 503",
    "1429", "5030", "status 4290", "status 500", "HTTP 404", "code 1", "expected 429",
    "unrecognized arguments: --timeout=3", "timeout must be a number", "Permission denied",
    "unexpected keyword argument 'timeout'", "no matching overloaded function",
    "call of overloaded 'f(int)' is ambiguous", "Disk quota exceeded", "insufficient_quota",
    "account locked", "The account is locked", "the file is locked", "a lock was acquired",
    "busy", "slowdown", "slow downloads", "internal error", "deadlock", "acquire locks",
    "x" * 500 + " timeout", "generate limits", "user declined", "bad request", "retry",
    "bandwidth throttle"[:9], "\ud800", "\0" * 600,
]


@pytest.mark.parametrize("text", TRANSIENT_TEXTS)
def test_an_error_that_waiting_may_cure(text):
    assert reference.is_transient(text)
    assert flags(text, True) == flags(None, text) == ERROR | TRANSIENT
    if text not in ("429", "429: slow", "(503) upstream"):      # no code at the beginning
        assert flags({"error": text}) == ERROR | TRANSIENT
    assert flags("output", text) == ERROR | TRANSIENT
    assert flags(text) & (ERROR | TRANSIENT) == 0


@pytest.mark.parametrize("text", LASTING_TEXTS)
def test_an_error_that_stays(text):
    assert not reference.is_transient(text)
    assert flags(text, True) == flags(f"{text} ", True) == flags(Text(text), True) == ERROR


@pytest.mark.parametrize("key", ["status", "status_code", "code"])
@pytest.mark.parametrize(("code", "expected"), [
    (429, True), (503, True), (500, False), (200, False), (True, False), (None, False),
    (503.0, False),
])
def test_a_code_among_the_fields_of_an_error(key, code, expected):
    result = {"a": "x" * 600, "is_error": True, key: code}
    for value in (result, UserDict(result)):
        assert flags(value) == (ERROR | TRANSIENT if expected else ERROR)


PHRASES = st.lists(st.sampled_from([
    *result_words.TRANSIENT, "limit", "exceeded", "503", "429", "per minute", "again later", "HTTP",
    "Time", "Out", "Error", "code", "x", "was", "reset", ": ", " ", "_", "-", "=", "'", "\n", "é",
    "function", "unavailable", "is", "(", "/1.1", "API",
]), max_size=8).map("".join)


@settings(max_examples=500, deadline=None)
@given(PHRASES | st.text(max_size=40))
@example("-503")
@example(" \t([{<#:'\"*503")
def test_any_error_is_as_transient_as_the_reference_says(text):
    assert is_transient(text) == reference.is_transient(text)


# --- acknowledgements -----------------------------------------------------------------------------
ACKNOWLEDGEMENTS = [
    "OK", "Your thought has been logged.", "Fixed!", "Plan noted.", "Clicked", "Scrolled down",
    "1 row affected", "202 Accepted", "exit status 0", "[exit code: 0]", "Image generated.",
    "Todos have been modified successfully. " + "Go on with the list and keep it up to date. " * 3,
    '{"code":0,"msg":"success","data":null}', "Subtask marked as complete", "ok.", "Done",
    "success", "saved", "moved", " saved\n", "1 replacement",
    "4 rows written", "File written successfully.", "The file x.py has been edited.", "true",
    True, {"status": "ok"}, '{"status":"ok"}', '{ "success" : true }', {"success": True},
    {"message": "File saved", "status": "success"}, {"updated": 3}, "Saved!", "✅ Done",
    "成功", "完成", "已保存", "保存しました。", "저장 완료", "готово", "listo", "hecho", "fertig",
    "terminé", "Wrote 53 bytes to /tmp/x.txt", "wrote doc0", "updated 100", "Transfer successful",
    "Your command ran successfully and did not produce any output.", Text("done"),
]
CONTENT = [
    "no matches found", "0 rows", "nothing happened", "user declined", "not saved", "null",
    "already up to date", "unchanged", "24 passed", "failed", "42", "button id=31", "false",
    "list with 4 rows", "Paris", "0 rows written", "done?", "ok\nmore", "保存失败", "未完成",
    "не сохранено", "no se ha guardado", "nicht gespeichert", "(no output)", "step 4/4 done",
    "phase=done exit=0", '{"success":true,"id":31}', "[]", "wasn't saved", "wasn\u2019t saved",
    "The capital of France was completed in 1992 by the king", "could not be saved", 42, [True],
    "ok " * 41, "done\0", "ok \ud800", {"ok": True, "rows": [1, 2]}, {"status": "pending"}, 1.5,
    "ok 1 2 3", "blocked", "12 passed in 3 seconds", "access denied", "bread need", b"ok",
    "b c d saved", {"saved": "a.txt"},
]


@pytest.mark.parametrize("value", ACKNOWLEDGEMENTS, ids=repr)
def test_a_short_acknowledgement(value):
    assert flags(value) == flags(value, False) == ACKNOWLEDGED
    assert flags(value, True) & ACKNOWLEDGED == 0


@pytest.mark.parametrize("value", CONTENT, ids=repr)
def test_a_result_with_something_to_say(value):
    assert flags(value) == 0


@pytest.mark.parametrize("value", [None, "", " \n", {}, {"output": "", "status": "ok"}])
def test_an_empty_result_is_no_acknowledgement(value):
    assert flags(value) == EMPTY


SAYINGS = st.lists(st.sampled_from([
    *sorted(result_words.DONE)[:40], *sorted(result_words.BESIDE)[:20], "no", "not", "4", "0",
    "x.py", "1,000", "{", "}", '"', ":", ",", "=", "?", "成功", "未", "名", "output", "no output",
    "isn't",
    "'", "!", "\n", "_", "٣", "İ",
]), max_size=9).map(" ".join)


@settings(max_examples=500, deadline=None)
@given(SAYINGS | st.text(max_size=30))
def test_any_result_acknowledges_what_the_reference_says(text):
    assert is_acknowledgement(text) == reference.is_acknowledgement(text)


# --- silence --------------------------------------------------------------------------------------
def call_flags(tool: str, arguments: object, **fields: object) -> int:
    return int(packed(ToolCall(tool, arguments, **fields)).call_flags[0])


CHANGING = [
    ("write_file", {"path": "x"}), ("mkdir", {"path": "x"}), ("mkdir", None), ("createFile", {}),
    ("FILE_DELETE", "x"), ("browser-click", {"ref": 3}), ("HTTPsend", []), ("put2", {}),
    ("x" * 115 + "_edit", {}),
    ("shell", "cd x && rm y"), ("shell", "cd x; rm y"), ("shell", "  mkdir -p a/b"),
    ("shell", "sudo apt-get -q update"), ("shell", "cd a && sudo systemctl stop b"),
    ("shell", "cd build"), ("shell", "cd build && (make)"), ("shell", "echo hello > notes.txt"),
    ("shell", "printf x >>'a b'"), ("shell", "grep x *.py>$OUT"), ("shell", "git commit -qm x"),
    ("shell", "find . 2>/dev/null > list"), ("sql", "insert into t values (1)"),
    ("sql", "update t set a = 1"), ("shell", " " * 298 + "rm x"),
]
LOOKING = [
    ("grep", {"pattern": "x"}), ("ls", None), ("ls", {}), ("think", {"thought": "rm it"}),
    ("settings", {}), ("rewrite", {}), ("postal_code", {}), ("x" * 120 + "_edit", {}),
    ("\u0441reate", {}), ("wr\u00efte", {}),
    ("shell", "ls -l"), ("shell", "grep -rn x ."), ("shell", "echo cd x && rm y"),
    ("shell", "cd x && ls"), ("shell", "cd x; cat y | grep z"), ("shell", "sudo ls"),
    ("shell", "sudo"), ("shell", ""), ("shell", "(rm x)"), ("shell", "remove x"),
    ("shell", "find . 2>/dev/null"), ("shell", "find . > /dev/null"), ("shell", "ls >>/dev/null"),
    ("shell", "ls >&2"), ("shell", "ls 2> errors"), ("shell", "ls &>all"), ("shell", "ls >"),
    ("shell", '{"command": "rm'), ("shell", '["rm x"]'), ("shell", " " * 300 + "rm x"),
    ("sql", "SELECT * FROM t"), ("sql", "select a from t"), ("think", "I insert it"),
]


def in_every_form(tool, arguments):
    """The same call with its arguments as text, as a mapping, and as the JSON text of it."""
    yield tool, arguments
    if isinstance(arguments, str) and not arguments.startswith("{"):
        for key in result_words.COMMAND_KEYS:
            yield tool, {"a": 1, key: arguments}
            yield tool, json.dumps({"z": [], key: arguments}, indent=1)
    elif isinstance(arguments, dict):
        yield tool, json.dumps(arguments)


@pytest.mark.parametrize(("calls", "expected"), [
    *((call, True) for call in CHANGING), *((call, False) for call in LOOKING),
], ids=repr)
def test_an_empty_result_of_a_call_that_changes_something_is_an_acknowledgement(calls, expected):
    for tool, arguments in in_every_form(*calls):
        assert reference.changes_something(tool, arguments) == expected
        for result in (None, "", " \n", {"output": ""}):
            assert call_flags(tool, arguments, result=result) == EMPTY | ACKNOWLEDGED * expected
        assert call_flags(tool, arguments, result="12 lines of it") == 0
        assert call_flags(tool, arguments, result="", error=True) == ERROR
        assert call_flags(tool, arguments, error="no such file") == ERROR


@pytest.mark.parametrize("arguments", [
    {"command": ["rm", "x"]}, {"command": None, "cmd": "rm x"}, {"cmd": "rm x", "command": "ls"},
    {"path": "rm x"}, {"Command": "rm x"}, {"args": {"command": "rm x"}}, ["rm x"], 7, b"rm x",
    "rm" * 200, {},
])
def test_only_the_first_field_for_commands_is_read_if_it_is_a_text(arguments):
    assert call_flags("shell", arguments) == EMPTY
    assert not reference.changes_something("shell", arguments)


@pytest.mark.parametrize(("tool", "command", "expected"), [
    ("sql", "INSERT INTO t VALUES (1)", True), ("sql", "Delete from t", True),
    ("shell", "./run > out.txt", True), ("sql", "SELECT a FROM t WHERE a > 5", False),
    ("shell", "grep 'a -> b' x", False), ("python", "print(1) if a > b else None", False),
])
def test_commands_in_capitals_and_comparisons(tool, command, expected):
    wanted = EMPTY | ACKNOWLEDGED if expected else EMPTY
    assert call_flags(tool, {"command": command}) == wanted


COMMANDS = st.tuples(
    st.sampled_from(["cd ", "cd x ", "sudo ", "ls ", "rm", " mkdir", "grep", "git-x", "insert"]),
    st.lists(st.sampled_from([
        "cd x", "cd ", "&&", "&", ";", "|", " ", "sudo ", "rm", "ls", ">", ">>", "2>", "&>", "&1",
        "/dev/null", "out", "-", "'", "(", "\n", "\u00e9", "_", "=", "$", '"', "\u0663",
    ]), max_size=8),
).map(lambda parts: parts[0] + "".join(parts[1]))
NAMES = st.lists(st.sampled_from([
    "write", "Write", "WRITE", "create", "Send", "A", "b", "_", "-", "2", "\u00e9", " ", "file",
]), max_size=5).map("".join)


@settings(max_examples=500, deadline=None)
@given(NAMES, COMMANDS, st.sampled_from(result_words.COMMAND_KEYS))
def test_any_call_changes_what_the_reference_says(tool, command, key):
    expected = reference.changes_something(tool, command)
    assert changes_something(tool, command) == changes_something(tool, {key: command}) == expected
    assert call_flags(tool, json.dumps({key: command})) == EMPTY | ACKNOWLEDGED * expected


# --- columns --------------------------------------------------------------------------------------
def test_flags_that_are_checked():
    known = range(16)
    possible = [value for value in known if not value & 4 or value & 1]
    possible = [value for value in possible if not value & 8 or not value & 1]
    for value in range(256):
        column = np.zeros(70, np.uint8)
        column[65] = column[69] = value
        expected = -1 if value in possible else 65
        assert _columns.first_bad_flags(column) == expected, value
    assert _columns.first_bad_flags(np.array(possible, np.uint8)) == -1
    assert _columns.first_bad_flags(np.zeros(0, np.uint8)) == -1


def test_batches_hold_the_evidence_and_take_it():
    calls = [ToolCall("t", {"ts": 1}, "saved"), ToolCall("t", {"ts": 2}, error="timed out")]
    batch = RoundBatch.from_rounds([Round(calls, SENTENCE), Round(text="short")])
    assert batch.call_shape.tolist() == [hash_shape("t", {"ts": 1})] * 2
    assert batch.call_flags.tolist() == [ACKNOWLEDGED, ERROR | TRANSIENT]
    assert batch.text_sketch.tolist() == [sketch_of_text(SENTENCE), 0]
    fleet = Fleet()
    assert len(fleet.step(fleet.open(2), batch)) == 2


def test_packed_runs_keep_the_evidence():
    runs = [
        RecordedRun("test", Path("x"), str(number), [
            Round([ToolCall("t", {"ts": number}, "saved")], f"{SENTENCE} Run {'z' * number}."),
        ] * number, [0] * number, None, None)
        for number in (1, 2, 3)
    ]
    (together,) = packed_runs(runs)
    for number in range(3):
        (alone,) = packed_runs(runs[number : number + 1])
        part = together.part(number, number + 1)
        for name in ("call_shape", "call_flags", "text_sketch"):
            assert getattr(part.rounds, name).tolist() == getattr(alone.rounds, name).tolist()
        assert (part.rounds.call_flags == ACKNOWLEDGED).all()
        assert (part.rounds.text_sketch != 0).all()
