"""The reader of Inspect AI logs, as JSON and in `.eval` archives."""

from __future__ import annotations

import io
import json
import random
import zipfile
from pathlib import Path
from typing import Any

import pytest
from trace_files import ANSWER, USER, Files, Reading

from cellium_fast import traces
from cellium_fast.traces import archives, inspect_ai

SAMPLE_LOG = Path(__file__).parent.parent / "examples" / "runs" / "tide_tables.json"
GENERATED = {**ANSWER, "source": "generate"}


def asks(*names: str, **other: Any) -> dict[str, Any]:
    calls = [{"id": name, "function": name, "arguments": {"at": 1}} for name in names]
    return {"role": "assistant", "content": "", "source": "generate", "tool_calls": calls, **other}


def gives(name: str, content: Any, **other: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": name, "function": name, "content": content, **other}


def sample(*messages: Any, **other: Any) -> dict[str, Any]:
    return {"id": "tide", "epoch": 2, "messages": list(messages), **other}


def log(*samples: Any) -> dict[str, Any]:
    return {"version": 2, "status": "success", "eval": {}, "plan": {}, "samples": list(samples)}


def archive(*samples: Any, compression: int = zipfile.ZIP_DEFLATED, **other: bytes) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", compression) as members:
        members.writestr("_journal/start.json", "{}")
        for number, one in enumerate(samples):
            text = one if isinstance(one, bytes) else json.dumps(one)
            members.writestr(f"samples/{number}_epoch_1.json", text)
        for name, text in other.items():
            members.writestr(name, text)
        members.writestr("header.json", json.dumps(log()))
    return data.getvalue()


def test_the_sample_log() -> None:
    reading = Reading(traces.read(SAMPLE_LOG))
    assert not reading.problems
    lost, found = reading.runs
    assert [(run.source, run.run, run.success) for run in reading.runs] == [
        ("inspect", "1/1", False), ("inspect", "2/1", True),
    ]  # fmt: skip
    assert [len(step.calls) for step in lost.rounds] == [1] * 6 + [0, 1]
    assert all(str(step.calls[0].error).startswith("Tables are kept") for step in lost.rounds[:6])
    assert lost.rounds[1].calls[0].arguments == {"harbour": "Skerry Bay", "day": "12 May"}
    assert lost.rounds[0].text == "I look up the table of Skerry Bay."
    assert [step.context_tokens for step in lost.rounds[:3]] == [450, 540, 630]
    assert lost.events == [0] * 8
    assert [one.error for step in found.rounds for one in step.calls] == [True] + [False] * 3
    assert found.rounds[2].calls[0].result == "high water 06:25, 18:50"


def test_an_archive_is_read_like_the_log(files: Files) -> None:
    samples = json.loads(SAMPLE_LOG.read_bytes())["samples"]
    of_log = Reading(traces.read(SAMPLE_LOG)).runs
    reading = files.read_bytes(archive(*samples), "tides.eval")
    assert not reading.problems
    assert [(run.run, run.rounds, run.events, run.success) for run in reading.runs] == [
        (run.run, run.rounds, run.events, run.success) for run in of_log
    ]
    assert traces.find_files([files.folder]) == [files.folder / "tides.eval"]
    assert traces.detect(files.folder / "tides.eval").reader is inspect_ai


@pytest.mark.parametrize(
    "value",
    [
        log(sample(ANSWER)),
        {"eval": {}, "samples": [sample(ANSWER)]},
        sample(ANSWER),
        [sample(ANSWER)],
        {"messages": [USER, asks("look")]},
        [USER, asks("look")],
    ],
)
def test_inspect_logs_are_told_by_content(files: Files, value: Any) -> None:
    assert files.detect(value).reader is inspect_ai
    assert len(files.read(value).run.rounds) == 1


def test_samples_on_lines(files: Files) -> None:
    reading = files.read_lines(sample(ANSWER), 5, sample(ANSWER, id="ebb"), sample(ANSWER))
    assert [run.run for run in reading.runs] == ["tide/2", "ebb/2", "tide/2#2"]
    assert reading.problem.line == 2 and "no list of messages" in reading.problem.why


@pytest.mark.parametrize(
    ("values", "success"),
    [
        (["C"], True),
        (["I"], False),
        (["N"], False),
        (["P"], None),
        ([1], True),
        ([0.0], False),
        ([True], True),
        ([0.5], None),
        ([7], None),
        (["yes"], None),
        ([None], None),
        ([["C"]], None),
        (["C", 1.0], True),
        (["I", 0], False),
        (["C", "I"], None),
        (["C", "P"], None),
        (["C", 523, {"a": 1}], True),
        ([], None),
    ],
)
def test_labels(files: Files, values: list[Any], success: bool | None) -> None:
    scores = {f"scorer {number}": {"value": value} for number, value in enumerate(values)}
    assert files.read(log(sample(ANSWER, scores=scores))).run.success is success


@pytest.mark.parametrize("scores", [None, 5, [], {"a": None}, {"a": "C"}])
def test_foreign_scores_are_no_label(files: Files, scores: Any) -> None:
    assert files.read(log(sample(ANSWER, scores=scores))).run.success is None


def test_only_what_the_model_generated_is_a_round(files: Files) -> None:
    given = [{**one, "source": "input"} for one in (USER, asks("look"), gives("look", "x"), USER)]
    run = files.read(log(sample(*given, GENERATED))).run
    assert [step.text for step in run.rounds] == ["done"]


def test_only_an_operator_interrupts(files: Files) -> None:
    operator = {**USER, "source": "operator"}
    run = files.read(log(sample(USER, GENERATED, USER, GENERATED, operator, GENERATED))).run
    assert run.events == [0, 0, traces.USER_MESSAGE]


@pytest.mark.parametrize(
    ("result", "error"),
    [
        (gives("look", "", error={"type": "timeout", "message": "It took too long."}),
         "It took too long."),
        (gives("look", "x", error={"type": "timeout", "message": ""}), "timeout"),
        (gives("look", "x", error="odd"), True),
        (gives("look", "x", error=None), False),
        (gives("look", "bash: line 1: owner: command not found"), True),
        (gives("look", "Traceback (most recent call last):\n"), True),
        (gives("look", "12 errors"), False),
        (gives("look", [{"type": "text", "text": "x"}]), False),
        (gives("look", None), None),
    ],
)  # fmt: skip
def test_errors(files: Files, result: Any, error: Any) -> None:
    run = files.read(log(sample(asks("look"), result))).run
    assert run.rounds[0].calls[0].error == error


def model_event(identity: Any, tokens: Any, **message: Any) -> dict[str, Any]:
    choice = {"message": {"id": identity, **message}}
    return {"event": "model", "output": {"choices": [choice], "usage": {"total_tokens": tokens}}}


def test_tokens_and_compactions_come_from_the_events_of_the_model(files: Files) -> None:
    messages = [
        {**GENERATED, "id": "m1"}, asks("look"), gives("look", "x"), {**GENERATED, "id": "m3"},
        GENERATED,
    ]  # fmt: skip
    events = [
        model_event("m1", 100),
        5,
        model_event(None, 200, tool_calls=asks("look")["tool_calls"]),
        {"event": "compaction"},
        model_event("m3", 50),
        model_event("that of a scorer", 900),
        {"event": "model"},
        {"event": "model", "output": {"choices": [None]}},
    ]
    run = files.read(log(sample(*messages, events=events))).run
    assert [step.context_tokens for step in run.rounds] == [100, 200, 50, None]
    assert run.events == [0, 0, traces.COMPACTION, 0]


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ({"version": 2, "eval": {}, "plan": {}}, "without samples"),
        ({"eval": {}, "samples": None}, "without samples"),
        (log(None, sample(ANSWER)), "no list of messages"),
        (log({"id": 1}, sample(ANSWER)), "no list of messages"),
        (log(sample(ANSWER, 5)), "message 2: a number without a known role"),
        (log(sample({**GENERATED, "tool_calls": 5})), "a number as tool_calls"),
        (log(sample({**GENERATED, "tool_calls": [5]})), "a number as tool call"),
        (log(sample({**GENERATED, "tool_calls": [{"function": None}]})), "null as tool name"),
        (log(sample({**GENERATED, "content": 5})), "a number as content"),
        (log(sample(gives("look", "x"))), "belongs to no call"),
        (log(sample({**GENERATED, "id": "m"}, events=[model_event("m", 1e300)])), "impossible"),
    ],
)
def test_faults(files: Files, value: Any, word: str) -> None:
    assert word in files.read(value).problem.why


