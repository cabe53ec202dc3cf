"""Inspect AI logs: `samples[]` of messages and scores, in a JSON log or a `.eval` archive.

Every assistant message that the model generated is a round; what stands before it as the input
of the sample is none. The tokens are those of the model call behind the round, told by its event.

A user message after the agent began is mostly the harness that prompts it to go on. Only those of
an operator are `USER_MESSAGE`.

A run succeeded if its scorers say so, and failed if they deny it. Where they disagree or give
partial credit ("P") its label is unknown; a scorer with values of its own is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from cellium_fast.traces.evidence import SHELL_ERRORS, is_error_text
from cellium_fast.traces.reader import Record
from cellium_fast.traces.runs import Problem, RecordedRun, RunNames
from cellium_fast.traces.translation import Translation, fields, objects, text_parts, tool_call
from cellium_fast.traces.unsupported import has_calls_by_name

NAME = "inspect"

# Correct, incorrect, no answer, partial; some scorers write numbers or booleans.
_VERDICTS = {"C": True, "I": False, "N": False, "P": None, 1: True, 0: False}


def recognises(value: Any) -> bool:
    """Whether the record is a log, a sample, or a list of samples or of their messages."""
    if isinstance(value, list):
        return any(_is_sample(item) or has_calls_by_name(item) for item in objects(value))
    return _is_log(value) or _is_sample(value)


def _is_log(value: Any) -> bool:
    return isinstance(value, dict) and "eval" in value and ("plan" in value or "samples" in value)


def _is_sample(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("messages"), list):
        return False
    return "epoch" in value or any(map(has_calls_by_name, objects(value["messages"])))


def read(path: Path, records: Iterator[Record | Problem]) -> Iterator[RecordedRun | Problem]:
    """Yield the runs of the records. See `cellium_fast.traces.reader.Reader`."""
    names = RunNames(path)
    for record in records:
        if isinstance(record, Problem):
            yield record
            continue
        value, line = record.value, record.line
        samples = value.get("samples") if _is_log(value) else value
        if not isinstance(samples, list):
            if not _is_log(value):
                yield from _read_sample(path, value, names, line, None)
            elif not record.partial:
                yield Problem(path, line, "an Inspect AI log without samples")
        elif any(map(has_calls_by_name, objects(samples))):
            yield from _read_sample(path, {"messages": samples}, names, line, None)
        else:
            for item, sample in enumerate(samples, 1):
                yield from _read_sample(path, sample, names, line, item)


def _read_sample(
    path: Path, sample: Any, names: RunNames, line: int | None, item: int | None
) -> Iterator[RecordedRun | Problem]:
    run = names.name(fields(sample), line, item)
    messages = fields(sample).get("messages")
    if not isinstance(messages, list):
        yield Problem(path, line, f"run {run!r}: no list of messages in it")
        return
    translation = Translation()
    model_calls = _model_calls(sample)
    for place, message in enumerate(messages, 1):
        _add_message(translation, message, place, model_calls)
    rounds, events = translation.read()
    yield from translation.problems(path, run, line, "message")
    yield RecordedRun(NAME, path, run, rounds, events, _success(sample.get("scores")))


def _add_message(
    translation: Translation, message: Any, place: int, model_calls: dict[str, _ModelCall]
) -> None:
    known = fields(message)
    role, source = known.get("role"), known.get("source")
    if source == "input" or (role == "user" and source != "operator"):
        return
    if role == "assistant":
        model_call = model_calls.get(_identity(known), _ModelCall(None, False))
        if model_call.is_after_compaction:
            translation.add_compaction()
        message = {
            "role": role,
            "content": text_parts(known.get("content")),
            "tool_calls": _tool_calls(known.get("tool_calls")),
            "usage": model_call.usage,
        }
    elif role == "tool":
        message = {**known, **_error(known)}
    translation.add(message, place)


def _tool_calls(calls: Any) -> Any:
    if not isinstance(calls, list):
        return calls
    return [
        tool_call(call.get("id"), call.get("function"), call.get("arguments"))
        if isinstance(call, dict) else call
        for call in calls
    ]  # fmt: skip


def _error(message: Mapping[str, Any]) -> dict[str, Any]:
    error = message.get("error")
    if error:
        return {"error": fields(error).get("message") or fields(error).get("type") or True}
    # Tools that run commands raise nothing when a command fails: they return what it printed.
    content = message.get("content")
    return {"is_error": is_error_text(content, SHELL_ERRORS)} if isinstance(content, str) else {}


class _ModelCall(NamedTuple):
    usage: Any
    is_after_compaction: bool


def _model_calls(sample: Mapping[str, Any]) -> dict[str, _ModelCall]:
    """Return the model calls of a sample by the identity of the message they gave."""
    found: dict[str, _ModelCall] = {}
    is_after_compaction = False
    for event in objects(sample.get("events")):
        if event.get("event") == "compaction":
            is_after_compaction = True
        elif event.get("event") == "model":
            output = fields(event.get("output"))
            choice = next(iter(objects(output.get("choices"))), {})
            identity = _identity(fields(choice.get("message")))
            found[identity] = _ModelCall(output.get("usage"), is_after_compaction)
            is_after_compaction = False
    found.pop("", None)
    return found


def _identity(message: Mapping[str, Any]) -> str:
    """Return the id of an assistant message, in older logs that of its first tool call."""
    calls = objects(message.get("tool_calls"))
    ids = (message.get("id"), calls[0].get("id") if calls else None)
    return next((identity for identity in ids if isinstance(identity, str)), "")


def _success(scores: Any) -> bool | None:
    values = [fields(score).get("value") for score in fields(scores).values()]
    verdicts = {
        _VERDICTS[value]
        for value in values
        if isinstance(value, str | int | float) and value in _VERDICTS
    }
    return verdicts.pop() if len(verdicts) == 1 else None
