"""mini-swe-agent trajectories: chat messages whose commands stand in a fenced block of the text.

The one block of shell code in a message is the command, as the agent demands; a message without
one has no call. The message after a command is its result: an exit code and what was printed,
from `extra` where it is told there. Newer trajectories have tool calls instead of blocks.

What the harness says to a message without a command is no user message; an interruption is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from cellium_fast.traces.evidence import (
    SHELL_ERRORS,
    command_error,
    is_error_text,
    success_label,
)
from cellium_fast.traces.reader import Record
from cellium_fast.traces.runs import Problem, RecordedRun, RunNames
from cellium_fast.traces.translation import Translation, fields, objects, tool_call
from cellium_fast.traces.unsupported import has_return_code

NAME = "mini-swe-agent"

_TOOL = "bash"
_BLOCK_START = re.compile(r"```(?:bash|sh|mswea_bash_command)[ \t]*\n")
_BLOCK_END = "\n```"
_RETURN_CODE = re.compile(
    r"(?:<exception>.*?</exception>\s*)?<returncode>\s*(-?\d{1,9})\s*</returncode>\s*", re.DOTALL
)
_OUTPUT = re.compile(r"<output>\n?(.*?)\n?</output>\s*\Z", re.DOTALL)
_ERRORS = (*SHELL_ERRORS, "The last command <command>")     # it took too long


def recognises(value: Any) -> bool:
    """Whether the record is a trajectory, or a list of messages of one."""
    if isinstance(value, dict):
        version = value.get("trajectory_format")
        if isinstance(version, str) and version.startswith(NAME):
            return True
    return any(map(has_return_code, objects(_messages_of(value))))


def _messages_of(value: Any) -> Any:
    return fields(value).get("messages") if isinstance(value, dict) else value


def read(path: Path, records: Iterator[Record | Problem]) -> Iterator[RecordedRun | Problem]:
    """Yield the runs of the records. See `cellium_fast.traces.reader.Reader`."""
    names = RunNames(path)
    for record in records:
        if isinstance(record, Problem):
            yield record
            continue
        known, line = fields(record.value), record.line
        run = names.name(known, line)
        messages = _messages_of(record.value)
        if not isinstance(messages, list):
            yield Problem(path, line, f"run {run!r}: no list of messages in it")
            continue
        trajectory = _Trajectory()
        for place, message in enumerate(messages, 1):
            trajectory.add(message, place)
        rounds, events = trajectory.translation.read()
        success = success_label(known)
        if success is None:
            success = success_label(fields(known.get("info")))
        yield from trajectory.translation.problems(path, run, line, "message")
        yield RecordedRun(NAME, path, run, rounds, events, success)


class _Trajectory:
    """A run while its messages are read."""

    def __init__(self) -> None:
        self.translation = Translation()
        self._has_command = False   # without a result so far

    def add(self, message: Any, place: int) -> None:
        known = fields(message)
        role = known.get("role")
        if role == "assistant":
            self._add_round(known, place)
        elif role == "tool" or (role == "user" and self._has_command and not _is_user(known)):
            self._has_command = False
            self.translation.add(_result(known), place)
        elif role == "user":
            if _is_user(known):
                self.translation.add(message, place)
        elif role != "exit":
            self.translation.add(message, place)

    def _add_round(self, message: Mapping[str, Any], place: int) -> None:
        content, calls = message.get("content"), message.get("tool_calls")
        self._has_command = False
        if calls is None and isinstance(content, str):
            block = _only_block(content)
            if block is not None:
                calls = [tool_call(None, _TOOL, block.command)]
                content = content[: block.start] + content[block.end :]
                self._has_command = True
        usage = fields(fields(message.get("extra")).get("response")).get("usage")
        self.translation.add(
            {"role": "assistant", "content": content, "tool_calls": calls, "usage": usage}, place
        )


class _Block(NamedTuple):
    start: int
    command: str
    end: int


def _only_block(content: str) -> _Block | None:
    """Return the block of code with a command, if there is one only."""
    only, position = None, 0
    while start := _BLOCK_START.search(content, position):
        # Found by hand: in a text of blocks that do not end an expression would look for the end
        # of each.
        end = content.find(_BLOCK_END, start.end())
        if end < 0:
            return only
        if only is not None:
            return None
        position = end + len(_BLOCK_END)
        only = _Block(start.start(), content[start.end() : end], position)
    return only


def _is_user(message: Mapping[str, Any]) -> bool:
    """Whether a person wrote a message of the role `user`: it interrupts or rejects."""
    kind = fields(message.get("extra")).get("interrupt_type")
    return isinstance(kind, str) and kind.startswith("User")


def _result(message: Mapping[str, Any]) -> dict[str, Any]:
    extra, output = fields(message.get("extra")), message.get("content")
    code = 0
    if isinstance(extra.get("returncode"), int):
        code, output = extra["returncode"], extra.get("raw_output", output)
    elif isinstance(output, str):
        code, output = _code_and_output(output)
    result = {"role": "tool", "tool_call_id": message.get("tool_call_id"), "content": output}
    if isinstance(output, str):
        result["error"] = extra.get("exception_info") or command_error(code, output)
        result["is_error"] = is_error_text(output, _ERRORS)
    return result


def _code_and_output(content: str) -> tuple[int, str]:
    code = _RETURN_CODE.match(content)
    if code is None:
        return 0, content
    output = content[code.end() :]
    only = _OUTPUT.match(output)
    return int(code[1]), only[1] if only else output
