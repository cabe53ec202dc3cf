"""Durable fleets on their way through a script, call by call, and what to compare them by."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lively_fleets import Run, new_fleet

from cellium_fast import Fleet, durable
from cellium_fast.durable import DurableFleet

QUIET = {"fsync": "never", "compact_bytes": None, "threads": 1}


def begin(directory: Path, seed: int, **settings: Any) -> DurableFleet:
    """A new durable fleet with policies and pools of many kinds."""
    pattern = new_fleet(seed)
    return recovered(
        directory, seed=seed, policies=pattern.policies, pools=pattern.pools, **settings
    )


def calls(run: Run, steps: list[Any]) -> Iterator[None]:
    """Play a script; yield after each call of the fleet."""
    fleet = run.fleet
    for step in steps:
        for count, keywords in step.opens:
            run.ids += fleet.open(count, **keywords).tolist()
            yield
            run.handles[run.ids[-1]] = fleet.attach(run.ids[-1])
            yield
        for keywords in step.handles:
            handle = fleet.session(**keywords)
            run.handles[handle.id] = handle
            run.ids.append(handle.id)
            yield
        for name, policy in step.policies:
            fleet.set_policy(name, policy)
            yield
            learned = fleet.export_posterior("first")
            fleet.import_posterior(learned)
            yield
        for sessions, policy in step.moves:
            fleet.use_policy(run.ids_of(sessions), policy)
            yield
        if step.messages:
            fleet.user_message(run.ids_of(step.messages))
            yield
            fleet.compacted(run.ids_of(step.messages))
            yield
        fleet.step(run.ids_of(step.stepped), step.rounds)
        yield
        for session, one in step.single:
            run.handles[run.ids[session]].step(one)
            yield
        for sessions, outcomes in step.closes:
            fleet.close(run.ids_of(sessions), np.array(outcomes, np.int8))
            for session in sessions:
                run.handles.pop(run.ids[session], None)
            yield


def count_calls_alone(patched: pytest.MonkeyPatch) -> None:
    """Every entry is of a call: a fleet that goes on after a crash begins no sources.

    So the number of an entry tells the state; test_durable_sources.py is about the sources.
    """
    patched.setattr(durable, "goes_on", lambda *_: True)


def facts(fleet: Fleet, *, sources: bool = True) -> dict[str, Any]:
    """All of a fleet's state, to be compared; `sources`: with what is another in every fleet."""
    state = fleet._lock.run(fleet._state)
    found = {
        name: value.tobytes() if isinstance(value, np.ndarray) else
        list(value.items()) if isinstance(value, dict) else value
        for name, value in ((name, getattr(state, name)) for name in state.__dataclass_fields__)
    }
    # Field by field: what lies between the fields of a decision is no part of it.
    found["handles"] = [replace(handle, outcome=b"") for handle in state.handles]
    found["histories"] = sources and [
        (name, history.as_json()) for name, history in state.histories.items()
    ]
    found["outcomes"] = list(fields_of(state.outcomes()))
    return found


def fields_of(records: np.ndarray) -> Iterator[tuple[str, bytes]]:
    """Each field of records as bytes."""
    for name in records.dtype.names or ():
        if records[name].dtype.names:
            yield from fields_of(records[name])
        else:
            yield name, records[name].tobytes()


def copied(directory: Path, target: Path) -> Path:
    """A copy of a directory: what a crash at this moment would leave."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(directory, target)
    return target


def recovered(directory: Path, **settings: Any) -> DurableFleet:
    """The fleet of a directory, open; a new one is plain."""
    return Fleet.open_durable(directory, **{**QUIET, **settings})