def test_an_empty_log_has_no_runs(files: Files) -> None:
    reading = files.read(log())
    assert not reading.runs and not reading.problems


def test_of_a_cut_off_log_the_problem_is_told_once(files: Files) -> None:
    data = SAMPLE_LOG.read_bytes()
    reading = files.read_bytes(data[: len(data) // 2])
    assert not reading.runs and "not JSON" in reading.problem.why


# Archives


def test_broken_members_are_problems_and_the_others_are_read(files: Files) -> None:
    reading = files.read_bytes(archive(b"{", sample(ANSWER), b"5", b"\xff", sample(ANSWER)))
    assert len(reading.runs) == 2
    assert [problem.why.split(": ")[0] for problem in reading.problems] == [
        "samples/0_epoch_1.json", "run 'run'", "samples/3_epoch_1.json",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (archive(), "without samples/*.json"),
        (archive(**{"samples/notes.txt": b"x", "other.json": b"[]"}), "without samples/*.json"),
        (archive(sample(ANSWER))[:200], "a broken zip archive"),
        (b"PK\x03\x04", "a broken zip archive"),
    ],
)
def test_archives_without_samples(files: Files, data: bytes, word: str) -> None:
    reading = files.read_bytes(data)
    assert not reading.runs and word in reading.problem.why


def test_a_member_too_large_is_not_unpacked(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = archive(sample(ANSWER), sample({**ANSWER, "content": "x" * 4096}))
    monkeypatch.setattr(archives, "LARGEST_MEMBER", 1024)
    reading = files.read_bytes(data)
    assert len(reading.run.rounds) == 1
    assert "samples/1_epoch_1.json: unpacks to" in reading.problem.why


def test_a_member_that_needs_a_password(files: Files) -> None:
    data = bytearray(archive(sample(ANSWER)))
    place = data.index(b"PK\x01\x02", data.index(b"PK\x01\x02") + 1)    # the entry of the sample
    data[place + 8] |= 1
    local = data.index(b"PK\x03\x04", 1)
    data[local + 6] |= 1
    assert "cannot be unpacked (" in files.read_bytes(bytes(data)).problem.why


def test_zstd(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytearray(archive(sample(ANSWER), compression=zipfile.ZIP_STORED))
    place = data.index(b"PK\x01\x02", data.index(b"PK\x01\x02") + 1)
    data[place + 10] = 93
    data[data.index(b"PK\x03\x04", 1) + 8] = 93

    def absent(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(archives, "import_module", absent)
    why = files.read_bytes(bytes(data)).problem.why
    assert "zstd" in why or "cannot be unpacked" in why     # Python itself can from 3.14 on


def test_archives_packed_with_zstd_are_read(files: Files) -> None:
    module: Any = zipfile
    if not hasattr(zipfile, "ZIP_ZSTANDARD"):
        module = pytest.importorskip("backports.zstd.zipfile")
    data = io.BytesIO()
    with module.ZipFile(data, "w", module.ZIP_ZSTANDARD) as members:
        members.writestr("samples/1_epoch_1.json", json.dumps(sample(ANSWER)))
    assert files.read_bytes(data.getvalue()).run.run == "tide/2"


@pytest.mark.parametrize("seed", range(20))
def test_broken_bytes_in_an_archive_never_raise(files: Files, seed: int) -> None:
    chance = random.Random(seed)
    data = bytearray(archive(*json.loads(SAMPLE_LOG.read_bytes())["samples"]))
    for _ in range(chance.randint(1, 30)):
        data[chance.randrange(4, len(data))] = chance.randrange(256)
    reading = files.read_bytes(bytes(data))
    assert not any("from here on" in problem.why for problem in reading.problems)
