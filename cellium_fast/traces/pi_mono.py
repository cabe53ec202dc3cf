"""Coding sessions of pi-mono: JSON Lines of entries, `{type: message, message: {role, …}}`.

A session is a run; where files were joined, each header begins the next. Entries are read in the
order they were written, which is that of the work, also where the session went back and took
another branch (`parentId`). A model call that was aborted or failed before it gave anything is
no round.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cellium_fast.traces.reader import Record
from cellium_fast.traces.runs import Problem, RecordedRun, RunNames
from cellium_fast.traces.translation import (
    Translation,
    fields,
    objects,
    text_parts,
    token_sum,
    tool_call,
)

NAME = "pi-mono"

_CONTEXT = ("input", "cacheRead", "cacheWrite", "output")
# What the person ran, what an extension added, and notes of the session about itself.
_OTHER_ROLES = frozenset(
    {"bashExecution", "custom", "hookMessage", "branchSummary", "compactionSummary"}
)


def recognises(value: Any) -> bool:
    """Whether the record is the header of a session, or an entry with a message in it."""
    if not isinstance(value, dict):
        return False
    if value.get("type") == "session":
        return "cwd" in value and "timestamp" in value
    return value.get("type") == "message" and "role" in fields(value.get("message"))


def read(path: Path, records: Iterator[Record | Problem]) -> Iterator[RecordedRun | Problem]:
    """Yield the runs of the records. See `cellium_fast.traces.reader.Reader`."""
    names = RunNames(path)
    run, session = "", None
    for record in records:
        if isinstance(record, Problem):
            yield record
            continue
        entry = record.value
        if fields(entry).get("type") == "session":
            if session is not None:
                yield from _found(path, run, session)
            run, session = names.name(entry), Translation()
            continue
        if session is None:
            run, session = names.unique(path.stem), Translation()
        _add_entry(session, entry, record.line or 1)
    if session is not None:
        yield from _found(path, run, session)


def _found(path: Path, run: str, session: Translation) -> Iterator[RecordedRun | Problem]:
    rounds, events = session.read()
    yield from session.problems(path, run, None, "line")
    yield RecordedRun(NAME, path, run, rounds, events)


def _add_entry(session: Translation, entry: Any, line: int) -> None:
    if not isinstance(entry, dict):
        session.add(entry, line)
    elif entry.get("type") == "compaction":
        session.add_compaction()
    elif entry.get("type") == "message":
        message = fields(entry.get("message"))
        role = message.get("role")
        if role == "assistant":
            _add_round(session, message, line)
        elif role == "toolResult":
            session.add(_tool_result(message), line)
        elif not isinstance(role, str) or role not in _OTHER_ROLES:
            session.add(message, line)


def _add_round(session: Translation, message: Mapping[str, Any], line: int) -> None:
    content = message.get("content")
    calls = [part for part in objects(content) if part.get("type") == "toolCall"]
    text = text_parts(content)
    if message.get("stopReason") in ("aborted", "error") and not calls and not text:
        return
    usage = fields(message.get("usage"))
    total = usage.get("totalTokens") or token_sum(usage, _CONTEXT)
    session.add(
        {
            "role": "assistant",
            "content": text,
            "tool_calls": [
                tool_call(part.get("id"), part.get("name"), part.get("arguments"))
                for part in calls
            ],
            # An aborted call has used nothing, as far as is told.
            "usage": {"total_tokens": total or None},
        },
        line,
    )


def _tool_result(message: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "role": "tool",
        "tool_call_id": message.get("toolCallId"),
        "content": message.get("content"),
        "isError": message.get("isError"),
    }
