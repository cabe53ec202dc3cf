"""Recordings with strange values in strange places: no reader raises, every run can be packed."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest
from trace_files import Files

from cellium_fast import traces
from cellium_fast.traces.packed import PackedRuns, packed

SAMPLES = sorted((Path(__file__).parent.parent / "examples" / "runs").iterdir())
STRANGE = (
    None, True, 0, -1.5, 1e300, 10**400, float("nan"), "", "text", "C", "-1", [], {}, [None],
    [[5]], {"role": 5}, {"type": []},
)  # fmt: skip


def records_of(path: Path) -> list[Any]:
    text = path.read_text("utf-8")
    return [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else [
        json.loads(text)
    ]  # fmt: skip


def change(value: Any, chance: random.Random) -> None:
    """Change one value somewhere inside a list or an object, or take it out."""
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            return
        key = chance.choice(keys)
        if isinstance(value[key], dict | list) and value[key] and chance.random() < 0.8:
            value = value[key]
        elif chance.random() < 0.2:
            del value[key]
            return
        else:
            value[key] = copy.deepcopy(chance.choice(STRANGE))
            return


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
@pytest.mark.parametrize("seed", range(40))
def test_strange_values_never_raise(files: Files, path: Path, seed: int) -> None:
    chance = random.Random(seed)
    records = records_of(path)
    for _ in range(chance.randint(1, 12)):
        change(records, chance)
    reading = files.read_lines(*records)
    assert not [one.why for one in reading.problems if "from here on" in one.why]
    for run in reading.runs:
        assert len(run.events) == len(run.rounds)
        (found,) = packed([run])
        assert isinstance(found, PackedRuns | traces.Problem)
