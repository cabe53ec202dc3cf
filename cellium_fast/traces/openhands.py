"""OpenHands histories: `history[]` of actions and observations, the newer events and the old ones.

An action of the agent is a call in a round of its own, or in that of the actions before it which
the same model response asked for. An error of the agent that answers no action is a round as
well: a model response that made no valid action. Old events tell no source and no ids: there,
a message that waits for a response is the agent's, and a result follows its action.

The exit code of a command that still runs (-1) is no error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cellium_fast.traces.evidence import (
    SHELL_ERRORS,
    command_error,
    is_error_text,
    success_label,
)
from cellium_fast.traces.reader import Record
from cellium_fast.traces.runs import Problem, RecordedRun, RunNames
from cellium_fast.traces.translation import Translation, fields, objects, text_parts, tool_call

NAME = "openhands"

_HISTORIES = ("history", "trajectory")
_ERRORS = (*SHELL_ERRORS, "-" * 75)     # a line of so many begins a traceback of IPython
# Of the session, not of the agent's work.
_SILENT = frozenset(
    {"system", "recall", "null", "change_agent_state", "agent_state_changed", "start", "pause",
     "resume", "stop", "condensation_request"}
)  # fmt: skip
_UNPARSED = "invalid action"
_STILL_RUNNING = -1
# Of an old event, all but these are what the action was given.
_NO_ARGUMENTS = frozenset({"action", "source", "id", "timestamp", "message", "thought"})


def recognises(value: Any) -> bool:
    """Whether the record is a run, a list of runs or of events, or an event."""
    if _is_event(value) or _events_of(value) is not None:
        return True
    return isinstance(value, list) and any(_events_of(item) is not None for item in objects(value))


def _events_of(value: Any) -> list[Any] | None:
    """Return the history in a run, or the list of events that the value is."""
    lists = [fields(value).get(name) for name in _HISTORIES] if isinstance(value, dict) else [value]
    for events in lists:
        if isinstance(events, list) and any(map(_is_event_or_pair, events)):
            return events
    return None


def _is_event_or_pair(value: Any) -> bool:
    return any(map(_is_event, value)) if isinstance(value, list) else _is_event(value)


def _is_event(value: Any) -> bool:
    if not isinstance(value, dict) or "role" in value:
        return False
    if not isinstance(value.get("action"), str) and not isinstance(value.get("observation"), str):
        return False
    return any(name in value for name in ("args", "extras", "source", "content"))


def read(path: Path, records: Iterator[Record | Problem]) -> Iterator[RecordedRun | Problem]:
    """Yield the runs of the records. See `cellium_fast.traces.reader.Reader`."""
    names = RunNames(path)
    single: list[tuple[int, Any]] = []
    for record in records:
        if isinstance(record, Problem):
            yield record
        elif _is_event(record.value) or (single and not recognises(record.value)):
            single.append((record.line or 1, record.value))
        else:
            yield from _read_value(path, record, names)
    if single:
        yield from _read_run(path, {}, single, names.unique(path.stem), None, "line")


def _read_value(path: Path, record: Record, names: RunNames) -> Iterator[RecordedRun | Problem]:
    several = isinstance(record.value, list) and _events_of(record.value) is None
    for item, value in enumerate(record.value if several else [record.value], 1):
        run = names.name(fields(value), record.line, item if several else None)
        # A history may be empty, which shows nothing: its name is trusted here.
        events = _events_of(value) or fields(value).get("history")
        if not isinstance(events, list):
            yield Problem(path, record.line, f"run {run!r}: no history of events in it")
        else:
            placed = enumerate(events, 1)
            yield from _read_run(path, fields(value), placed, run, record.line, "event")


def _read_run(
    path: Path,
    record: Mapping[str, Any],
    events: Iterable[tuple[int, Any]],
    run: str,
    line: int | None,
    unit: str,
) -> Iterator[RecordedRun | Problem]:
    history = _History()
    for place, event in events:
        # In the oldest files an action stands in a pair with its observation.
        for one in event if isinstance(event, list) else [event]:
            history.add(one, place)
    rounds, happened = history.translation.read()
    limit = fields(record.get("metadata")).get("max_iterations")
    yield from history.translation.problems(path, run, line, unit)
    yield RecordedRun(
        NAME,
        path,
        run,
        rounds,
        happened,
        _success(record),
        round_limit=limit if isinstance(limit, int) and limit > 0 else None,
    )


def _success(record: Mapping[str, Any]) -> bool | None:
    result = fields(record.get("test_result"))
    places = (record, fields(record.get("report")), result, fields(result.get("report")))
    return next((label for label in map(success_label, places) if label is not None), None)


class _History:
    """A run while its events are read."""

    def __init__(self) -> None:
        self.translation = Translation()
        self._asked: set[str] = set()           # ids of the actions that are calls
        self._response: Any = None              # id of the newest model response with calls
        self._calls: list[dict[str, Any]] = []  # what it asked for

    def add(self, event: Any, place: int) -> None:
        known = fields(event)
        action, observation = known.get("action"), known.get("observation")
        if isinstance(action, str):
            self._add_action(known, action, place)
        elif isinstance(observation, str):
            self._add_observation(known, observation, place)
        else:
            self.translation.add(event, place)

    def _add_action(self, event: Mapping[str, Any], action: str, place: int) -> None:
        given = event["args"] if isinstance(event.get("args"), dict) else event
        source = event.get("source")
        if action == "condensation":
            self.translation.add_compaction()
        elif action in _SILENT:
            return
        elif action == "message":
            is_agent = source == "agent" if source else given.get("wait_for_response") is True
            role = "assistant" if is_agent else "user"
            self.translation.add({"role": role, "content": given.get("content")}, place)
        elif source in (None, "agent"):
            self._add_call(event, action, given, place)

    def _add_call(
        self, event: Mapping[str, Any], action: str, given: Mapping[str, Any], place: int
    ) -> None:
        metadata = fields(event.get("tool_call_metadata"))
        response = fields(metadata.get("model_response"))
        message = _message_of(response)
        identity = _identity(event.get("id"))
        if identity is not None:
            self._asked.add(identity)
        name = metadata.get("function_name") or action
        arguments = _arguments(message, metadata.get("tool_call_id"), given)
        call = tool_call(identity, name, arguments)
        if response.get("id") is not None and response["id"] == self._response:
            self._calls.append(call)
            return
        self._response, self._calls = response.get("id"), [call]
        text = text_parts(message.get("content")) if message else _thought(action, given)
        self.translation.add(
            {
                "role": "assistant",
                "content": text,
                "tool_calls": self._calls,
                "usage": response.get("usage"),
            },
            place,
        )

    def _add_observation(self, event: Mapping[str, Any], observation: str, place: int) -> None:
        if observation in _SILENT:
            return
        cause = _identity(event.get("cause"))
        if cause is None and "source" in event:
            if observation != "error" or event["source"] != "agent":
                return
            calls = [tool_call(None, _UNPARSED, None)]
            self.translation.add({"role": "assistant", "tool_calls": calls}, place)
        elif cause is not None and cause not in self._asked:
            return
        content = event.get("content")
        result = {"role": "tool", "tool_call_id": cause, "content": content}
        self.translation.add({**result, **_error(event, observation, content)}, place)


def _identity(value: Any) -> str | None:
    return str(value) if isinstance(value, int | str) else None


def _message_of(response: Mapping[str, Any]) -> Mapping[str, Any]:
    choice = next(iter(objects(response.get("choices"))), {})
    return fields(choice.get("message"))


def _arguments(message: Mapping[str, Any], identity: Any, given: Mapping[str, Any]) -> Any:
    """Return the arguments as the model gave them, or else as the action has them."""
    for call in objects(message.get("tool_calls")):
        if call.get("id") == identity and isinstance(call.get("function"), dict):
            return call["function"].get("arguments")
    arguments = {name: value for name, value in given.items() if name not in _NO_ARGUMENTS}
    return arguments or {"thought": given.get("thought")}


def _thought(action: str, given: Mapping[str, Any]) -> Any:
    # The action `think` has it as its argument.
    thought = given.get("thought")
    return None if action == "think" or thought == "" else thought


def _error(event: Mapping[str, Any], observation: str, content: Any) -> dict[str, Any]:
    if observation == "error":
        return {"is_error": True}
    if not isinstance(content, str):
        return {}
    error = command_error(_exit_code(event), content)
    return {"error": error, "is_error": is_error_text(content, _ERRORS)}


def _exit_code(event: Mapping[str, Any]) -> int:
    extras = fields(event.get("extras"))
    for where in (fields(extras.get("metadata")), extras, event):
        code = where.get("exit_code")
        if isinstance(code, int):
            return 0 if code == _STILL_RUNNING else code
    return 0
