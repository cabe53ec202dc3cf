"""SWE-agent trajectories (`.traj`): an object with `trajectory[]` of actions and observations.

An action is a command line, so its first word is the tool and the whole of it the arguments.
The format has no error field: errors are told by how observations begin. `model_stats` counts
tokens over all calls, which is no context size, so sizes stay unknown. Trajectories that hold
only a `history` of chat messages are read by `openai_chat`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cellium_fast.rounds import Round, ToolCall
from cellium_fast.traces.evidence import SHELL_ERRORS, is_error_text, success_label
from cellium_fast.traces.reader import Record
from cellium_fast.traces.runs import NO_EVENT, Complaints, Problem, RecordedRun, RunNames

NAME = "swe-agent"

_ERRORS = (
    *SHELL_ERRORS,
    # The edit tools, when they undo an edit or cannot place it.
    "Your proposed edit has introduced new syntax error(s)",
    "Your edit was not applied",
    "No replacement was performed",
    "No file open",
    # The environment, when it refuses a command or gives up on it.
    "Your bash command contained syntax errors",
    "Your output could not be parsed",
    "Your output was not formatted correctly",
    "EXECUTION TIMED OUT",
    "COMMAND FAILED TO EXECUTE",
    "The command '",
)
_USAGE = ("Usage:", "usage:")


def recognises(value: Any) -> bool:
    """Whether the record is a trajectory, or a list of them."""
    if isinstance(value, list):
        return any(map(_is_trajectory, value[:3]))
    return _is_trajectory(value)


def _is_trajectory(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("trajectory"), list):
        return False
    steps = value["trajectory"]
    if not steps:
        return "history" in value and "info" in value
    return any(
        isinstance(step, dict) and "action" in step and "observation" in step for step in steps
    )


def read(path: Path, records: Iterator[Record | Problem]) -> Iterator[RecordedRun | Problem]:
    """Yield the runs of the records. See `cellium_fast.traces.reader.Reader`."""
    names = RunNames(path)
    for record in records:
        if isinstance(record, Problem):
            yield record
        elif isinstance(record.value, list):
            for item, value in enumerate(record.value, 1):
                yield from _read_run(path, value, names, record.line, item)
        else:
            yield from _read_run(path, record.value, names, record.line, None)


def _read_run(
    path: Path, value: Any, names: RunNames, line: int | None, item: int | None
) -> Iterator[RecordedRun | Problem]:
    if not _is_trajectory(value):
        place = "" if item is None else f"item {item}: "
        yield Problem(path, line, f"{place}not a SWE-agent trajectory")
        return
    rounds: list[Round] = []
    complaints = Complaints()
    for index, step in enumerate(value["trajectory"]):
        if isinstance(step, dict):
            rounds.append(_read_step(step, complaints, index))
        else:
            complaints.add("a step that is no object", index)
    info = value.get("info")
    success = success_label(value)
    if success is None and isinstance(info, dict):
        success = success_label(info)
    run = names.name(value, line, item)
    yield from complaints.problems(path, run, line, lambda index: f"step {index + 1}")
    yield RecordedRun(NAME, path, run, rounds, [NO_EVENT] * len(rounds), success)


def _read_step(step: dict[str, Any], complaints: Complaints, index: int) -> Round:
    text = step.get("thought", step.get("response"))
    if not isinstance(text, str) or not text.strip():
        text = None
    action = step.get("action")
    if not isinstance(action, str):
        if action is not None:
            complaints.add("an action that is no text", index)
        action = ""
    words = action.split(None, 1)
    if not words:
        return Round(text=text)
    observation = step.get("observation")
    error = _is_error(action, observation) if isinstance(observation, str) else None
    call = ToolCall(words[0], action, observation, error)
    return Round((call,), text)


def _is_error(action: str, observation: str) -> bool:
    if is_error_text(observation, _ERRORS):
        return True
    # A tool called wrongly shows its usage; one that was asked for it does so as well.
    return "--help" not in action and is_error_text(observation, _USAGE)
