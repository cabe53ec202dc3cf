"""Chat messages to write down, and a folder that writes recordings and reads them back."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from cellium_fast import traces

RECORDINGS = os.environ.get("CELLIUM_TRACES", "")

needs_recordings = pytest.mark.skipif(
    not os.path.isdir(RECORDINGS), reason="CELLIUM_TRACES names no directory of recordings"
)

USER = {"role": "user", "content": "go on"}
ANSWER = {"role": "assistant", "content": "done"}
TAU = {"task_id": 9, "trial": 2, "reward": 0.0, "info": {}, "traj": [USER, ANSWER]}


def asks(*calls: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls), **fields}


def call(identity: str | None = "c1", name: Any = "look", arguments: Any = "{}") -> dict[str, Any]:
    return {
        "id": identity,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def gives(content: Any, identity: str | None = "c1", **fields: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": identity, "content": content, **fields}


class Reading:
    """All that a file gave, split in runs and problems."""

    def __init__(self, found: Iterable[traces.RecordedRun | traces.Problem]) -> None:
        found = list(found)
        self.runs = [one for one in found if isinstance(one, traces.RecordedRun)]
        self.problems = [one for one in found if isinstance(one, traces.Problem)]

    @property
    def run(self) -> traces.RecordedRun:
        assert len(self.runs) == 1, (self.runs, self.problems)
        return self.runs[0]

    @property
    def problem(self) -> traces.Problem:
        assert len(self.problems) == 1, self.problems
        return self.problems[0]


class Files:
    """Writes a file and reads it back."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read_bytes(self, data: bytes, name: str = "run.json") -> Reading:
        path = self.folder / name
        path.write_bytes(data)
        return Reading(traces.read(path))

    def read(self, value: Any, name: str = "run.json") -> Reading:
        return self.read_bytes(json.dumps(value).encode(), name)

    def read_lines(self, *values: Any) -> Reading:
        return self.read_bytes(b"".join(json.dumps(one).encode() + b"\n" for one in values))

    def detect(self, value: Any) -> traces.Detection:
        path = self.folder / "unnamed"
        path.write_text(json.dumps(value))
        return traces.detect(path)


# Work for other processes, which import it.


def doubled(number: int) -> int:
    return 2 * number


def refuses_three(number: int) -> int:
    if number == 3:
        raise ValueError("three")
    return number


def dies_at_three(number: int) -> int:
    if number == 3:
        os._exit(1)
    return number


def dies_at_once(item: object) -> None:
    os._exit(1)


def sleeps(number: int) -> int:
    sys.stdout.write("asleep\n")
    sys.stdout.flush()
    time.sleep(60)
    return number


def folder_of_work(number: int) -> str:
    return os.getcwd()
