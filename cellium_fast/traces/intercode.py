"""InterCode results: an object of runs by number, each with a `turn_history` of parallel lists.

The environment is the single tool: "ic_bash" becomes the tool "bash". `submit` is a call like
any other. The rewards of single turns are left out: in the try-again setting they are the label.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cellium_fast.rounds import Round, ToolCall
from cellium_fast.traces.evidence import SHELL_ERRORS, full_reward, is_error_text
from cellium_fast.traces.reader import Record
from cellium_fast.traces.runs import NO_EVENT, Complaints, Problem, RecordedRun, RunNames

NAME = "intercode"

_ERRORS = (
    *SHELL_ERRORS,
    # The environment, when an action is none it knows or gets no answer.
    "Error executing query",
    "Malformed command",
    "Command timed out",
    # MySQL, by the number of the error and the class of the SQL standard behind it.
    "1054 (42S22)",
    "1064 (42000)",
    "1146 (42S02)",
)
_COLUMNS = ("actions", "observations", "valid_action", "thoughts")


def recognises(value: Any) -> bool:
    """Whether the record is a run, or an object or a list of runs."""
    if _is_run(value):
        return True
    if isinstance(value, dict):
        return any(map(_is_run, value.values()))
    return isinstance(value, list) and any(map(_is_run, value))


def _is_run(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("turn_history"), dict)


def read(path: Path, records: Iterator[Record | Problem]) -> Iterator[RecordedRun | Problem]:
    """Yield the runs of the records. See `cellium_fast.traces.reader.Reader`."""
    names = RunNames(path)
    for record in records:
        if isinstance(record, Problem):
            yield record
        elif isinstance(record.value, dict) and not _is_run(record.value):
            for key, value in record.value.items():
                yield from _read_run(path, value, names.unique(key), record.line)
        elif isinstance(record.value, list):
            for item, value in enumerate(record.value, 1):
                fields = value if isinstance(value, dict) else {}
                yield from _read_run(
                    path, value, names.name(fields, record.line, item), record.line
                )
        else:
            fields = record.value if isinstance(record.value, dict) else {}
            run = names.name(fields, record.line)
            yield from _read_run(path, record.value, run, record.line)


def _read_run(
    path: Path, value: Any, run: str, line: int | None
) -> Iterator[RecordedRun | Problem]:
    if not _is_run(value):
        yield Problem(path, line, f"run {run!r}: not an InterCode run with a turn_history")
        return
    complaints = Complaints()
    rounds = _read_rounds(value, complaints)
    summary = value.get("summary")
    if not isinstance(summary, dict):
        summary = {}
    limit = summary.get("turns_max")
    yield from complaints.problems(path, run, line, lambda index: f"turn {index + 1}")
    yield RecordedRun(
        NAME,
        path,
        run,
        rounds,
        [NO_EVENT] * len(rounds),
        success=full_reward(summary.get("max_reward")),
        round_limit=limit if isinstance(limit, int) and limit > 0 else None,
    )


def _read_rounds(value: dict[str, Any], complaints: Complaints) -> list[Round]:
    history = value["turn_history"]
    columns: dict[str, list[Any]] = {}
    for name in _COLUMNS:
        column = history.get(name)
        if column is not None and not isinstance(column, list):
            complaints.add(f"{name} is no list")
        columns[name] = column if isinstance(column, list) else []
    count = len(columns["actions"])
    for name, column in columns.items():
        if column and len(column) != count:
            complaints.add(f"{len(column)} {name} beside {count} actions")
        column.extend([None] * (count - len(column)))

    environment = value.get("environment")
    tool = environment.removeprefix("ic_") if isinstance(environment, str) else ""
    tool = tool or "environment"
    rounds = []
    for action, observation, valid, thought in zip(*columns.values(), strict=False):
        call = ToolCall(tool, action, observation, _is_error(action, observation, valid))
        text = thought if isinstance(thought, str) and thought.strip() else None
        rounds.append(Round((call,), text))
    return rounds


def _is_error(action: Any, observation: Any, valid: Any) -> bool | None:
    if action == "submit":
        # Handing in cannot fail; what stands beside it is still that of the action before.
        return False
    # The environment's own word goes first. It follows the exit status, which a pipeline
    # takes from its last command only: hence the look at what was printed.
    if valid is False:
        return True
    return is_error_text(observation, _ERRORS) if isinstance(observation, str) else None
