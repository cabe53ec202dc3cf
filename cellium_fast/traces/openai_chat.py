"""OpenAI chat messages with `tool_calls`: bare, in wrapper objects, in lists or lines of these.

Each assistant message is a round with its text, its tool calls and the results that follow.
Read are, as JSON or JSON Lines: a list of messages; an object with such a list under one of
`MESSAGE_KEYS`; lists of either; and JSON Lines with one message a line, which are one run.
tau-bench results (`task_id`, `trial`, `reward`, `traj`) are such objects.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cellium_fast.rounds import Round, ToolCall
from cellium_fast.traces.evidence import full_reward, success_label
from cellium_fast.traces.reader import Record
from cellium_fast.traces.runs import (
    NO_EVENT,
    USER_MESSAGE,
    Complaints,
    Problem,
    RecordedRun,
    RunNames,
)
from cellium_fast.traces.unsupported import has_foreign_parts, unsupported_format

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
_LIMIT_KEYS = ("context_limit", "context_window")
_TEXT_PARTS = frozenset({"text", "input_text", "output_text"})
_UNNAMED_TOOL = "unnamed"
_TOO_MANY_TOKENS = 9.2e18  # about 2**63; from here on no session takes a number of tokens
_IMPOSSIBLE_TOKENS = "an impossible number of tokens, left out"


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
    chat = _Chat(any_error_start=is_tau)
    for index, message in enumerate(messages):
        chat.add(message, index)
    context_limit = _context_limit(fields, chat.complaints)
    yield from chat.complaints.problems(
        path,
        run,
        line,
        lambda index: f"message {index + 1}" if lines is None else f"line {lines[index]}",
    )
    yield RecordedRun(
        TAU_BENCH if is_tau else NAME,
        path,
        run,
        chat.rounds,
        chat.events,
        success=full_reward(fields.get("reward")) if is_tau else success_label(fields),
        context_limit=context_limit,
    )


def _context_limit(fields: dict[str, Any], complaints: Complaints) -> int | None:
    for key in _LIMIT_KEYS:
        limit = fields.get(key)
        if isinstance(limit, int) and not isinstance(limit, bool) and limit > 0:
            if limit < _TOO_MANY_TOKENS:
                return limit
            complaints.add(f"{key}: {_IMPOSSIBLE_TOKENS}")
    return None


class _Chat:
    """The rounds of one conversation, message by message."""

    __slots__ = ("_any_error_start", "_event", "_older", "_waiting", "complaints", "events",
                 "rounds")  # fmt: skip

    def __init__(self, any_error_start: bool) -> None:
        self.rounds: list[Round] = []
        self.events: list[int] = []
        self.complaints = Complaints()
        self._any_error_start = any_error_start
        self._event = NO_EVENT
        self._waiting: list[ToolCall] = []  # of the last round, without a result so far
        self._older: dict[str, ToolCall] = {}  # the same of earlier rounds, by id

    def add(self, message: Any, index: int) -> None:
        """Take the next message; a faulty one is noted and taken as far as it goes."""
        role = message.get("role") if isinstance(message, dict) else None
        if role == "assistant":
            self._add_round(message, index)
        elif role == "tool" or role == "function":
            self._add_result(message, index)
        elif role == "user":
            # Before the first round there is nothing a user could have interrupted.
            if self.rounds:
                self._event = USER_MESSAGE
        elif role != "system" and role != "developer":
            what = "a message" if isinstance(message, dict) else _kind(message)
            self.complaints.add(f"{what} without a known role", index)

    def _add_round(self, message: dict[str, Any], index: int) -> None:
        for call in self._waiting:
            if call.id is not None:
                self._older[call.id] = call
        calls = self._read_calls(message, index)
        content = message.get("content")
        text = content if isinstance(content, str) else self._joined_text(content, index)
        tokens = self._context_tokens(message.get("usage"), index)
        self.rounds.append(Round(calls=calls, text=text, context_tokens=tokens))
        self.events.append(self._event)
        self._event = NO_EVENT
        self._waiting = calls.copy()

    def _context_tokens(self, usage: Any, index: int) -> float | None:
        tokens = _context_tokens(usage)
        if tokens is None or tokens < _TOO_MANY_TOKENS:
            return tokens
        self.complaints.add(f"usage: {_IMPOSSIBLE_TOKENS}", index)
        return None

    def _joined_text(self, content: Any, index: int) -> str | None:
        if isinstance(content, list):
            if has_foreign_parts(content):
                self.complaints.add("tool calls among the parts of the content, not read", index)
            return "\n".join(filter(None, map(_part_text, content))) or None
        if content is not None:
            self.complaints.add(f"{_kind(content)} as content", index)
        return None

    def _read_calls(self, message: dict[str, Any], index: int) -> list[ToolCall]:
        entries = message.get("tool_calls")
        if entries is None:
            legacy = message.get("function_call")
            entries = [] if legacy is None else [{"function": legacy}]
        elif not isinstance(entries, list):
            self.complaints.add(f"{_kind(entries)} as tool_calls", index)
            entries = []
        return [self._read_call(entry, index) for entry in entries]

    def _read_call(self, entry: Any, index: int) -> ToolCall:
        # A faulty entry stays a call, so that results still find theirs by order.
        if not isinstance(entry, dict):
            self.complaints.add(f"{_kind(entry)} as tool call", index)
            return ToolCall(_UNNAMED_TOOL)
        identity = entry.get("id")
        identity = identity if isinstance(identity, str) and identity else None
        function = entry.get("function")
        if function is None and isinstance(entry.get("custom"), dict):
            function = {**entry["custom"], "arguments": entry["custom"].get("input")}
        if not isinstance(function, dict):
            self.complaints.add(f"{_kind(function)} as function of a tool call", index)
            return ToolCall(_UNNAMED_TOOL, id=identity)
        name = function.get("name")
        if not isinstance(name, str) or not name:
            self.complaints.add(f"{_kind(name)} as tool name", index)
            name = _UNNAMED_TOOL
        return ToolCall(name, function.get("arguments"), id=identity)

    def _add_result(self, message: dict[str, Any], index: int) -> None:
        identity = message.get("tool_call_id")
        if identity is None:
            several = message.get("tool_call_ids")  # SWE-agent's histories
            identity = several[0] if isinstance(several, list) and several else None
        call = self._call_of(identity if isinstance(identity, str) and identity else None)
        if call is None:
            self.complaints.add("a tool result that belongs to no call", index)
            return
        result = message.get("content")
        if isinstance(result, list) and all(map(_is_text_part, result)):
            result = "\n".join(filter(None, map(_part_text, result)))
        call.result = result
        call.error = self._error(message, result)

    def _call_of(self, identity: str | None) -> ToolCall | None:
        waiting = self._waiting
        if identity is None:
            return waiting.pop(0) if waiting else None
        for position, call in enumerate(waiting):
            if call.id == identity:
                return waiting.pop(position)
        late = self._older.pop(identity, None)
        if late is not None:
            return late
        for position, call in enumerate(waiting):
            if call.id is None:
                return waiting.pop(position)
        return None

    def _error(self, message: dict[str, Any], result: Any) -> bool | str | None:
        error = message.get("error")
        if error:
            return error if isinstance(error, str) else True
        flag = message.get("is_error", message.get("isError"))
        if isinstance(flag, bool):
            return flag
        if message.get("status") == "error":
            return True
        if not isinstance(result, str):
            return None
        if not result.startswith("Error"):
            return False
        return self._any_error_start or len(result) == 5 or result[5] == ":" or result[5].isspace()


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    kinds = {bool: "a boolean", int: "a number", float: "a number", str: "a text", list: "a list"}
    return kinds.get(type(value), "an object")


def _is_text_part(part: Any) -> bool:
    return isinstance(part, str) or (isinstance(part, dict) and part.get("type") in _TEXT_PARTS)


def _part_text(part: Any) -> str | None:
    if isinstance(part, str):
        return part
    text = part.get("text") if isinstance(part, dict) else None
    return text if isinstance(text, str) else None


def _context_tokens(usage: Any) -> float | None:
    """Return the size of the context after a model call. Cached tokens are within the prompt's."""
    if not isinstance(usage, dict):
        return None
    total = _count(usage.get("total_tokens"))
    if total is not None:
        return total
    prompt = _count(usage.get("prompt_tokens", usage.get("input_tokens")))
    if prompt is None:
        return None
    completion = usage.get("completion_tokens", usage.get("output_tokens"))
    return prompt + (_count(completion) or 0)


def _count(value: Any) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    if value >= _TOO_MANY_TOKENS:
        return math.inf  # an integer of any size, which cannot be added to a float
    return value if value >= 0 else None
