"""OpenAI chat messages with `tool_calls`: bare, in wrapper objects, in lists or lines of these.

Each assistant message is a round with its text, its tool calls and the results that follow.
Read are, as JSON or JSON Lines: a list of messages; an object with such a list under one of
`MESSAGE_KEYS`; lists of either; and JSON Lines with one message a line, which are one run.
tau-bench results (`task_id`, `trial`, `reward`, `traj`) are such objects.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cellium_fast import _chat
from cellium_fast.traces.evidence import full_reward, success_label
from cellium_fast.traces.reader import Record
from cellium_fast.traces.runs import Complaints, Problem, RecordedRun, RunNames
from cellium_fast.traces.unsupported import unsupported_format

NAME = "openai-chat"
TAU_BENCH = "tau-bench"
MESSAGE_KEYS = (
    "messages",
    "traj",
    "trajectory",
    "history",
    "conversation",
    "conversations",
    "chat",
    "dialogue",
    "transcript",
)

_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})


def recognises(value: Any) -> bool:
    """Whether the record is a message, a list of messages, a wrapper, or a list of these."""
    if isinstance(value, dict):
        return _is_message(value) or _messages_in(value) is not None
    if not isinstance(value, list):
        return False
    return _is_messages(value) or any(
        _is_messages(item) if isinstance(item, list) else _messages_in(item) is not None
        for item in value
    )


def read(path: Path, records: Iterator[Record | Problem]) -> Iterator[RecordedRun | Problem]:
    """Yield the runs of the records. See `cellium_fast.traces.reader.Reader`."""
    names = RunNames(path)
    single: list[Any] = []
    lines: list[int | None] = []
    for record in records:
        if isinstance(record, Problem):
            yield record
        elif _is_message(record.value) or (single and not recognises(record.value)):
            # One message a line. A line that is none belongs to the run as well: it is told
            # there, as it is for an entry of a list of messages.
            single.append(record.value)
            lines.append(record.line)
        else:
            yield from _read_value(path, record, names)
    if single:
        # The first lines alone could not tell this from the formats that resemble it.
        unsupported = unsupported_format(single)
        if unsupported is not None:
            yield Problem(path, None, "unsupported format ({}): {}".format(*unsupported))
            return
        yield from _read_run(path, {}, single, names.unique(path.stem), None, lines)


def _is_message(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    role = value.get("role")
    return isinstance(role, str) and role in _ROLES


def _is_messages(value: list[Any]) -> bool:
    for item in value:
        if _is_message(item):
            return True
        if isinstance(item, list) or _messages_in(item) is not None:
            return False
    return False


def _messages_in(value: Any) -> list[Any] | None:
    if not isinstance(value, dict):
        return None
    for key in MESSAGE_KEYS:
        messages = value.get(key)
        # An empty list shows nothing about its kind: only the two usual names are trusted.
        if isinstance(messages, list) and (
            any(map(_is_message, messages)) or (not messages and key in ("messages", "traj"))
        ):
            return messages
    return None


def _read_value(path: Path, record: Record, names: RunNames) -> Iterator[RecordedRun | Problem]:
    value, line = record.value, record.line
    if not isinstance(value, list):
        yield from _read_wrapper(path, value, names, line, None)
    elif _is_messages(value):
        yield from _read_run(path, {}, value, names.name({}, line), line)
    else:
        for item, one in enumerate(value, 1):
            yield from _read_wrapper(path, one, names, line, item)


def _read_wrapper(
    path: Path, value: Any, names: RunNames, line: int | None, item: int | None
) -> Iterator[RecordedRun | Problem]:
    fields = value if isinstance(value, dict) else {}
    messages = value if isinstance(value, list) else _messages_in(value)
    run = names.name(fields, line, item)
    if messages is None:
        yield Problem(path, line, f"run {run!r}: no list of chat messages in it")
    else:
        yield from _read_run(path, fields, messages, run, line)


def _read_run(
    path: Path,
    fields: dict[str, Any],
    messages: list[Any],
    run: str,
    line: int | None,
    lines: list[int | None] | None = None,
) -> Iterator[RecordedRun | Problem]:
    is_tau = "traj" in fields and ("reward" in fields or "task_id" in fields)
    complaints = Complaints()
    rounds, events = _chat.read_messages(messages, complaints, is_tau)
    limit = _chat.context_limit(fields, complaints)
    yield from complaints.problems(
        path,
        run,
        line,
        lambda index: f"message {index + 1}" if lines is None else f"line {lines[index]}",
    )
    yield RecordedRun(
        TAU_BENCH if is_tau else NAME,
        path,
        run,
        rounds,
        events,
        success=full_reward(fields.get("reward")) if is_tau else success_label(fields),
        context_limit=limit,
    )
